# SPDX-License-Identifier: Apache-2.0
"""The shared library: finding and loading it, and bytes that it writes."""
from __future__ import annotations

import ctypes
import itertools
import os
import sys
from typing import Any

from . import _api

NAME = f"libnibble.{_api.ABI}.dylib" if sys.platform == "darwin" else f"libnibble.so.{_api.ABI}"


def _place() -> str:
    """Where the library is: in the package, in the build of a checkout, or where the system looks."""
    here = os.path.dirname(os.path.abspath(__file__))
    checkout = os.path.dirname(os.path.dirname(here))
    inside = os.path.join(here, "lib", NAME)
    if os.path.exists(inside):
        return inside
    if os.path.exists(os.path.join(checkout, "include", "nibble.h")):
        return os.path.join(checkout, "build", "release", NAME)
    return NAME


def _load() -> Any:
    path = _place()
    try:
        library = ctypes.CDLL(path)
        _api.declare(library)
    except OSError as e:
        raise ImportError(
            f"the library of Nibble cannot be loaded: {e}. A wheel has it inside; in a checkout, "
            f"`make` builds it") from e
    except AttributeError as e:
        raise ImportError(
            f"{path} is another version of the library than this package, which is made for "
            f"{_api.VERSION}: {e}") from e
    if library.nib_version_number() < _api.VERSION_NUMBER:
        raise ImportError(
            f"{path} is version {library.nib_version().decode()} of the library; this package "
            f"needs {_api.VERSION} or later")
    return library


lib = _load()


class Sink:
    """Bytes that the library writes. One call uses a sink, and closes it."""

    _open: dict[int, "Sink"] = {}
    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.number = next(Sink._numbers)
        self.chunks: list[bytes] = []
        self.failure: BaseException | None = None
        self.struct = _api.nib_sink(write=_write, ctx=self.number)
        Sink._open[self.number] = self

    def close(self) -> bytes:
        """What was written. Raises what failed."""
        Sink._open.pop(self.number, None)
        if self.failure is not None:
            raise self.failure
        return b"".join(self.chunks)


def _write_bytes(ctx: int, data: int, size: int) -> int:
    sink = Sink._open.get(ctx)
    try:
        if sink is None:
            return _api.NIB_CANCELLED
        sink.chunks.append(ctypes.string_at(data, size))
    except BaseException as e:  # an exception must not leave a callback: ctypes would drop it
        if sink is not None:
            sink.failure = e
        return _api.NIB_CANCELLED
    return _api.NIB_OK


# One for all calls, which lives as long as the interpreter: a thread that is still in the library
# at its end has something to call.
_write = _api.nib_sink_write(_write_bytes)
