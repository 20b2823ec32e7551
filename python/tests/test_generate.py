# SPDX-License-Identifier: Apache-2.0
"""Text: that of the program, piece by piece."""
import gc
import json
import logging
import threading

import pytest

import nibble

TALES = "models/nibble-tales"
PROMPT = "The king and the wolf. The king and the wolf. The king"


@pytest.mark.parametrize("options, arguments", [
    ({"temperature": 0}, ["--temp", "0"]),
    ({"seed": 7}, ["--seed", "7"]),
    ({"temperature": 0.3, "top_k": 5, "top_p": 0.8, "min_p": 0.1, "repeat_penalty": 1.3, "seed": (1 << 64) - 1},
     ["--temp", "0.3", "--top-k", "5", "--top-p", "0.8", "--min-p", "0.1", "--repeat-penalty", "1.3", "--seed", (1 << 64) - 1]),
    ({"top_k": 0, "top_p": 1, "min_p": 0}, ["--top-k", "0", "--top-p", "1", "--min-p", "0"]),
    ({"stop": ["wolf", "said"], "temperature": 0}, ["--stop", "wolf", "--stop", "said", "--temp", "0"]),
    ({"ignore_eos": True, "seed": 3}, ["--ignore-eos", "--seed", "3"]),
])
def test_text_is_the_programs(model, program_json, options, arguments):
    pieces = model.generate(PROMPT, max_tokens=40, **options)
    text = "".join(pieces)
    wanted = program_json("generate", TALES, "--recipe", "8da4w", "-p", PROMPT, "-n", 40, *arguments)
    assert text == wanted["text"]
    stats = pieces.stats
    assert (stats.new_tokens, stats.prompt_tokens, pieces.finish) == (wanted["new_tokens"], wanted["prompt_tokens"], wanted["finish"])
    assert stats.seed == wanted["seed"] and stats.steps <= stats.new_tokens


def test_a_draft_model_writes_the_same_text():
    for options in ({"temperature": 0}, {"seed": 7}):
        with nibble.Model(TALES, draft=TALES, draft_recipe="int4wo", lookup=0) as model, nibble.Model(TALES) as plain:
            pieces = model.generate(PROMPT, max_tokens=60, **options)
            assert "".join(pieces) == plain.complete(PROMPT, max_tokens=60, **options)
            stats = pieces.stats
            assert stats.drafts == 15 and stats.model_drafted == stats.drafted >= stats.model_accepted == stats.accepted
            assert 0 <= stats.vain_s < stats.undrafted_s
    with pytest.raises(nibble.Usage, match="draft_recipe|--draft-recipe"):
        nibble.Model(TALES, draft_recipe="int4wo").plan()
    with pytest.raises(OSError):
        nibble.Model(TALES, draft="missing")


def test_a_draft_head():
    with nibble.Model("tests/golden/models/qwen3_5_draft", draft_head=True) as model:
        assert "draft model: 9 linear layers" in model.plan().summary
    with pytest.raises(nibble.Unsupported, match="no draft head"):
        nibble.Model(TALES, draft_head=True)
    with pytest.raises(nibble.Usage, match="draft_head"):
        nibble.Model(TALES, draft=TALES, draft_head=True)


def test_until_the_context_is_full():
    with nibble.Model(TALES, context=40) as model:
        pieces = model.generate("Once", max_tokens=0, ignore_eos=True)
        assert len(list(pieces)) > 30 and pieces.finish == "context"


def test_pieces(model, program_json):
    wanted = program_json("generate", TALES, "--recipe", "8da4w", "-p", "Once", "-n", 12, "--logprobs", 3)
    generation = model.generate("Once", max_tokens=12, logprobs=3)
    assert generation.finish is None
    pieces = list(generation)
    assert "".join(pieces) == wanted["text"] and [str(p) for p in pieces] == [p.text for p in pieces]
    tokens = [p for p in pieces if p.token is not None]
    assert [p.token for p in tokens] == [t["id"] for t in wanted["logprobs"]]
    for piece, token in zip(tokens, wanted["logprobs"]):
        assert piece.logprob == pytest.approx(token["logprob"], rel=1e-8)
        assert [t.id for t in piece.top] == [t["id"] for t in token["top"]]
        assert [t.text for t in piece.top] == [t["token"] for t in token["top"]]
    assert all(p.logprob is None and p.top == () for p in model.generate("Once", max_tokens=3))
    assert generation.finish == "length" and generation.stats.new_tokens == 12


def test_schema(model):
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    for form in (schema, json.dumps(schema)):
        text = model.complete("{", max_tokens=60, schema=form, seed=3)
        assert isinstance(json.loads(text)["age"], int)
    with pytest.raises(nibble.BadInput):
        model.generate(schema="{")
    with pytest.raises(nibble.Unsupported):
        model.generate(schema={"not": {}})


