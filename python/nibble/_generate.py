# SPDX-License-Identifier: Apache-2.0
"""Text, piece by piece."""
from __future__ import annotations

import contextlib
import ctypes
import json
import math
from ctypes import byref
from dataclasses import dataclass
from types import TracebackType
from typing import (TYPE_CHECKING, Any, Iterator, Mapping, NamedTuple, Optional, Sequence, TypedDict,
                    Union)

from . import _api
from ._engine import fill
from ._errors import Error, Usage
from ._library import lib

if TYPE_CHECKING:
    from ._session import Session

FINISHES = {_api.NIB_FINISH_STOP: "stop", _api.NIB_FINISH_LENGTH: "length",
            _api.NIB_FINISH_CANCELLED: "cancelled", _api.NIB_FINISH_CONTEXT: "context"}
Schema = Union[str, Mapping[str, Any]]


class TokenLogprob(NamedTuple):
    """A token and the natural logarithm of its probability in the model's own distribution, before
    temperature, filters and penalties."""

    id: int
    logprob: float
    text: str


class Piece(str):
    """New text, as a str. It may be empty: an incomplete character and the possible start of a stop
    string are held back."""

    token: Optional[int]
    """Token id; None: text that was held back, at the end."""
    logprob: Optional[float]
    """Of the token; None: `logprobs` was not asked for."""
    top: tuple[TokenLogprob, ...]
    """The likeliest tokens at this position, the likeliest first."""

    @property
    def text(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Stats:
    """Statistics of a generation, so far or at its end."""

    prompt_tokens: int
    new_tokens: int
    cached_tokens: int
    first_token_s: float
    prefill_s: float
    decode_s: float
    token_s: Optional[float]
    """Seconds per token after the first; None: there was none."""
    predicted_token_s: Optional[float]
    """The same as planned; None: unknown."""
    decode_gb_per_s: float
    steps: int
    """After the prompt."""
    lookup: int
    drafted: int
    accepted: int
    """Most tokens drafted per step; total drafted; total accepted."""
    weight_bytes: int
    cache_bytes: int
    peak_bytes: int
    temperature: float
    top_p: float
    min_p: float
    repeat_penalty: float
    top_k: int
    seed: int
    sampler: Optional[str]
    """Logits on a device: the kernel that sampled the tokens."""
    sampler_why: str
    """Why no kernel of the device did."""
    drafts: int
    model_drafted: int
    model_accepted: int
    """Drafts of a draft model: most tokens per step (0: there is none); total drafted; total accepted."""
    model_s: float
    """Seconds in steps of the draft model."""
    vain_s: float
    undrafted_s: float
    """Seconds lost to drafts that gains did not make up for; what the text would have taken without drafts."""
    recomputed_tokens: int
    """Prompt tokens that were in the KV cache, and were computed again."""
    recomputed_why: Optional[str]
    """Why the cache could not be continued from there: "state" or "window"."""


def stats_of(s: Any) -> Stats:
    def known(value: float) -> Optional[float]:
        return None if math.isnan(value) else value

    values = {name: getattr(s, name) for name in Stats.__dataclass_fields__}
    values.update(token_s=known(s.token_s), predicted_token_s=known(s.predicted_token_s),
                  sampler=s.sampler.decode() if s.sampler is not None else None,
                  sampler_why=s.sampler_why.decode("utf-8", "replace"),
                  recomputed_why=s.recomputed_why.decode() if s.recomputed_why is not None else None)
    return Stats(**values)


def or_off(name: str, value: Any) -> Any:
    """A number as the library takes it: there, 0 is the default, and negative is off."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not value >= 0:
            raise Usage(f"{name} {value} is not a number from 0 on; leave it out for the default")
        return value if value > 0 else -1
    return value


def sampling(temperature: Optional[float], top_k: Optional[int], top_p: Optional[float],
             min_p: Optional[float], repeat_penalty: Optional[float],
             seed: Optional[int]) -> dict[str, Any]:
    numbers = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
               "repeat_penalty": repeat_penalty}
    for name in ("top_p", "repeat_penalty"):
        if numbers[name] == 0:
            raise Usage(f"{name} 0 is not a number above 0; 1 turns it off")
    return {**{name: or_off(name, value) for name, value in numbers.items()}, "seed": seed}


class Generation(Iterator[Piece]):
    """An iterator over the pieces of a text. It uses its session until it is over or closed."""

    def __init__(self, session: "Session", options: dict[str, Any]) -> None:
        self._session, self._keeps = session, session._model
        self._engine = session._engine
        self._options = fill(_api.nib_generate_options(), **options)  # strings must live as long
        self._finish: Optional[str] = None
        self._stats: Optional[Stats] = None
        self._ready: list[Piece] = []  # a piece whose call was interrupted waits for the next one
        handle = None
        try:
            session._enter(self)
            handle = self._engine.open(
                session._handle, "generation", lib.nib_generator_close,
                lambda out, err: lib.nib_generator_open(out, session._handle.pointer,
                                                        byref(self._options), err))
            self._handle = handle
            handle.own(self)
        except BaseException:
            if handle is not None:
                handle.close(wait=False)
            session._leave(self)
            raise

    def __iter__(self) -> "Generation":
        return self

    def __next__(self) -> Piece:
        try:
            return self._next()
        except (Error, StopIteration):
            raise
        except BaseException:
            # Ctrl-C, or an exception of a callback: its traceback holds this object, which would
            # keep the session in use
            self._abandon()
            raise

    def _next(self) -> Piece:
        if self._ready:
            return self._ready.pop()
        if self._finish is not None:
            raise StopIteration

        def take(err: Any) -> int:
            piece = _api.nib_piece(size=ctypes.sizeof(_api.nib_piece))
            status: int = lib.nib_generator_next(self._handle.pointer, byref(piece), err)
            if status != _api.NIB_OK or piece.over:
                self._stats = self._read_stats()
                self._finish = (FINISHES.get(piece.finish, "unknown") if status == _api.NIB_OK else
                                "cancelled" if status == _api.NIB_CANCELLED else "failed")
            else:
                self._ready.append(_piece_of(piece))
            return status

        try:
            self._engine.run(self._handle, take)
        finally:
            if self._finish is not None:
                self._end()
        if not self._ready:
            raise StopIteration
        return self._ready.pop()

    @property
    def finish(self) -> Optional[str]:
        """Why the text ended: "stop" (a stop string or an end-of-text token), "length" (max_tokens),
        "context" (it is full), "cancelled" (by progress, by Ctrl-C, or it was closed), "failed" (it
        raised an error); None: it is not over."""
        return self._finish

    @property
    def stats(self) -> Stats:
        """Statistics so far."""
        if self._stats is None:
            found: list[Stats] = []
            self._engine.run(self._handle, lambda err: found.append(self._read_stats()))
            return found[0]
        return self._stats

    def close(self) -> None:
        """Ends the generation, so that its session is free. Does nothing if it is over."""
        if self._finish is not None or self._handle.closed:
            self._end()
            return
        self._finish = "cancelled"
        try:
            self._stats = self.stats
        finally:
            self._end()

    def _abandon(self) -> None:
        """As `close`, but never waits for a call of another thread."""
        if self._engine.lock.locked():
            self._finish = self._finish or "cancelled"
            self._end(wait=False)
        else:
            with contextlib.suppress(Error):
                self.close()

    def _end(self, wait: bool = True) -> None:
        self._handle.close(wait)
        self._session._leave(self)

    def _read_stats(self) -> Stats:
        s = _api.nib_generate_stats(size=ctypes.sizeof(_api.nib_generate_stats))
        lib.nib_generator_stats_get(self._handle.pointer, byref(s))
        return stats_of(s)

    def __enter__(self) -> "Generation":
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<nibble.Generation: {self._finish or 'not over'}; iterate over it for its text>"


def _text_of(struct: Any) -> str:
    """`text` of `text_size` bytes: as a string of C, it would end at its first zero."""
    at = ctypes.c_void_p.from_buffer(struct, type(struct).text.offset)
    return ctypes.string_at(at, struct.text_size).decode("utf-8")


def _piece_of(piece: Any) -> Piece:
    made = Piece(_text_of(piece))
    made.token = piece.token if piece.token >= 0 else None
    made.logprob = None if math.isnan(piece.logprob) else piece.logprob
    made.top = tuple(TokenLogprob(t.id, t.logprob, _text_of(t))
                     for t in piece.likeliest[:piece.likeliest_count])
    return made


def schema_text(schema: Optional[Schema]) -> Optional[str]:
    """A JSON schema as text; a str is taken as it is."""
    return json.dumps(schema) if isinstance(schema, Mapping) else schema


class GenerateOptions(TypedDict, total=False):
    """Options of `Model.generate`."""

    max_tokens: Optional[int]
    temperature: Optional[float]
    top_k: Optional[int]
    top_p: Optional[float]
    min_p: Optional[float]
    repeat_penalty: Optional[float]
    seed: int
    stop: Union[str, Sequence[str]]
    ignore_eos: bool
    schema: Optional[Schema]
    logprobs: int


def generate_options(*, max_tokens: Optional[int] = None, temperature: Optional[float] = None,
                     top_k: Optional[int] = None, top_p: Optional[float] = None,
                     min_p: Optional[float] = None, repeat_penalty: Optional[float] = None,
                     seed: int = 0, stop: Union[str, Sequence[str]] = (), ignore_eos: bool = False,
                     schema: Optional[Schema] = None, logprobs: int = 0) -> dict[str, Any]:
    """The members of a struct."""
    return {**sampling(temperature, top_k, top_p, min_p, repeat_penalty, seed),
            "max_tokens": or_off("max_tokens", max_tokens), "stop": stop or None,
            "ignore_eos": ignore_eos, "schema": schema_text(schema), "logprobs": logprobs}
