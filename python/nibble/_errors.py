# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class per status of the library."""
from __future__ import annotations

from typing import Any, Optional

from . import _api
from ._library import lib


class Error(Exception):
    """An error of the library: what is wrong, where, the value, the limit, what to do.

    Options in the text are those of the program; `--allow dequant` is `allow=["dequant"]` here.
    """

    status = "FAILED"
    """Name of the status: "NOT_AS_ASKED"."""
    code = _api.NIB_FAILED
    """Number of the status in nibble.h, which never changes."""
    exit_status = 1
    """Exit status of the program `nibble` for this error."""
    report: Optional[dict[str, Any]] = None
    """What `verify` or `advise` reported before the error; None: nothing."""


class Failed(Error, RuntimeError):
    """The operation failed."""


class Usage(Error, ValueError):
    """An argument is wrong, or the object is closed or in use."""


class BadInput(Error, ValueError):
    """A file or value breaks its format."""


class Unsupported(Error):
    """The input is valid but not supported."""


class NotAsAsked(Error):
    """What was asked cannot be done, and nothing allowed a substitute."""


class NoMemory(Error, MemoryError):
    """Out of memory, or a limit such as the context was reached."""


class IOFailed(Error, OSError):
    """A file could not be read or written."""


class Exists(Error, FileExistsError):
    """The output exists."""


class CheckFailed(Error):
    """A check failed."""


class Cancelled(Error):
    """A progress callback returned False."""


CLASSES = {
    _api.NIB_FAILED: Failed, _api.NIB_USAGE: Usage, _api.NIB_BAD_INPUT: BadInput,
    _api.NIB_UNSUPPORTED: Unsupported, _api.NIB_NOT_AS_ASKED: NotAsAsked,
    _api.NIB_NO_MEMORY: NoMemory, _api.NIB_IO: IOFailed, _api.NIB_EXISTS: Exists,
    _api.NIB_CHECK_FAILED: CheckFailed, _api.NIB_CANCELLED: Cancelled,
}
for _number, _class in CLASSES.items():
    _class.status = lib.nib_status_name(_number).decode()
    _class.code, _class.exit_status = _number, lib.nib_status_exit(_number)
    _class.__module__ = "nibble"


def error_of(status: int, text: str) -> Error:
    """The exception for a status of the library, also one that this package does not know."""
    found = CLASSES.get(status)
    if found is not None:
        return found(text)
    error = Failed(text)
    error.status, error.code = lib.nib_status_name(status).decode(), status
    return error