def test_a_session_has_one_generation_at_a_time(model):
    with model.session() as session:
        first = session.generate(PROMPT, max_tokens=20, temperature=0)
        whole = next(first)
        for call in (lambda: session.generate("Once"), lambda: session.step([(0, 0, 1)]), lambda: session.truncate(0, 0),
                     lambda: session.save(), lambda: session.load(b"")):
            with pytest.raises(nibble.Usage, match="in use by a generation"):
                call()
        whole += "".join(first)
        assert whole == model.complete(PROMPT, max_tokens=20, temperature=0)
        session.generate("Once").close()
        left = session.generate("Once")
        next(left)
        del left  # what is not used any more is closed
        gc.collect()
        assert "".join(session.generate(PROMPT, max_tokens=20, temperature=0)) == whole


def test_closing_early(model):
    generation = model.generate(PROMPT, max_tokens=20)
    next(generation)
    generation.close()
    generation.close()
    assert generation.finish == "cancelled" and list(generation) == [] and generation.stats.new_tokens >= 1
    with model.generate(PROMPT) as generation:
        next(generation)
    assert generation.finish == "cancelled"
    assert repr(generation) == "<nibble.Generation: cancelled; iterate over it for its text>"
    for _ in model.generate(PROMPT):
        break
    assert model.complete("Once", max_tokens=1, temperature=0)


def test_a_model_lives_as_long_as_its_generation():
    pieces = nibble.Model(TALES).generate("Once", max_tokens=5)
    gc.collect()
    assert len(list(pieces)) >= 5
    tokenizer = nibble.Model(TALES).tokenizer
    gc.collect()
    assert tokenizer.encode("Once")


def test_after_close():
    model = nibble.Model(TALES)
    session, pieces, tokenizer = model.session(), model.generate("Once"), model.tokenizer
    next(pieces)
    model.close()
    model.close()
    for call in (model.plan, lambda: model.generate("x"), lambda: next(pieces), lambda: session.step([(0, 0, 1)]),
                 lambda: session.save(), lambda: tokenizer.encode("x"), lambda: tokenizer.decode([1]), lambda: model.logits([1]),
                 lambda: model.session(), lambda: model.encode_chat([])):
        with pytest.raises(nibble.Usage, match="is closed"):
            call()
    pieces.close()
    session.close()
    assert "closed" in repr(model) and "closed" in repr(session)


def test_options_without_effect_are_said(model, caplog):
    with caplog.at_level(logging.WARNING, "nibble"):
        model.complete("Once", max_tokens=1, temperature=0, top_k=4)
    assert "--top-k 4" in caplog.text
    lines = []
    with nibble.Model(TALES, log=lines.append) as told:
        told.complete("Once", max_tokens=1, temperature=0, top_k=4)
        assert len([line for line in lines if "--top-k 4" in line]) == 1
        told.complete("Once", max_tokens=1, temperature=0, top_k=4)
        assert len([line for line in lines if "--top-k 4" in line]) == 1


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"top_p": float("nan")}, {"top_p": 0}, {"repeat_penalty": 0.0},
                                 {"max_tokens": -1}, {"logprobs": 21}, {"logprobs": -1},
                                 {"schema": "{}", "ignore_eos": True}, {"seed": -1}, {"stop": [""]}])
def test_wrong_values(model, bad):
    with pytest.raises(ValueError):
        model.generate("Once", **bad)
    assert model.complete("Once", max_tokens=1)  # it is not in use


def test_wrong_types(model):
    for bad in ({"temperature": "hot"}, {"max_tokens": 1.5}, {"stop": 3}, {"schema": 3}, {"ignore_eos": 1}, {"tempature": 1}):
        with pytest.raises(TypeError):
            model.generate("Once", **bad)
    with pytest.raises(TypeError):
        model.generate(b"Once")


def test_long_prompts_and_empty_ones(model):
    with pytest.raises(nibble.Usage, match="the context is 512"):
        model.generate("wolf " * 600)
    assert model.complete(max_tokens=3, temperature=0) == model.complete("", max_tokens=3, temperature=0)


def test_threads_take_turns(model):
    """Threads with sessions of their own, on one engine; and an engine each."""
    wanted = model.complete(PROMPT, max_tokens=30, temperature=0)
    found = []

    def shared():
        with model.session() as session:
            found.append("".join(session.generate(PROMPT, max_tokens=30, temperature=0)))

    def alone():
        with nibble.Model(TALES, recipe="8da4w", threads=1) as own:
            found.append(own.complete(PROMPT, max_tokens=30, temperature=0))

    threads = [threading.Thread(target=t) for t in (shared, alone, shared, alone, shared)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [wanted] * 5
