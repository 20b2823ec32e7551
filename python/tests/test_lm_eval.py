# SPDX-License-Identifier: Apache-2.0
"""nibble.lm_eval: log-likelihoods and texts as transformers, as `nibble serve` and as `nibble.eval`, whatever the batch and the
order; what is not done as asked; the ledger in the results; a server that scores at chance (case 6 of docs/cases.md)."""
import functools
import http.server
import importlib.machinery
import importlib.util
import json
import math
import os
import random
import shutil
import subprocess
import sys
import threading

import pytest

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")
pytest.importorskip("lm_eval.api", reason="lm-eval is not installed (python/tests/requirements-lm-eval.txt)")
import lm_eval  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

import nibble  # noqa: E402
import nibble.lm_eval  # noqa: E402
from conftest import PROGRAM, ROOT, TALES  # noqa: E402
from nibble.lm_eval import NibbleLM  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "tests", "serve"))
from serving import Server  # noqa: E402

TASKS = "python/tests/lm_eval"
TEMPLATE = "examples/tales.jinja"
LIMIT = 1e-4  # of a log-likelihood, between f32 here and f32 there


@pytest.fixture(scope="module", autouse=True)
def _data_sets(tmp_path_factory):
    import datasets
    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("datasets")
    datasets.disable_progress_bars()


@functools.cache
def task_manager():
    return TaskManager(include_path=TASKS, include_defaults=False)


def evaluate(model, arguments, *tasks, **how):
    """(results, {task: its samples in the order of its documents})"""
    made = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=list(tasks), log_samples=True, bootstrap_iters=0,
                                   task_manager=task_manager(), **how)
    return made, {t: sorted(made["samples"][t], key=lambda s: s["doc_id"]) for t in tasks}


def responses(samples):
    return [r for sample in samples for r in sample["filtered_resps"]]


def requests_of(kind, pairs):
    return [Instance(request_type=kind, doc={}, arguments=tuple(pair), idx=0) for pair in pairs]


