# SPDX-License-Identifier: Apache-2.0
"""Text and token ids."""
import threading

import pytest

import nibble

TALES = "models/nibble-tales"
TEXTS = ["Once upon a time", "", "é漢字 🦊", "  two  spaces ", "line\nline", "nul \0 in the middle"]


def test_texts(model):
    alone = nibble.Tokenizer(TALES)
    for text in TEXTS:
        ids = alone.encode(text)
        assert ids == model.tokenize(text) == model.tokenizer.encode(text)
        assert all(isinstance(i, int) and 0 <= i < len(alone) for i in ids)
        assert alone.decode(ids) == model.detokenize(ids) == text
    assert alone.vocab == model.tokenizer.vocab == len(alone)
    assert (alone.bos, alone.eos, alone.adds_bos) == (model.tokenizer.bos, model.tokenizer.eos, model.tokenizer.adds_bos)


def test_special_tokens(model):
    tokenizer = model.tokenizer
    end = model.ends[0]
    spelled = tokenizer.decode([end])
    assert tokenizer.encode(spelled, parse_special=True) == [end]
    assert end not in tokenizer.encode(spelled)
    if tokenizer.adds_bos:
        assert tokenizer.encode("Once", add_special=True) == [tokenizer.bos, *tokenizer.encode("Once")]
    else:
        assert tokenizer.encode("Once", add_special=True) == tokenizer.encode("Once")


def test_ids_without_a_token(model):
    assert set(model.detokenize([-1, 1 << 30])) == {"\ufffd"}
    for bad, error in (([1 << 31], ValueError), ([1.5], TypeError), (["1"], TypeError), ([True], TypeError)):
        with pytest.raises(error):
            model.detokenize(bad)


def test_not_a_text(model):
    with pytest.raises(TypeError):
        model.tokenize(b"Once")
    with pytest.raises(ValueError):
        model.tokenize("\ud800")
    with pytest.raises(nibble.IOFailed):
        nibble.Tokenizer("no/such/tokenizer.json")


def test_threads_use_it_at_once(model):
    """While the model generates, too: a tokenizer does not wait for its engine."""
    text = "The king and the wolf went into the wood. " * 20
    wanted = model.tokenize(text)
    failed = []

    def work():
        for _ in range(50):
            if model.detokenize(model.tokenize(text)) != text or model.tokenize(text) != wanted:
                failed.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    generated = model.complete("Once", max_tokens=40, temperature=0)
    for t in threads:
        t.join()
    assert not failed and generated


def test_closed_in_the_middle():
    """Closing waits for no thread that uses the tokenizer, and none of them crashes."""
    text = "The king and the wolf went into the wood. " * 400
    for _ in range(5):
        model = nibble.Model(TALES)
        tokenizer, ended = model.tokenizer, []

        def work():
            try:
                while True:
                    tokenizer.encode(text)
            except nibble.Usage as e:
                ended.append(str(e))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        model.close()
        for t in threads:
            t.join(60)
        assert ended == ["the model is closed"] * 3


def test_facts(model):
    facts = model.facts
    assert (facts.vocab, facts.width, facts.layers) == (2256, 224, 5)
    assert model.vocab == 2256 and model.width == 224 and facts.heads % facts.kv_heads == 0
    assert facts.head_dim * facts.heads == facts.width and facts.context == 512
    assert model.ends and all(isinstance(i, int) for i in model.ends) and model.architecture == facts.architecture
