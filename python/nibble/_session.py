# SPDX-License-Identifier: Apache-2.0
"""Sessions: packed weights and a KV cache, steps over tokens of several sequences, states."""
from __future__ import annotations

import ctypes
import json
import time
import weakref
from ctypes import byref
from types import TracebackType
from typing import (TYPE_CHECKING, Any, Callable, Iterable, Mapping, Optional, Sequence, Union)

from . import _api
from ._arrays import Floats, Lent, floats_in, floats_of, rows_in, slots_of
from ._engine import fill, integer, say
from ._errors import Usage
from ._generate import GenerateOptions, Generation, generate_options, sampling
from ._library import Sink, lib
from ._plan import Plan, ledger_lines, read_plan
from ._tokenizer import ids_array

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._model import Model

LOGITS = _api.NIB_SLOT_LOGITS
HIDDEN = _api.NIB_SLOT_HIDDEN
Messages = Union[str, Sequence[Mapping[str, Any]]]
Slot = Union[tuple[int, int, int], tuple[int, int, int, int]]


class Session:
    """Weights packed as planned, and a KV cache for `sequences` sequences. Made by `Model.session`.

    >>> model = nibble.Model("models/nibble-tales")
    >>> with model.session(sequences=2) as session:
    ...     session.step([(0, 0, 1), (1, 0, 1)]).shape
    (2, 2256)
    """

    def __init__(self, model: "Model", sequences: int = 1, shared: bool = False) -> None:
        # the model holds its shared session, which would keep it until the next collection
        self._model_ref: Callable[[], Any] = weakref.ref(model) if shared else lambda: model
        self._engine = model._engine
        self.sequences = integer("sequences", ctypes.c_int, sequences)
        self._user: Optional[Callable[[], Optional[object]]] = None
        self._lent: "weakref.WeakSet[Lent]" = weakref.WeakSet()
        self._rows = {"logits": 0, "hidden": 0}
        self._hidden_rows = 0
        self._said: set[str] = set()
        planned = model._open_plan(sequences=self.sequences)  # lives as long as the session
        planned.own(self)
        self._planned = planned
        self._handle = self._engine.open(
            planned, "session", lib.nib_session_close,
            lambda out, err: lib.nib_session_open(out, model._handle.pointer, planned.pointer,
                                                  self.sequences, err))
        ran = lib.nib_session_plan(self._handle.check())
        self._plan = read_plan(self._handle, ran)
        self.vocab: int = lib.nib_session_vocab(self._handle.check())
        """Logits per token."""
        self.context: int = self._plan.context
        """Tokens per sequence."""
        self._say(ledger_lines(self._handle, ran))
        if self._plan.counts["substituted"]:
            self._say([self._plan.summary])

    @property
    def _model(self) -> "Model":
        model: "Model" = self._model_ref()
        return model

    def plan(self) -> Plan:
        """The plan that runs. It differs from the model's if the device refused something."""
        return self._plan

    # ---- steps ----

    def step(self, slots: Union[Iterable[Slot], Any], *, copy: bool = True) -> Floats:
        """Runs one forward step over tokens of any sequences, each with its next positions in order.

        slots: (sequence, position, token) or (sequence, position, token, outputs), where outputs is
        a sum of `LOGITS` (the default) and `HIDDEN`; or an int32 array [slots, 4], used in place.
        Returns the logits of the next token, float32 [slots with LOGITS, vocab], in slot order.
        copy=False: a read-only view that the next step overwrites.

        Usage: no such sequence, or not its next position; BadInput: a token outside the vocabulary;
        NoMemory: the context is full.
        """
        array, count, rows, hidden = slots_of(slots)
        self._check_free("a step")
        self._check_lent({"logits": rows, "hidden": hidden})
        out = ctypes.POINTER(ctypes.c_float)()
        made: list[Floats] = []

        def run(err: Any) -> int:
            status: int = lib.nib_session_step(self._handle.pointer, array, count, byref(out), err)
            if status == _api.NIB_OK:
                self._hidden_rows = hidden
                self._rows = {"logits": max(rows, self._rows["logits"]),
                              "hidden": max(hidden, self._rows["hidden"])}
                made.append(self._floats("logits", out, rows, self.vocab, copy))
            return status

        self._engine.run(self._handle, run)
        return made[0]

    def hidden(self, *, copy: bool = True) -> Floats:
        """Hidden states of the last step, after the final norm: float32 [slots with HIDDEN, width],
        in slot order. copy=False: a read-only view that the next step overwrites."""
        made: list[Floats] = []
        width = self._model.width

        def read(err: Any) -> None:
            out = lib.nib_session_hidden(self._handle.pointer)
            made.append(self._floats("hidden", out, self._hidden_rows if out else 0, width, copy))

        self._engine.run(self._handle, read)
        return made[0]

    def _floats(self, what: str, pointer: Any, rows: int, columns: int, copy: bool) -> Floats:
        lent = None
        if not copy and rows > 0:
            lent = Lent(self._handle, what)
            self._lent.add(lent)
        return floats_of(pointer, rows, columns, lent)

    def _check_lent(self, wanted: Mapping[str, int]) -> None:
        """The library moves its rows when a step asks for more of them than any before."""
        for lent in list(self._lent):
            if wanted[lent.what] > self._rows[lent.what]:
                raise Usage(
                    f"a view of the {lent.what} of an earlier step is in use, and this call needs "
                    f"more rows of them, which would move them; delete the view, or pass copy=True")

    def log_sums(self, logits: Any) -> tuple[list[float], list[int]]:
        """For log-probabilities of tokens that you choose: of each row of logits [rows, vocab], the
        natural logarithm of the sum of all exponentials, in double, and the likeliest token (of
        several, the smallest). So log p(token) = float(logits[row][token]) - sums[row], with the
        bits that `generate` and `nibble.eval` report.

        CheckFailed: a logit is NaN or positive infinity.

        >>> model = nibble.Model("models/nibble-tales")
        >>> with model.session() as session:
        ...     logits = session.step([(0, 0, 1), (0, 1, 2)])
        ...     sums, likeliest = session.log_sums(logits)
        >>> logprob = float(logits[1][likeliest[1]]) - sums[1]
        """
        values, rows = rows_in(logits, self.vocab)
        sums, likeliest = (ctypes.c_double * rows)(), (ctypes.c_int32 * rows)()
        self._engine.run(self._handle, lambda err: lib.nib_session_log_sums(
            sums, likeliest, self._handle.pointer, values, rows, err))
        return sums[:], likeliest[:]

    def truncate(self, sequence: int, position: int) -> None:
        """Rolls a sequence back to `position`. Usage: no such sequence, or layers with a window no
        longer hold what is before `position`; 512 positions back, or to 0, always works."""
        at = (integer("sequence", ctypes.c_int32, sequence),
              integer("position", ctypes.c_int32, position))
        self._check_free("truncate")
        self._engine.run(self._handle, lambda err: lib.nib_session_truncate(
            self._handle.pointer, at[0], at[1], err))

    # ---- states ----

    def save(self, sequence: int = 0) -> bytes:
        """The state of a sequence: its keys and values, and what they belong to."""
        number, sink = integer("sequence", ctypes.c_int32, sequence), Sink()
        self._check_free("save")
        try:
            self._engine.run(self._handle, lambda err: lib.nib_session_save(
                self._handle.pointer, number, byref(sink.struct), err))
        finally:
            data = sink.close()
        return data

    def load(self, state: Union[bytes, bytearray, memoryview], sequence: int = 0) -> int:
        """Replaces the state of a sequence; returns its next position. Any bytes are safe to load.

        BadInput: not a whole state; NotAsAsked: of other weights, or computed in other types;
        Unsupported: a later format; NoMemory: longer than the context.
        """
        number, length = integer("sequence", ctypes.c_int32, sequence), ctypes.c_int32()
        data = bytes(memoryview(state))  # an int is not a state of that many bytes
        self._check_free("load")
        self._engine.run(self._handle, lambda err: lib.nib_session_load(
            self._handle.pointer, number, data, len(data), byref(length), err))
        return length.value

    # ---- text ----

    def generate(self, prompt: str = "", **options: Unpack[GenerateOptions]) -> Generation:
        """As `Model.generate`, from the start of sequence 0 of this session."""
        return self._generation({"prompt": prompt}, options)

    def chat(self, messages: Messages, tools: Optional[Any] = None, *,
             variables: Optional[Any] = None, template: Optional[str] = None,
             **options: Unpack[GenerateOptions]) -> Generation:
        """As `Model.chat`, from the start of sequence 0 of this session."""
        chat = chat_options(messages, tools, variables, template, True)
        return self._generation({"chat": chat}, options)

    def _generation(self, prompt: dict[str, Any], options: GenerateOptions) -> Generation:
        values = generate_options(**options)
        self._check_options(values)
        return Generation(self, {**prompt, **values})

    def sampler(self, *, temperature: Optional[float] = None, top_k: Optional[int] = None,
                top_p: Optional[float] = None, min_p: Optional[float] = None,
                repeat_penalty: Optional[float] = None, seed: int = 0) -> "Sampler":
        """What draws tokens from logits as `generate` does, for a loop of your own."""
        return Sampler(self, sampling(temperature, top_k, top_p, min_p, repeat_penalty, seed))

    # ---- one user at a time ----

    def _enter(self, user: object) -> None:
        self._check_free("another generation")
        self._check_lent({"logits": 1 << 62, "hidden": 1 << 62})
        self._user = weakref.ref(user)

    def _leave(self, user: object) -> None:
        if self._user is not None and self._user() is user:
            self._user = None

    def _check_free(self, what: str) -> None:
        self._engine.check_process()
        if self._user is not None and self._user() is not None:
            raise Usage(f"the session is in use by a generation that is not over, so {what} has to "
                        f"wait; close() it first")
        self._user = None

    # ---- what is not done as asked ----

    def _say(self, lines: Iterable[str]) -> None:
        for line in lines:
            if line not in self._said:
                self._said.add(line)
                say(self._model._callbacks, line)

    def _check_options(self, options: Mapping[str, Any]) -> None:
        """Says which of these options have no effect; a strict model refuses them."""
        given = {name: True if name in ("schema", "stop") else value
                 for name, value in options.items() if value}
        key = repr(given)
        if not given or key in self._model._checked_options:
            return
        generation = fill(_api.nib_generate_options(), **options)
        handle = self._model._open_plan(sequences=self.sequences, generation=generation)
        try:
            self._engine.run(handle, lambda err: lib.nib_plan_status(handle.pointer, err))
            self._say(ledger_lines(handle, handle.pointer))
        finally:
            handle.close()
        self._model._checked_options.add(key)

    # ---- the end ----

    def close(self) -> None:
        """Frees the weights and the cache. Views of its logits keep them until they are deleted."""
        self._planned.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __repr__(self) -> str:
        return (f"<nibble.Session of {self._model.path}: {self.sequences} x {self.context} tokens"
                f"{', closed' if self._planned.closed else ''}>")