def read_data(name):
    with open(os.path.join(ROOT, TASKS, name + ".jsonl"), encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def pairs_of_endings():
    return [(d["begin"], end) for d in read_data("endings") for end in d["ends"]]


@functools.cache
def tales(**options):
    return NibbleLM(TALES, **{"dtype": "f32", "batch_size": 4, **options})


# ---- as transformers ----


def tiny_stories():
    """A Llama whose texts begin with BOS, with the tokenizer that its file describes: transformers' own class for Llamas leaves out
    characters without a token."""
    data = os.environ.get("NIBBLE_TEST_DATA")
    if not data:
        pytest.skip("NIBBLE_TEST_DATA is not set")
    path = os.path.join(data, "weights/TinyStories-656K/hf-f32")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    return path, {"tokenizer": transformers.PreTrainedTokenizerFast(
        tokenizer_file=os.path.join(path, "tokenizer.json"), bos_token="<|start_story|>", eos_token="<|end_story|>",
        pad_token="<unk>")}


@pytest.mark.parametrize("name", ["tales", "tiny_stories"])
def test_as_transformers(name):
    """Transformers' forward pass is f32 in both rounds. By default, lm-eval's `hf` also takes the logarithms and their sum in f32, whose
    steps at a log-likelihood of 583 are 6e-5; so the second round has them in f64."""
    pytest.importorskip("torch", reason="torch is not installed")
    path, more = (TALES, {}) if name == "tales" else tiny_stories()
    scored = ["nibble_endings", "nibble_paragraphs", "nibble_texts"]
    if name == "tales":  # the other's tokens cross spaces, and what is left of such a choice may be no token
        scored.append("nibble_certain")
    how = {"device": "cpu", "batch_size": 4}
    ours, of_ours = evaluate("nibble", {"pretrained": path, "dtype": "f32"}, *scored, "nibble_continue", **how)
    for softmax in ("float32", "float64"):
        theirs, of_theirs = evaluate("hf", {"pretrained": path, "dtype": "float32", "softmax_dtype": softmax, **more}, *scored,
                                     "nibble_continue", **how)
        worst, count = 0.0, 0
        for task in scored:
            for a, b in zip(responses(of_ours[task]), responses(of_theirs[task]), strict=True):
                a, b = (a, b) if isinstance(a, tuple) else ((a, None), (b, None))
                if softmax == "float64" or abs(a[0]) < 512:
                    worst, count = max(worst, abs(a[0] - b[0])), count + 1
                    assert abs(a[0] - b[0]) <= LIMIT, (task, a, b)
                assert a[1] == b[1], (task, a, b)
        print("%s, softmax in %s: %d log-likelihoods, at most %.1e apart" % (name, softmax, count, worst))
        assert count > 100
        for task in scored[:2] + scored[3:]:
            assert ours["results"][task]["acc,none"] == theirs["results"][task]["acc,none"]
        texts = list(zip(responses(of_ours["nibble_continue"]), responses(of_theirs["nibble_continue"]), strict=True))
        # as a text of its own, which a Llama's begins without the space
        assert all(a == b or a == " " + b for a, b in texts) and len(texts) == 8, texts


def test_chat_as_transformers(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    model = tmp_path / "tales"
    shutil.copytree(TALES, model)
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}<|endoftext|>{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}"
        "<|endoftext|>assistant:{% endif %}", encoding="utf-8")
    how = {"device": "cpu", "apply_chat_template": True, "fewshot_as_multiturn": True, "num_fewshot": 1, "limit": 4,
           "system_instruction": "Tell a tale."}
    theirs, of_theirs = evaluate("hf", {"pretrained": str(model), "dtype": "float32"}, "nibble_endings", "nibble_continue", **how)
    ours, of_ours = evaluate("nibble", {"pretrained": str(model), "dtype": "f32"}, "nibble_endings", "nibble_continue", **how)
    for a, b in zip(responses(of_ours["nibble_endings"]), responses(of_theirs["nibble_endings"]), strict=True):
        assert abs(a[0] - b[0]) <= LIMIT and a[1] == b[1]
    assert of_ours["nibble_continue"][0]["arguments"] == of_theirs["nibble_continue"][0]["arguments"]
    text = of_ours["nibble_continue"][0]["arguments"][0][0]
    assert text.startswith("<|endoftext|>system: Tell a tale.\n<|endoftext|>user: ") and text.endswith("<|endoftext|>assistant:")
    assert responses(of_ours["nibble_continue"]) == responses(of_theirs["nibble_continue"])
    assert ours["results"]["nibble_endings"] == theirs["results"]["nibble_endings"] | {"name": "nibble_endings"}


# ---- batches ----


def test_batch_and_order_change_no_score(monkeypatch):
    pairs = pairs_of_endings()
    texts = [(d["text"],) for d in read_data("texts")]
    begins = [(d["begin"], {"until": ["."], "max_gen_toks": 12, "temperature": 0.9, "do_sample": True, "seed": 5})
              for d in read_data("continue")]
    lm = tales(batch_size=1)
    scores = dict(zip(pairs, lm.loglikelihood(requests_of("loglikelihood", pairs), disable_tqdm=True), strict=True))
    rolling = lm.loglikelihood_rolling(requests_of("loglikelihood_rolling", texts), disable_tqdm=True)
    made = lm.generate_until(requests_of("generate_until", begins), disable_tqdm=True)
    assert len(set(made)) == len(made) == 8
    chance = random.Random(1)
    for batch_size, step in ((3, 512), (8, 7), ("auto", 64)):
        monkeypatch.setattr(nibble.lm_eval, "STEP_TOKENS", step)
        lm = NibbleLM(TALES, dtype="f32", batch_size=batch_size)
        lm._lanes.rows = 5
        order = chance.sample(pairs, len(pairs))
        again = lm.loglikelihood(requests_of("loglikelihood", order), disable_tqdm=True)
        assert {p: a for p, a in zip(order, again, strict=True)} == scores
        assert lm.loglikelihood_rolling(requests_of("loglikelihood_rolling", texts), disable_tqdm=True) == rolling
        assert lm.generate_until(requests_of("generate_until", begins[::-1]), disable_tqdm=True) == made[::-1]
    assert lm.session.sequences == 8 and lm.batch_sizes == {0: 8}


