# SPDX-License-Identifier: Apache-2.0
"""Arrays of the library and of Python, without copies where both agree. numpy is optional: without
it, arrays are memoryviews of the same shape."""
from __future__ import annotations

import ctypes
import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any, Optional

from . import _api
from ._engine import Handle, integer

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray
    Floats = NDArray[numpy.float32]
else:
    Floats = Any


@functools.lru_cache(maxsize=None)
def _numpy() -> Any:
    """Imported when the first array is made: it takes longer than the rest of this package."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


class Lent:
    """Memory of a session that an array uses: the session is not freed before the array."""

    def __init__(self, handle: Handle, what: str) -> None:
        self.what = what
        self._finalizer = weakref.finalize(self, handle.give_back, handle.lease())
        self._finalizer.atexit = False


def floats_of(pointer: Any, rows: int, columns: int, lent: Optional[Lent]) -> Floats:
    """float32 [rows, columns] at a pointer: a copy, or if lent a read-only view that holds it."""
    kind = ctypes.c_float * (rows * columns)
    memory: Any
    if rows * columns == 0:
        memory = kind()
    elif lent is None:
        memory = kind.from_buffer_copy(ctypes.string_at(pointer, ctypes.sizeof(kind)))
    else:
        memory = kind.from_address(ctypes.addressof(pointer.contents))
        memory.lent = lent
    array: Any
    numpy = _numpy()
    if numpy is not None:
        array = numpy.frombuffer(memory, numpy.float32).reshape(rows, columns)
        array.flags.writeable = lent is None
    elif rows * columns == 0:  # a memoryview has no empty dimensions
        array = memoryview(b"").cast("f")
    else:
        array = memoryview(memory).cast("B").cast("f", (rows, columns))
        array = array if lent is None else array.toreadonly()
    floats: Floats = array
    return floats


def floats_in(values: Any, count: int) -> Any:
    """C array of `count` floats: of an array of float32 its own memory, otherwise a copy."""
    kind = ctypes.c_float * count
    try:
        view = memoryview(values)
    except TypeError:
        view = None
    if view is None or view.format != "f":
        items = [float(v) for v in values]
        if len(items) != count:
            raise ValueError(f"{len(items)} logits were given; the model has {count}")
        return kind(*items)
    if view.nbytes != ctypes.sizeof(kind):
        raise ValueError(f"{view.nbytes // 4} logits were given; the model has {count}")
    if view.readonly or not view.c_contiguous:
        return kind.from_buffer_copy(view.tobytes())
    return kind.from_buffer(view)


def rows_in(values: Any, columns: int) -> tuple[Any, int]:
    """Pointer to floats [rows, columns], and rows. With numpy, float32 is used in place."""
    numpy = _numpy()
    array: Any
    pointer: Any
    if numpy is not None:
        array = numpy.ascontiguousarray(values, numpy.float32)
        pointer = array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))  # holds the array
    else:
        array = memoryview(values)
        if array.format != "f":
            raise TypeError(f"logits is an array of float32, not of '{array.format}'")
        pointer = floats_in(array.cast("B").cast("f"), array.nbytes // 4)
    if array.nbytes > 0 and (array.ndim != 2 or array.shape[1] != columns):
        raise ValueError(f"logits is an array [rows, {columns}], not {list(array.shape)}")
    return pointer, array.nbytes // 4 // columns


def slots_of(slots: Any) -> tuple[Any, int, int, int]:
    """Slots as a C array, their number, and how many ask for logits and for hidden states."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(slots, numpy.ndarray):
        if slots.dtype != numpy.int32 or slots.ndim != 2 or slots.shape[1] != 4:
            raise TypeError(f"slots is an int32 array [slots, 4], not {slots.dtype} "
                            f"{list(slots.shape)}")
        array = numpy.ascontiguousarray(slots)
        outputs = array[:, 3]
        pointer = array.ctypes.data_as(ctypes.POINTER(_api.nib_slot))  # holds the array
        return (pointer, len(array), int((outputs & _api.NIB_SLOT_LOGITS != 0).sum()),
                int((outputs & _api.NIB_SLOT_HIDDEN != 0).sum()))
    rows = [_slot(s) for s in slots]
    kind: Any = _api.nib_slot * len(rows)
    return (kind(*rows), len(rows),
            sum(s[3] & _api.NIB_SLOT_LOGITS != 0 for s in rows),
            sum(s[3] & _api.NIB_SLOT_HIDDEN != 0 for s in rows))


def _slot(slot: Any) -> tuple[int, int, int, int]:
    if len(slot) not in (3, 4):
        raise TypeError(f"a slot is (sequence, position, token) or (sequence, position, token, "
                        f"outputs), not {len(slot)} values")
    outputs = slot[3] if len(slot) == 4 else _api.NIB_SLOT_LOGITS
    return (integer("sequence", ctypes.c_int32, slot[0]),
            integer("position", ctypes.c_int32, slot[1]),
            integer("token", ctypes.c_int32, slot[2]),
            integer("outputs", ctypes.c_uint32, outputs))
