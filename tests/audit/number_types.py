# SPDX-License-Identifier: Apache-2.0
"""Number formats in plain Python: what a value becomes in a type, and what its bytes mean.

Written from the formats' definitions, not from Nibble's sources. Values are Python floats; a function named after a type
rounds a value to it, ties to even.
"""
import math
import struct

F32 = struct.Struct("<f")
WIDTH = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "F8_E4M3": 1,
         "F8_E8M0": 1, "BOOL": 1}


def f32(x):
    try:
        return F32.unpack(F32.pack(x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def bf16(x):
    bits = struct.unpack("<I", F32.pack(f32(x)))[0]
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000
    return F32.unpack(struct.pack("<I", bits & 0xffffffff))[0]


def f16(x):
    try:
        return struct.unpack("<e", struct.pack("<e", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def small_float(x, mantissa, least_exponent, most):
    """x in a float of few bits, without infinities."""
    if x == 0:
        return 0.0
    exponent = max(math.frexp(abs(x))[1] - 1, least_exponent)
    step = 2.0 ** (exponent - mantissa)
    return math.copysign(min(round(abs(x) / step) * step, most), x)


def e4m3(x):
    return small_float(x, 3, -6, 448.0)


def e2m1(x):
    return small_float(x, 1, 0, 6.0)


def _e4m3_value(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if byte & 127 == 127:
        return math.nan
    value = mantissa * 2.0 ** -9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -value if byte & 128 else value


E4M3 = [_e4m3_value(b) for b in range(256)]
E2M1 = [s * v for s in (1.0, -1.0) for v in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)]
E8M0 = [2.0 ** (b - 127) for b in range(255)] + [math.nan]
ROUND = {"F32": f32, "BF16": bf16, "F16": f16, "F64": float}
NAMES = {"F32": "f32", "BF16": "bf16", "F16": "f16", "F64": "f64"}
SMALLEST = {"F32": 2.0 ** -126, "BF16": 2.0 ** -126, "F16": 2.0 ** -14}
CODES = {"I8": "b", "U8": "B", "I16": "h", "I32": "i", "I64": "q", "F16": "e", "F32": "f", "F64": "d", "BOOL": "B"}


def decode(dtype, data):
    """The values that these bytes hold."""
    count = len(data) // WIDTH[dtype]
    if dtype == "BF16":
        words = struct.unpack(f"<{count}H", data)
        return list(struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(w << 16 for w in words))))
    if dtype in ("F8_E4M3", "F8_E8M0"):
        table = E4M3 if dtype == "F8_E4M3" else E8M0
        return [table[b] for b in data]
    return list(struct.unpack(f"<{count}{CODES[dtype]}", data))


def encode(dtype, values):
    """Bytes of values that the type holds (others are rounded to it)."""
    count = len(values)
    if dtype == "BF16":
        words = struct.unpack(f"<{count}I", struct.pack(f"<{count}f", *map(bf16, values)))
        return struct.pack(f"<{count}H", *(w >> 16 for w in words))
    if dtype == "F32":
        values = map(f32, values)
    return struct.pack(f"<{count}{CODES[dtype]}", *values)


def nibbles(data):
    """Four bits each, the low ones of a byte first."""
    out = []
    for byte in data:
        out += (byte & 15, byte >> 4)
    return out


def signed(code):
    return code - 16 if code > 7 else code