def test_no_token_runs_twice(monkeypatch):
    """Choices of one token cost nothing beside their context; what contexts and continuations have in common runs once."""
    lm = NibbleLM(TALES, dtype="f32", batch_size=1)
    ran, step = [], lm.session.step
    monkeypatch.setattr(lm.session, "step", lambda slots, **how: (ran.append(len(slots)), step(slots, **how))[1])
    choices = [" time", " king", " wolf", " house"]
    context = lm.tok_encode("Once upon a")
    assert all(len(lm.tok_encode("Once upon a" + word)) == len(context) + 1 for word in choices)
    pairs = [("Once upon a", word) for word in choices]
    answers = lm.loglikelihood(requests_of("loglikelihood", pairs), disable_tqdm=True)
    assert ran == [len(context)]
    logits = lm.model.logits(context, last=True)[0].astype("float64")
    for (value, greedy), word in zip(answers, choices):
        token = lm.tok_encode("Once upon a" + word)[-1]
        assert math.isclose(value, logits[token] - math.log(math.fsum(math.exp(x) for x in logits)), rel_tol=1e-12)
        assert greedy == (token == logits.argmax())

    ran.clear()
    ids = [(None, [5, 6, 7, 8], c) for c in ([9], [10, 11], [10, 12, 13], [10, 12, 14], [10, 12, 13])]
    ids += [(None, [5, 6, 20], [21]), (None, [30], [31, 32])]
    twice = lm._loglikelihood_tokens(ids, disable_tqdm=True)
    assert sum(ran) == 4 + 2 + 1 + 2  # 5 6 7 8, 10 12, 20 after 5 6, 30 31
    assert twice == [lm._loglikelihood_tokens([one], disable_tqdm=True)[0] for one in ids] and twice[2] == twice[4]


def test_windows(tmp_path):
    """A model whose layers forget what is before their window is read again from the start."""
    model = tmp_path / "window"
    shutil.copytree(TALES, model)
    config = json.loads((model / "config.json").read_text())
    config.update(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=64, max_position_embeddings=2048)
    for key in ("use_sliding_window", "max_window_layers"):
        del config[key]
    (model / "config.json").write_text(json.dumps(config))
    lm = NibbleLM(str(model), dtype="f32")
    text = lm.tok_encode(" ".join(d["text"] for d in read_data("texts")))[:1500]
    pairs = [(None, text[:n] + [7], text[n:n + 4]) for n in (40, 700, 1400)]
    alone = [lm._loglikelihood_tokens([pair], disable_tqdm=True)[0] for pair in pairs]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        assert lm._loglikelihood_tokens([pairs[i] for i in order], disable_tqdm=True) == [alone[i] for i in order]


# ---- as the server and as nibble.eval ----


def test_as_server_and_eval(tmp_path):
    tasks = ("nibble_endings", "nibble_certain", "nibble_paragraphs", "nibble_continue")
    for recipe in (None, "8da4w"):
        options = {"dtype": "f32"} if recipe is None else {"recipe": recipe}
        arguments = [x for name, value in options.items() for x in ("--" + name, value)]
        with Server(TALES, *arguments) as s:
            served, of_served = evaluate("local-completions", {
                "model": "nibble-tales", "base_url": "http://127.0.0.1:%d/v1/completions" % s.port, "tokenizer": TALES, "max_length": 512,
                "max_retries": 1}, *tasks)
        ours, of_ours = evaluate("nibble", {"pretrained": TALES, **options}, *tasks, batch_size=4)
        for task in tasks:
            assert responses(of_ours[task]) == responses(of_served[task])
        assert ours["results"]["nibble_certain"]["acc,none"] == 1.0
        assert ours["config"]["nibble"]["cut_requests"] == 0

        lm = NibbleLM(TALES, **options)
        for d in read_data("paragraphs"):
            (tmp_path / "text.txt").write_text(d["begin"] + d["end"], encoding="utf-8")
            told = nibble.eval(TALES, tmp_path / "text.txt", **options)
            ids = lm.tok_encode(d["begin"] + d["end"])
            lm._loglikelihood_tokens([(None, ids[:1], ids[1:])], disable_tqdm=True)
            loss = 0.0
            for one in tokens_of(lm, ids):
                loss -= one
            assert told.predicted == len(ids) - 1 and told.loss == loss / told.predicted