class Sampler:
    """Draws tokens from logits as `generate` does. Made by `Session.sampler`."""

    def __init__(self, session: Session, options: dict[str, Any]) -> None:
        self._session, self._keeps = session, session._model
        struct = fill(_api.nib_generate_options(), **options)
        self._handle = session._engine.open(
            session._handle, "sampler", lib.nib_sampler_close,
            lambda out, err: lib.nib_sampler_open(out, session._handle.pointer, byref(struct), err))
        self._handle.own(self)

    def draw(self, logits: Any, tokens: Iterable[int]) -> int:
        """The token that `generate` would draw.

        logits: float32 [vocab]; tokens: the prompt and the tokens drawn so far. The same arguments
        give the same token. CheckFailed: a logit is not a number.
        """
        values = floats_in(logits, self._session.vocab)
        ids, out = ids_array(tokens), ctypes.c_int32()
        self._session._engine.run(self._handle, lambda err: lib.nib_sampler_draw(
            self._handle.pointer, values, ids, len(ids), byref(out), err))
        return out.value

    def close(self) -> None:
        self._handle.close()


def chat_options(messages: Messages, tools: Optional[Any], variables: Optional[Any],
                 template: Optional[str], prompt: bool) -> Any:
    """A conversation as a struct; keeps its strings."""
    values: dict[str, Any] = {}
    for name, value in (("messages", messages), ("tools", tools), ("variables", variables)):
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            values[name] = text
            values[name + "_size"] = len(text.encode("utf-8"))
    now = int(time.time())
    return fill(_api.nib_chat_options(), template_text=template, no_generation_prompt=not prompt,
                now=now + time.localtime(now).tm_gmtoff, **values)
