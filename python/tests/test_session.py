# SPDX-License-Identifier: Apache-2.0
"""Steps, logits, hidden states, states as bytes, samplers."""
import gc
import random
import subprocess

import numpy
import pytest

import nibble
from nibble import HIDDEN, LOGITS

TALES = "models/nibble-tales"
TOKENS = [1, 300, 45, 7, 1200, 9]


def test_logits_of_all_positions(model):
    every = model.logits(TOKENS)
    assert every.shape == (len(TOKENS), model.vocab) and every.dtype == numpy.float32 and every.flags.writeable
    assert numpy.array_equal(model.logits(TOKENS, last=True), every[-1:])
    with model.session(sequences=3) as session:
        together = session.step([(s, at, t) for s in range(3) for at, t in enumerate(TOKENS)])
        for s in range(3):
            assert numpy.array_equal(together[s * 6:s * 6 + 6], every)  # the same bits in any batch
        session.truncate(1, 2)
        some = session.step([(1, 2, TOKENS[2], 0), (1, 3, TOKENS[3], LOGITS), (2, 6, 5)])
        assert some.shape == (2, model.vocab) and numpy.array_equal(some[0], every[3])
        assert session.step([(0, 6, 5, 0)]).shape == (0, model.vocab)


def test_the_likeliest_token_is_the_greedy_one(model):
    prompt = model.tokenize("Once upon", add_special=True, parse_special=True)
    first = next(model.generate("Once upon", max_tokens=1, temperature=0))
    assert int(model.logits(prompt, last=True).argmax()) == first.token


def test_arrays_are_used_in_place(model):
    every = model.logits(TOKENS)
    slots = numpy.array([[0, at, t, LOGITS] for at, t in enumerate(TOKENS)], numpy.int32)
    with model.session() as session:
        assert numpy.array_equal(session.step(slots), every)
        session.truncate(0, 0)
        assert numpy.array_equal(session.step(numpy.repeat(slots, 2, axis=0)[::2]), every)  # with strides
        for wrong in (slots.astype(numpy.int64), slots[:, :3], slots[0]):
            with pytest.raises(TypeError, match="int32"):
                session.step(wrong)


def test_views(model):
    with model.session() as session:
        view = session.step([(0, 0, 1), (0, 1, 300)], copy=False)
        assert not view.flags.writeable and not view.flags.owndata
        with pytest.raises(ValueError):
            view[0, 0] = 1
        before = view.copy()
        session.step([(0, 2, 45)], copy=False)
        assert not numpy.array_equal(view[0], before[0])  # overwritten: no copy was made
        with pytest.raises(nibble.Usage, match="view"):
            session.step([(0, 3, 7), (0, 4, 9), (0, 5, 9)])
        with pytest.raises(nibble.Usage, match="view"):
            session.generate("Once")
        part = view[1]
        del view
        gc.collect()
        with pytest.raises(nibble.Usage, match="view"):
            session.generate("Once")
        del part
        gc.collect()
        session.step([(0, 3, 7), (0, 4, 9), (0, 5, 9)])


def test_a_view_keeps_the_memory_of_a_closed_session():
    model = nibble.Model(TALES)
    view = model.logits(TOKENS, copy=False)
    wanted = view.copy()
    model.close()
    del model
    gc.collect()
    with nibble.Model(TALES) as other:  # uses freed memory, if there is any
        other.logits([2, 3, 4, 5, 6, 7])
        assert numpy.array_equal(view, wanted)
    del view
    gc.collect()


def test_hidden_states(model):
    hidden = model.hidden(TOKENS)
    assert hidden.shape == (len(TOKENS), model.width) and hidden.dtype == numpy.float32
    assert numpy.array_equal(model.hidden(TOKENS, last=True), hidden[-1:])
    with model.session(sequences=2) as session:
        assert session.hidden().shape == (0, model.width)
        logits = session.step([(0, 0, 1, HIDDEN), (0, 1, 300, LOGITS), (1, 0, 1, LOGITS | HIDDEN)])
        assert logits.shape[0] == 2
        found = session.hidden(copy=False)
        assert numpy.array_equal(found[0], hidden[0]) and numpy.array_equal(found[1], hidden[0])
        assert not found.flags.writeable


def test_hidden_times_the_output_layer_are_the_logits():
    with nibble.Model("models/nibble-tales", dtype="f32") as model:
        hidden, logits = model.hidden(TOKENS), model.logits(TOKENS)
    table = stored("lm_head.weight", "model.embed_tokens.weight")
    assert numpy.allclose(hidden @ table.T, logits, rtol=1e-4, atol=1e-4)