def tokens_of(lm, ids):
    """The log-probability of each token but the first."""
    found = []
    job = nibble.lm_eval._score(ids[:1], [(0, ids[1:])], lambda _, nodes: found.extend(node.logprob for node in nodes))
    lm._lanes.run([job], sums=True)
    return found


def test_rolling():
    """Every token is predicted once: the first after the prefix, those of later windows after as many as fit."""
    lm = tales(max_length=48)
    text = read_data("texts")[0]["text"]
    ids, prefix = lm.tok_encode(text), lm.prefix_token_id
    assert len(ids) > 2 * 48 and len(ids) % 48 and prefix == 2255
    total, at = 0.0, 0
    while at < len(ids):
        end = min(at + 48, len(ids))
        window = ([prefix] + ids[:end - 1])[-48:] if at == 0 or end - at < 48 else ids[at - 1:end - 1]
        rows = lm.model.logits(window)[len(window) - (end - at):]
        sums, _ = lm.model._shared().log_sums(rows)
        total += sum(float(row[token]) - log_sum for row, token, log_sum in zip(rows, ids[at:end], sums, strict=True))
        at = end
    got = lm.loglikelihood_rolling(requests_of("loglikelihood_rolling", [(text,), ("",)]), disable_tqdm=True)
    assert math.isclose(got[0], total, rel_tol=1e-12) and got[1] == 0


# ---- texts ----


def generate(lm, *pairs):
    return lm.generate_until(requests_of("generate_until", pairs), disable_tqdm=True)


def test_texts():
    lm = tales()
    begin = "Once upon a time there was a king"
    whole = lm.model.complete(begin, max_tokens=40, temperature=0, repeat_penalty=1)
    assert generate(lm, (begin, {"max_gen_toks": 40}), (begin, {"max_new_tokens": 40, "until": "\0"})) == [whole] * 2
    assert generate(lm, (begin, {"max_tokens": 3})) == [lm.model.complete(begin, max_tokens=3, temperature=0, repeat_penalty=1)]
    stop = whole.split()[8]
    assert generate(lm, (begin, {"until": [stop, "never"], "max_gen_toks": 40})) == [whole.split(stop)[0]]
    # a special token has no text, but it can end one
    token = lm.model.tokenizer.encode(whole.split()[1], False)[0]
    assert not lm._is_special(token) and lm._is_special(2255)
    ended = NibbleLM(TALES, dtype="f32")
    ended.model._facts = None  # a model that ends no text by itself
    generation = ended._generation({"until": ["<|endoftext|>", "."]}, 0)
    assert generation.until == (".",) and 2255 in generation.ends
    assert lm._text([2255], [2255, token]) == lm.model.tokenizer.decode([token])


def test_sampling():
    lm = tales()
    begin, options = "The king said", {"do_sample": True, "temperature": 0.8, "top_k": 30, "top_p": 0.9, "max_gen_toks": 16, "seed": 3}
    one, two, other = generate(lm, (begin, options), (begin, options), (begin, {**options, "seed": 4}))
    assert one != two == other  # a repeat is drawn with the next seed
    assert one == lm.model.complete(begin, max_tokens=16, temperature=0.8, top_k=30, top_p=0.9, min_p=0, repeat_penalty=1, seed=3)
    assert generate(lm, (begin, options)) == [one]
    greedy = lm.model.complete(begin, max_tokens=16, temperature=0, repeat_penalty=1.5)
    assert generate(lm, (begin, {"max_gen_toks": 16, "repetition_penalty": 1.5})) == [greedy]


