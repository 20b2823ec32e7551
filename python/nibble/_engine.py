# SPDX-License-Identifier: Apache-2.0
"""What keeps the library's rules: one thread at a time in an engine, children closed before
parents, no exception out of a callback, nothing used after it is closed or after a fork.

An engine and everything opened with it share a lock. C objects are Handles in a tree whose root is
the engine. A wrapper (Model, Session, ...) owns one handle; when the wrapper is closed or collected,
the handle is released as soon as no child and no lease needs it and no other thread is in the engine.
Handles and engines hold no wrappers, so that wrappers are collected.
"""
from __future__ import annotations

import ctypes
import itertools
import logging
import os
import signal
import threading
import weakref
from collections import deque
from ctypes import byref
from types import FrameType
from typing import Any, Callable, Optional

from . import _api
from ._errors import Usage, error_of
from ._library import Sink, lib

logger = logging.getLogger("nibble")
Progress = Callable[[str, int, int], Any]
Log = Callable[[str], Any]

# Signals whose Python handlers may raise. Others are handled by the interpreter as usual.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM",
                                               "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]


class Handle:
    """A C object. `closed`: its owner no longer needs it. `leases`: what still points into it."""

    def __init__(self, engine: "Engine", parent: Optional["Handle"], what: str, pointer: int,
                 free: Callable[[int], Any]) -> None:
        self.engine, self.parent, self.what, self.free = engine, parent, what, free
        self.pointer: Optional[int] = pointer
        self.closed = False
        self.children: dict[Handle, None] = {}
        self.leases: set[object] = set()
        if parent is not None:
            parent.children[self] = None

    def check(self) -> int:
        """The pointer. Usage: the object, or what it was made from, is closed."""
        at: Optional[Handle] = self
        while at is not None:
            if at.closed or at.pointer is None:
                raise Usage(f"the {at.what} is closed")
            at = at.parent
        assert self.pointer is not None
        return self.pointer

    def lease(self) -> object:
        """Keeps the C object alive until `give_back`, whoever closes it. The lease is set before the
        check, and `close` sets `closed` before it looks for leases, so one of them sees the other."""
        lease = object()
        self.leases.add(lease)
        try:
            self.check()
        except BaseException:
            self.give_back(lease)
            raise
        return lease

    def give_back(self, lease: object) -> None:
        self.leases.discard(lease)
        if self.closed:
            self.engine.release_later(self)

    def own(self, wrapper: object) -> None:
        """Closes the handle when its wrapper is collected, or at the exit of the interpreter."""
        weakref.finalize(wrapper, self.close, False)

    def close(self, wait: bool = True) -> None:
        """Releases the C object as soon as nothing needs it. wait: until other threads are out."""
        self.closed = True
        self.engine.release_later(self, wait)

    def release(self) -> None:
        """Frees a closed handle and its children, as far as nothing needs them. Only with the
        engine's lock."""
        if not self.closed:
            return
        for child in list(self.children):
            child.closed = True
            child.release()
        if self.children or self.leases or self.pointer is None:
            return
        pointer, self.pointer = self.pointer, None
        self.free(pointer)
        if self.parent is not None:
            self.parent.children.pop(self, None)
            if self.parent.closed:
                self.parent.release()


class _Signals:
    """Handlers of signals run in the middle of callbacks, where their exceptions would be lost: at
    the first instruction of a callback, before it can catch any. So during a call they only note
    the signal, and `deliver` runs the real ones where exceptions are caught."""

    def __init__(self) -> None:
        self.handlers: dict[int, Any] = {}
        self.pending: deque[tuple[int, Optional[FrameType]]] = deque()

    def defer(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # handlers never run here
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                self.handlers[number] = handler
        try:
            for number in self.handlers:
                signal.signal(number, self._note)
        except ValueError:  # not the main interpreter
            self.handlers.clear()

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        self.pending.append((number, frame))

    def deliver(self) -> None:
        while self.pending:
            number, frame = self.pending.popleft()
            self.handlers[number](number, frame)

    def restore(self) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)


