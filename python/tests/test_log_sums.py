# SPDX-License-Identifier: Apache-2.0
"""Session.log_sums: log-probabilities of tokens that the caller chooses, with and without numpy."""
import array
import math

import pytest

import nibble

from conftest import TALES


@pytest.fixture(scope="module")
def session():
    with nibble.Model(TALES, recipe="8da4w") as model, model.session() as opened:
        yield opened


def test_as_generated(session):
    model = session._model
    ids = model.tokenize("Once upon a time", add_special=True)
    pieces = list(model.generate("Once upon a time", max_tokens=4, temperature=0, logprobs=1))
    ids += [p.token for p in pieces if p.token is not None]
    session.truncate(0, 0)
    logits = session.step([(0, at, token) for at, token in enumerate(ids)])
    sums, likeliest = session.log_sums(logits)
    assert len(sums) == len(likeliest) == len(ids)
    for piece, row in zip([p for p in pieces if p.token is not None], range(len(ids) - 5, len(ids) - 1)):
        assert likeliest[row] == piece.token
        assert float(logits[row][piece.token]) - sums[row] == piece.logprob


def test_rows(session):
    numpy = pytest.importorskip("numpy")
    rows = numpy.zeros((2, session.vocab), numpy.float32)
    rows[1, 5] = rows[1, 7] = 3
    sums, likeliest = session.log_sums(rows)
    assert math.isclose(sums[0], math.log(session.vocab), rel_tol=1e-15) and likeliest == [0, 5]
    assert session.log_sums(rows.tolist()) == session.log_sums(rows.astype("float64")) == session.log_sums(rows[:, ::1]) == (sums, likeliest)
    assert session.log_sums(rows[1:]) == (sums[1:], likeliest[1:])
    assert session.log_sums(rows[:0]) == ([], [])
    for wrong in (rows[0], rows[:, 1:], rows[None]):
        with pytest.raises(ValueError, match=r"an array \[rows, 2256\]"):
            session.log_sums(wrong)
    rows[1, 0] = numpy.nan
    with pytest.raises(nibble.CheckFailed, match="row 2 of 2"):
        session.log_sums(rows)


def test_without_numpy(session, monkeypatch):
    monkeypatch.setattr(nibble._arrays, "_numpy", lambda: None)
    session.truncate(0, 0)
    logits = session.step([(0, 0, 1), (0, 1, 2)])
    assert isinstance(logits, memoryview)
    sums, likeliest = session.log_sums(logits)
    whole = logits.tolist()
    assert likeliest == [row.index(max(row)) for row in whole]
    assert all(math.isclose(s, math.log(math.fsum(map(math.exp, row))), rel_tol=1e-12) for s, row in zip(sums, whole))
    session.truncate(0, 0)
    assert session.log_sums(session.step([(0, 0, 1, 0)])) == ([], [])
    with pytest.raises(TypeError, match="float32, not of 'd'"):
        session.log_sums(memoryview(array.array("d", [0.0] * session.vocab)))
    with pytest.raises(ValueError, match=r"an array \[rows, 2256\]"):
        session.log_sums(memoryview(array.array("f", [0.0] * session.vocab)))