def test_generation_options():
    lm = NibbleLM(TALES, recipe="8da4w")
    for options, said in (({"num_beams": 4}, "num_beams is unknown"), ({"temperature": 0.7, "do_sample": False}, "temperature 0.7"),
                          ({"do_sample": True, "temperature": 0.0}, "do_sample=True"), ({"top_p": 0.9}, "top_p has no effect")):
        assert generate(lm, ("The king", {"max_gen_toks": 2, **options})) == generate(lm, ("The king", {"max_gen_toks": 2}))
        assert any(said in note for note in lm.get_model_info()["nibble"]["not_as_asked"])
        with pytest.raises(nibble.NotAsAsked, match=said):
            generate(NibbleLM(TALES, recipe="8da4w", strict=True), ("The king", {"max_gen_toks": 2, **options}))
    assert set(lm.get_model_info()["nibble"]["not_as_asked"].values()) == {1}
    with pytest.raises(nibble.BadInput, match="512 new tokens leave no room"):
        generate(lm, ("The king", {"max_gen_toks": 512}))


# ---- what is cut ----


def test_cut_contexts(caplog):
    lm = NibbleLM(TALES, dtype="f32", max_length=24)
    text = read_data("texts")[0]["text"]
    ids = lm.tok_encode(text)[:60]
    answers = lm._loglikelihood_tokens([(None, ids[:40], ids[40:45]), (None, ids[:20], ids[20:25]), (None, ids[:21], ids[21:26])],
                                       disable_tqdm=True)
    assert answers[0] == lm._loglikelihood_tokens([(None, ids[20:40], ids[40:45])], disable_tqdm=True)[0]
    assert lm.get_model_info()["nibble"] | {"cut_requests": 2, "cut_tokens": 21} == lm.get_model_info()["nibble"]
    begin = lm.model.detokenize(ids[:40])
    whole = generate(lm, (begin, {"max_gen_toks": 8}))
    assert whole == generate(lm, (lm.model.detokenize(ids[24:40]), {"max_gen_toks": 8}))
    assert lm.get_model_info()["nibble"]["cut_requests"] == 3
    with pytest.raises(nibble.BadInput, match="a continuation has 25 tokens, over the 24"):
        lm._loglikelihood_tokens([(None, ids[:2], ids[2:27])])
    with pytest.raises(nibble.BadInput, match="a continuation has no tokens"):
        lm._loglikelihood_tokens([(None, ids[:2], [])])
    strict = NibbleLM(TALES, dtype="f32", max_length=24, strict=True)
    with pytest.raises(nibble.NotAsAsked, match="loses its beginning"):
        strict._loglikelihood_tokens([(None, ids[:40], ids[40:45])])


# ---- special tokens and chats ----