class Callbacks:
    """What a wrapper calls during its calls. It belongs to the wrapper; the engine only refers to
    it, because these functions may hold the wrapper."""

    def __init__(self, progress: Optional[Progress], log: Optional[Log]) -> None:
        for name, function in (("progress", progress), ("log", log)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} is a function, not {type(function).__name__}")
        self.progress, self.log = progress, log


class Engine:
    """Threads, an instruction set and memory for everything opened with it."""

    _open: "weakref.WeakValueDictionary[int, Engine]" = weakref.WeakValueDictionary()
    _numbers = itertools.count(1)

    def __init__(self, callbacks: Callbacks, what: str, *, threads: Optional[int] = None,
                 isa: Optional[str] = None, cache_path: Optional[str] = None) -> None:
        """what: the object whose end is the engine's end."""
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.owner: Optional[int] = None
        self.pending: deque[Handle] = deque()
        self.callbacks = weakref.ref(callbacks)
        self.failure: Optional[BaseException] = None
        self.signals = _Signals()
        self.number = next(Engine._numbers)
        Engine._open[self.number] = self
        options = fill(_api.nib_engine_options(), threads=threads, isa=isa, cache_path=cache_path)
        options.callbacks = _api.nib_callbacks(progress=_progress, log=_log, ctx=self.number)
        self.root: Optional[Handle] = None
        self.root = self.open(None, what, lib.nib_engine_close,
                              lambda out, err: lib.nib_engine_open(out, byref(options), err))

    def root_pointer(self) -> int:
        assert self.root is not None
        return self.root.check()

    # ---- calls ----

    def check_process(self) -> None:
        if os.getpid() != self.pid:
            raise Usage(
                f"this was opened by process {self.pid}, and this is process {os.getpid()}, forked "
                f"from it: its threads are not here; open it again in this process")

    def run(self, handle: Optional[Handle], call: Callable[[Any], Any]) -> None:
        """Runs call(err), which returns a status or None, alone in this engine. Raises its error,
        or what a callback raised."""
        self.check_process()
        if self.owner == threading.get_ident():
            raise Usage("a callback cannot call the engine that called it")
        err = _api.nib_err()
        signals = _Signals()
        try:
            with self.lock:
                try:
                    self.owner, self.failure, self.signals = threading.get_ident(), None, signals
                    if handle is not None:
                        handle.check()
                    signals.defer()
                    status = call(byref(err))
                finally:
                    self.owner = None
                    signals.restore()
                    failure, self.failure = self.failure, None
        finally:
            self._release_pending()
            signals.deliver()
        if failure is not None:
            raise failure
        if status:
            raise error_of(status, err.text.decode("utf-8", "replace"))

    def open(self, parent: Optional[Handle], what: str, free: Callable[[int], Any],
             call: Callable[[Any, Any], int]) -> Handle:
        """Runs call(out, err), and makes a handle of what it opened."""
        opened: list[Handle] = []

        def keep(err: Any) -> int:
            out = ctypes.c_void_p()
            status = call(byref(out), err)
            if status == _api.NIB_OK:
                assert out.value is not None
                opened.append(Handle(self, parent if parent is not None else self.root, what,
                                     out.value, free))
            return status

        try:
            self.run(parent, keep)
        except BaseException:
            for handle in opened:
                handle.close(wait=False)
            raise
        return opened[0]

    def write(self, handle: Handle, call: Callable[[Any, Any], Any]) -> str:
        """Runs call(sink, err); returns what it wrote. An error has what was written until then as
        `written`."""
        sink = Sink()
        try:
            self.run(handle, lambda err: call(byref(sink.struct), err))
        except BaseException as e:
            written = sink.close().decode("utf-8", "replace")
            if written:
                setattr(e, "written", written)
            raise
        return sink.close().decode("utf-8")

    # ---- the end of objects ----

    def release_later(self, handle: Handle, wait: bool = False) -> None:
        """Releases a handle when no thread is in the engine: now, if possible. Called by the
        collector at any point, so it never waits unless told to."""
        self.pending.append(handle)
        self._release_pending(wait)

    def _release_pending(self, wait: bool = False) -> None:
        wait = wait and self.owner != threading.get_ident()
        if os.getpid() != self.pid:
            self.pending.clear()  # the threads that closing would wait for are not in this process
        while self.pending and self.lock.acquire(wait):
            try:
                self.owner = threading.get_ident()
                while self.pending:
                    self.pending.popleft().release()
            finally:
                self.owner = None
                self.lock.release()