def stored(*names):
    """A bf16 tensor of the model's file, as f32."""
    import json
    import struct
    with open(f"{TALES}/model.safetensors", "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        at = f.tell()
        found = next(header[name] for name in names if name in header)
        f.seek(at + found["data_offsets"][0])
        data = f.read(found["data_offsets"][1] - found["data_offsets"][0])
    assert found["dtype"] == "BF16"
    return (numpy.frombuffer(data, numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32).reshape(found["shape"])


def test_states(model):
    with model.session(sequences=2) as session:
        session.step([(0, at, t) for at, t in enumerate(TOKENS)])
        state = session.save(0)
        assert isinstance(state, bytes) and len(state) > 1000
        wanted = session.step([(0, len(TOKENS), 77)])
        for same in (state, bytearray(state), memoryview(state)):
            assert session.load(same, 1) == len(TOKENS)
            assert numpy.array_equal(session.step([(1, len(TOKENS), 77)]), wanted)
        with model.session() as other:
            assert other.load(state) == len(TOKENS)
            assert numpy.array_equal(other.step([(0, len(TOKENS), 77)]), wanted)
    with nibble.Model(TALES, recipe="int8wo") as different, different.session() as session, pytest.raises(nibble.NotAsAsked):
        session.load(state)


def test_any_bytes_are_safe_to_load(model):
    draw = random.Random(5)
    with model.session() as session:
        session.step([(0, at, t) for at, t in enumerate(TOKENS)])
        state = session.save()
        for size in [0, 1, 7, 8, 64, len(state) - 1] + [draw.randrange(len(state)) for _ in range(40)]:
            with pytest.raises((nibble.BadInput, nibble.NotAsAsked)):
                session.load(state[:size])
        refused = 0
        for _ in range(200):
            changed = bytearray(state)
            changed[draw.randrange(min(len(state), 400))] ^= 1 << draw.randrange(8)
            try:
                session.load(changed)
                session.step([(0, session.load(state), 5)])
            except nibble.Error as e:
                assert e.status in ("BAD_INPUT", "NOT_AS_ASKED", "UNSUPPORTED", "NO_MEMORY")
                refused += 1
        assert refused > 0


def test_sampler(model):
    """A loop of one's own draws the tokens of generate."""
    options = {"temperature": 0.7, "top_k": 20, "seed": 11}
    wanted = [p.token for p in model.generate("Once upon", max_tokens=10, ignore_eos=True, **options) if p.token is not None]
    tokens = model.tokenize("Once upon", add_special=True, parse_special=True)
    with model.session() as session:
        sampler = session.sampler(**options)
        logits = session.step([(0, at, t, LOGITS if at + 1 == len(tokens) else 0) for at, t in enumerate(tokens)])[-1]
        prompt = len(tokens)
        while len(tokens) < prompt + 10:
            assert sampler.draw(list(logits), tokens) == sampler.draw(logits, tokens)
            tokens.append(sampler.draw(logits, tokens))
            logits = session.step([(0, len(tokens) - 1, tokens[-1])], copy=False)[0]
        with pytest.raises(nibble.CheckFailed, match="NaN"):
            sampler.draw([float("nan")] * model.vocab, tokens)
        with pytest.raises(ValueError, match=str(model.vocab)):
            sampler.draw([1.0], tokens)
        sampler.close()
        with pytest.raises(nibble.Usage, match="closed"):
            sampler.draw(logits, tokens)
    assert tokens[prompt:] == wanted


def test_refused(model):
    with model.session(sequences=2) as session:
        for slots, error in (([(2, 0, 1)], nibble.Usage), ([(-1, 0, 1)], nibble.Usage), ([(0, 1, 1)], nibble.Usage),
                             ([(0, -1, 1)], nibble.Usage), ([(0, 0, model.vocab)], nibble.BadInput), ([(0, 0, -1)], nibble.BadInput),
                             ([(0, 0, 1, 4)], nibble.Usage), ([(0, 0, 1), (0, 2, 1)], nibble.Usage),
                             ([(0, 0, 1 << 31)], ValueError), ([(0, 0, 1, -1)], ValueError), ([(0, 0, 1.5)], TypeError),
                             ([(0, 0)], TypeError), ([(0, 0, "1")], TypeError), ([(0, at, 1) for at in range(513)], nibble.NoMemory)):
            with pytest.raises(error):
                session.step(slots)
        assert session.step([(0, 0, 1)]).shape[0] == 1  # a refused step changes nothing
        for call in (lambda: session.truncate(2, 0), lambda: session.truncate(0, -1), lambda: session.save(2),
                     lambda: session.load(b"", -1)):
            with pytest.raises((nibble.Usage, nibble.BadInput)):
                call()
        for bad in ("state", 5, None):
            with pytest.raises(TypeError):
                session.load(bad)
        assert session.step([]).shape == (0, model.vocab)
    for bad in (0, -1):
        with pytest.raises(nibble.Usage):
            model.session(sequences=bad)
    with pytest.raises(nibble.Usage, match="no tokens"):
        model.logits([])


def test_a_view_of_numpy_is_not_needed(process):
    done = process("""
        import sys
        sys.modules["numpy"] = None
        import nibble
        model = nibble.Model("models/nibble-tales")
        rows = model.logits([1, 300, 45])
        assert isinstance(rows, memoryview) and rows.shape == (3, model.vocab) and rows.format == "f"
        assert model.logits([1, 300, 45], last=True)[0, 5] == rows[2, 5]
        view = model.logits([1], copy=False)
        assert view.readonly and view[0, 7] == rows[0, 7]
        session = model.session()
        assert len(session.step([(0, 0, 1, 0)])) == 0
        sampler = session.sampler(temperature=0)
        row = rows[2:3]
        print(sampler.draw(row, [1, 300, 45]))
        """)
    assert done.returncode == 0, done.stderr
    with nibble.Model(TALES) as model:
        assert int(done.stdout) == int(model.logits([1, 300, 45])[2].argmax())