def test_bos(tmp_path):
    lm = NibbleLM(TALES, dtype="f32", add_bos_token=True)
    plain = tales().tok_encode("The king")
    assert lm.tok_encode("The king") == [2255, *plain] == tales().tok_encode("<|endoftext|>The king")
    assert lm.tok_encode("<|endoftext|>The king") == [2255, *plain] and lm.tok_encode("The king", add_special_tokens=False) == plain
    assert NibbleLM(TALES, dtype="f32", prefix_token_id=9).prefix_token_id == 9
    assert (lm.prefix_token_id, lm.eot_token_id, lm.max_length) == (2255, 2255, 512)
    bare = tmp_path / "bare"  # a tokenizer without special tokens
    shutil.copytree(TALES, bare)
    tokenizer = json.loads((bare / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = []
    (bare / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in ("tokenizer_config.json", "generation_config.json"):
        (bare / name).unlink()
    config = json.loads((bare / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps({k: v for k, v in config.items() if not k.endswith("_token_id")}))
    lm = NibbleLM(str(bare), dtype="f32")
    assert lm.tok_encode("The king") == plain and lm.get_model_info()["nibble"]["prefix_token_id"] is None
    assert generate(lm, ("The king", {"max_gen_toks": 3})) == generate(tales(), ("The king", {"max_gen_toks": 3}))
    with pytest.raises(nibble.Usage, match="give prefix_token_id"):
        lm.loglikelihood(requests_of("loglikelihood", [("", " king")]), disable_tqdm=True)
    with pytest.raises(nibble.Usage, match="has no BOS token"):
        NibbleLM(str(bare), add_bos_token=True)


def test_chat_template():
    lm = NibbleLM(TALES, dtype="f32", chat_template=TEMPLATE)
    with open(TEMPLATE, encoding="utf-8") as f:
        assert lm.chat_template(True) == f.read()
    assert lm.chat_template(False) is None and lm.tokenizer_name == "models__nibble-tales+examples__tales.jinja"
    assert tales().tokenizer_name == "models__nibble-tales" and tales().chat_template(True) is None
    with pytest.raises(nibble.Unsupported, match="cannot be chosen by name"):
        lm.chat_template("tool_use")
    with pytest.raises(nibble.Unsupported):
        tales().apply_chat_template([{"role": "user", "content": "x"}])
    chat = [{"role": "user", "content": "Tell."}, {"role": "assistant", "content": " Once upon "}]
    assert lm.apply_chat_template(chat) == "Tell.\n\n Once upon \n\n"
    assert lm.apply_chat_template(chat, add_generation_prompt=False) == "Tell.\n\n Once upon "
    with pytest.raises(nibble.BadInput, match="unknown role"):
        lm.apply_chat_template([{"role": "narrator", "content": "x"}])


def test_system_message_refused(tmp_path):
    template = tmp_path / "no_system.jinja"
    template.write_text("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
                        "{{ m.content }}\n{% endfor %}", encoding="utf-8")
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Tell."}]
    lm = NibbleLM(TALES, dtype="f32", chat_template=str(template))
    assert lm.apply_chat_template(chat) == "Tell.\n"
    assert any("no system" in note for note in lm.get_model_info()["nibble"]["not_as_asked"])
    with pytest.raises(nibble.NotAsAsked, match="the system message is left out"):
        NibbleLM(TALES, dtype="f32", chat_template=str(template), strict=True).apply_chat_template(chat)


# ---- results ----


def run_program(folder, *arguments):
    environment = {**os.environ, "HF_HOME": str(folder / "hf"), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-m", "nibble.lm_eval", "run", *arguments], capture_output=True, text=True, timeout=1800,
                          env=environment)


def test_ledger_in_results(tmp_path):
    run = run_program(tmp_path, "--model", "nibble", "--model_args", "pretrained=%s,recipe=8da4w" % TALES, "--include_path", TASKS,
                      "--tasks", "nibble_certain", "--batch_size", "auto", "--output_path", str(tmp_path / "out"))
    assert run.returncode == 0, run.stderr
    line = nibble.plan(TALES, "8da4w").summary
    assert "36 asked 8da4w-g32" in line
    assert line in run.stderr
    found = list((tmp_path / "out").rglob("results_*.json"))
    assert len(found) == 1
    results = json.loads(found[0].read_text())
    assert results["results"]["nibble_certain"]["acc,none"] == 1.0
    assert results["config"]["nibble"]["ledger"] == line and results["config"]["batch_sizes"] == [8]
    assert results["config"]["nibble"] | {"recipe": "8da4w", "cut_requests": 0, "not_as_asked": {}} == results["config"]["nibble"]


def test_page(tmp_path):
    """The commands of docs/lm-eval.md print what the page says."""
    loader = importlib.machinery.SourceFileLoader("docs_run", os.path.join(ROOT, "tests", "docs", "run"))
    docs = importlib.util.module_from_spec(importlib.util.spec_from_loader("docs_run", loader))
    loader.exec_module(docs)
    docs.prepare(str(tmp_path), PROGRAM)
    (tmp_path / "python").symlink_to(os.path.join(ROOT, "python"))
    (tmp_path / "bin" / "python").write_text('#!/bin/sh\nexec "%s" "$@"\n' % sys.executable)
    (tmp_path / "bin" / "python").chmod(0o755)
    ran, printed = 0, None
    with open(os.path.join(ROOT, "docs", "lm-eval.md"), encoding="utf-8") as f:
        page = f.read()
    for line, information, body in docs.blocks(page):
        if information == ["sh", "test-python"]:
            done, _ = docs.run_block(information, body, str(tmp_path))
            assert done.returncode == 0, done.stderr
            ran, printed = ran + 1, done.stdout
        elif information[:2] == ["text", "output"]:
            assert printed is not None and docs.matches(body, printed) is None, (line, docs.matches(body, printed))
    assert ran == 2


def test_strict(tmp_path):
    """A recipe that cannot be done as asked ends before anything is evaluated."""
    refused = run_program(tmp_path, "--model", "nibble", "--model_args",
                          "pretrained=%s,recipe=8da4w,strict=True,without=linear_a8t_w4g*" % TALES, "--include_path", TASKS, "--tasks",
                          "nibble_certain")
    assert refused.returncode != 0 and "NotAsAsked" in refused.stderr
    with pytest.raises(TypeError, match="recepie"):
        NibbleLM(TALES, recepie="8da4w")
    with pytest.raises(nibble.Usage, match="batch_size 0"):
        NibbleLM(TALES, batch_size=0)


def test_cache(tmp_path):
    """Each answer is kept as soon as there is one, in the form that lm-eval reads again."""
    kept = []
    lm = tales()
    lm.set_cache_hook(type("Hook", (), {"add_partial": lambda self, *one: kept.append(one)})())
    pairs = pairs_of_endings()[:4]
    answers = lm.loglikelihood(requests_of("loglikelihood", pairs), disable_tqdm=True)
    assert sorted(kept) == sorted(("loglikelihood", pair, answer) for pair, answer in zip(pairs, answers))
    kept.clear()
    totals = lm.loglikelihood_rolling(requests_of("loglikelihood_rolling", [("The king",)]), disable_tqdm=True)
    assert kept == [("loglikelihood_rolling", ("The king",), totals[0])]
    kept.clear()
    texts = generate(lm, ("The king", {"max_gen_toks": 2}))
    assert kept == [("generate_until", ("The king", {"max_gen_toks": 2}), texts[0])]
    lm.set_cache_hook(lm_eval.api.model.CacheHook(None))

    how = {"use_cache": str(tmp_path / "cache")}
    first, of_first = evaluate("nibble", {"pretrained": TALES, "recipe": "8da4w"}, "nibble_certain", **how)
    again, of_again = evaluate("nibble", {"pretrained": TALES, "recipe": "8da4w"}, "nibble_certain", **how)
    assert responses(of_first["nibble_certain"]) == responses(of_again["nibble_certain"])
    assert again["config"]["nibble"]["ledger"] == first["config"]["nibble"]["ledger"]


# ---- case 6: a server with log-probabilities of new tokens only ----


class Broken(http.server.BaseHTTPRequestHandler):
    """Answers as the server of llama.cpp#27174: what it makes has log-probabilities, what it was given has none."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["echo"] and asked["logprobs"] == 1 and asked["max_tokens"] == 1
        answer = json.dumps({"choices": [
            {"index": i, "text": ",", "finish_reason": "length",
             "logprobs": {"tokens": [","], "token_logprobs": [-0.7], "top_logprobs": [{",": -0.7}], "text_offset": [0]}}
            for i in range(len(asked["prompt"]))]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def test_case_6():
    """lm-eval sums nothing to 0.0, for every choice: chance, in silence. A server that echoes log-probabilities, and this class,
    score what the model is certain of."""
    def through(port):
        made, samples = evaluate("local-completions", {
            "model": "nibble-tales", "base_url": "http://127.0.0.1:%d/v1/completions" % port, "tokenizer": TALES, "max_length": 512,
            "max_retries": 1}, "nibble_certain")
        return made["results"]["nibble_certain"]["acc,none"], responses(samples["nibble_certain"])

    broken = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Broken)
    threading.Thread(target=broken.serve_forever, daemon=True).start()
    try:
        accuracy, answers = through(broken.server_port)
    finally:
        broken.shutdown()
        broken.server_close()
    assert accuracy == 0.25 and answers == [(0.0, True)] * 64
    with Server(TALES, "--dtype", "f32") as s:
        accuracy, answers = through(s.port)
    assert accuracy == 1.0 and all(value < 0 for value, _ in answers)
    made, samples = evaluate("nibble", {"pretrained": TALES, "dtype": "f32"}, "nibble_certain")
    assert made["results"]["nibble_certain"]["acc,none"] == 1.0 and responses(samples["nibble_certain"]) == answers