def say(callbacks: Optional[Callbacks], text: str) -> None:
    """Passes on what was not done as asked."""
    if callbacks is not None and callbacks.log is not None:
        callbacks.log(text)
    else:
        logger.warning("%s", text)


# ---- callbacks: one function each for all engines, which lives as long as the interpreter ----


def _on_progress(ctx: int, what: bytes, done: int, total: int) -> bool:
    engine = Engine._open.get(ctx)
    try:
        if engine is None or engine.failure is not None:
            return False
        engine.signals.deliver()
        callbacks = engine.callbacks()
        if callbacks is None or callbacks.progress is None:
            return True
        goes_on = callbacks.progress(what.decode(), done, total) is not False
        engine.signals.deliver()
        return goes_on
    except BaseException as e:
        if engine is not None:
            engine.failure = e
        return False


def _on_log(ctx: int, line: bytes) -> None:
    engine = Engine._open.get(ctx)
    try:
        say(engine.callbacks() if engine is not None else None, line.decode("utf-8", "replace"))
    except BaseException as e:
        if engine is not None and engine.failure is None:
            engine.failure = e


_progress = _api.nib_callbacks_progress(_on_progress)
_log = _api.nib_callbacks_log(_on_log)


# ---- options as structs ----


def fill(struct: Any, **values: Any) -> Any:
    """Sets `size` and the given members; None leaves a member at its default. TypeError,
    ValueError: a value does not fit the type of its member, which ctypes would not say."""
    kinds = dict(struct._fields_)
    struct.size = ctypes.sizeof(struct)
    struct.kept = values  # an address does not keep what it points to
    for name, value in values.items():
        if value is not None:
            setattr(struct, name, _converted(name, kinds[name], value))
    return struct


def _converted(name: str, kind: Any, value: Any) -> Any:
    if kind is ctypes.c_char_p:
        return _text(name, value)
    if kind is _api.nib_strings:
        items = [value] if isinstance(value, (str, os.PathLike)) else list(value)
        array = (ctypes.c_char_p * len(items))(*[_text(name, item) for item in items])
        return _api.nib_strings(items=array, count=len(items))
    if kind is ctypes.c_bool:
        if not isinstance(value, bool):
            raise TypeError(f"{name} is a bool, not {type(value).__name__}")
        return value
    if kind is ctypes.c_double:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} is a number, not {type(value).__name__}")
        return float(value)
    if isinstance(kind, type) and issubclass(kind, (ctypes.c_int, ctypes.c_int64, ctypes.c_uint64)):
        return integer(name, kind, value)
    if kind is ctypes.c_void_p:  # a handle, or another struct by its address
        return value if isinstance(value, int) else ctypes.addressof(value)
    return ctypes.pointer(value)


def integer(name: str, kind: Any, value: Any) -> int:
    """value, if a C integer of this type holds it."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is an int, not {type(value).__name__}")
    number = value.__index__()
    if kind(number).value != number:
        bits = 8 * ctypes.sizeof(kind)
        low, high = (-1 << bits - 1, 1 << bits - 1) if kind(-1).value < 0 else (0, 1 << bits)
        raise ValueError(f"{name} {number} is not between {low} and {high - 1}")
    return int(number)


def at_least(least: int, **values: Any) -> None:
    """Usage: a number is less. The library would take the default for it."""
    for name, value in values.items():
        if hasattr(value, "__index__") and value.__index__() < least:
            raise Usage(f"{name} {value} is less than {least}; leave it out for the default")


def _text(name: str, value: Any) -> bytes:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} is a str, not {type(value).__name__}")
    return _whole(name, value.encode("utf-8") if isinstance(value, str) else os.fsencode(value))


def path_of(path: Any) -> bytes:
    """A path as bytes. TypeError: it is not a path."""
    return _whole("path", os.fsencode(path))


def _whole(name: str, data: bytes) -> bytes:
    if b"\0" in data:
        raise ValueError(f"{name} has a NUL character at {data.index(0)}, where a text of C ends")
    return data
