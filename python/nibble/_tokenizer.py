# SPDX-License-Identifier: Apache-2.0
"""Text to token ids, and back."""
from __future__ import annotations

import ctypes
import os
from ctypes import byref
from typing import Any, Iterable, Optional, Union

from . import _api
from ._engine import Callbacks, Engine, Handle, integer, path_of
from ._errors import error_of
from ._library import Sink, lib

Path = Union[str, "os.PathLike[str]"]


def check_status(status: int, err: Any) -> None:
    if status:
        raise error_of(status, err.text.decode("utf-8", "replace"))


def ids_array(ids: Iterable[int]) -> Any:
    """C array of ids. TypeError, ValueError: one is not an int, or not 32 bits."""
    values = [integer("a token", ctypes.c_int32, i) for i in ids]
    return (ctypes.c_int32 * len(values))(*values)


class Tokenizer:
    """A tokenizer, which any number of threads may use at once.

    path: a tokenizer.json, a directory that has one, or a GGUF. A model has its own:
    `Model.tokenizer`.

    >>> tokenizer = nibble.Tokenizer("models/nibble-tales")
    >>> tokenizer.decode(tokenizer.encode("Once upon a time"))
    'Once upon a time'
    """

    def __init__(self, path: Path) -> None:
        self._callbacks = Callbacks(None, None)
        engine = Engine(self._callbacks, "tokenizer", threads=1)
        assert engine.root is not None
        engine.root.own(self)
        name = path_of(path)
        handle = engine.open(None, "tokenizer", lib.nib_tokenizer_close,
                             lambda out, err: lib.nib_tokenizer_open(out, engine.root_pointer(),
                                                                     name, err))
        self._begin(engine, handle, handle.pointer)

    def _begin(self, engine: Engine, handle: Handle, pointer: Optional[int],
               owner: object = None) -> None:
        """owner: the wrapper whose handle this is; None: this one."""
        self._engine, self._handle, self._pointer, self._owner = engine, handle, pointer, owner
        facts = _api.nib_tokenizer_facts(size=ctypes.sizeof(_api.nib_tokenizer_facts))
        engine.run(handle, lambda err: lib.nib_tokenizer_facts_get(pointer, byref(facts)))
        self.vocab: int = facts.vocab
        """Largest id + 1, added tokens included."""
        self.bos: Optional[int] = facts.bos if facts.bos >= 0 else None
        self.eos: Optional[int] = facts.eos if facts.eos >= 0 else None
        self.adds_bos: bool = facts.adds_bos
        """Whether `encode(add_special=True)` puts BOS first."""

    @classmethod
    def _of_model(cls, engine: Engine, model: Handle, owner: object) -> "Tokenizer":
        out = ctypes.c_void_p()
        engine.run(model, lambda err: lib.nib_model_tokenizer(byref(out), model.pointer, err))
        self = cls.__new__(cls)
        self._begin(engine, model, out.value, owner)
        return self

    def encode(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        add_special: with the special tokens that belong around a text, such as BOS.
        parse_special: special tokens spelled in the text ("<s>") become those tokens; not for text
        from a user.
        """
        if not isinstance(text, str):
            raise TypeError(f"text is a str, not {type(text).__name__}")
        data = text.encode("utf-8")
        flags = ((_api.NIB_TOKENIZE_ADD_SPECIAL if add_special else 0) |
                 (_api.NIB_TOKENIZE_PARSE_SPECIAL if parse_special else 0))
        ids, count, err = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t(), _api.nib_err()
        lease = self._handle.lease()
        try:
            check_status(lib.nib_tokenize(self._pointer, data, len(data), flags, byref(ids),
                                          byref(count), byref(err)), err)
            try:
                return ids[:count.value]
            finally:
                lib.nib_tokens_free(self._engine.root_pointer(), ids)
        finally:
            self._handle.give_back(lease)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, with special tokens spelled out. Invalid UTF-8 and ids without a
        token become U+FFFD."""
        array, sink, err = ids_array(ids), Sink(), _api.nib_err()
        lease = self._handle.lease()
        try:
            status = lib.nib_detokenize(self._pointer, array, len(array), byref(sink.struct),
                                        byref(err))
        finally:
            self._handle.give_back(lease)
            data = sink.close()
        check_status(status, err)
        return data.decode("utf-8", "replace")

    def __len__(self) -> int:
        return self.vocab

    def __repr__(self) -> str:
        return f"<nibble.Tokenizer: {self.vocab} ids>"
