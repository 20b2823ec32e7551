# SPDX-License-Identifier: Apache-2.0
"""What a recipe's name means, and the formulas behind it, written from docs/quantization.md and torchao's formulas.

Nothing here is read from Nibble's sources or asked of the program: values that it stores are compared with these.
"""
import dataclasses
import math
import re

from number_types import ROUND, SMALLEST, e2m1, e4m3, f32


@dataclasses.dataclass
class Spec:
    """One scheme: how weights and activations become codes."""
    code: str = "i8"  # i4, i8, e4m3, mx8, mx4, nv4
    size: object = "row"  # elements per scale, "row" or "tensor"
    symmetric: bool = True
    zero: str = "none"  # none, int, float
    act: str = "float"  # float, i8, i4, e4m3, mx8, mx4, nv4
    act_symmetric: bool = True
    formula: str = "torchao"  # torchao, tinygemm, ao017, ggml
    floor: bool = False  # of MX scales
    levels: int = 2  # of nv4's scales
    scale_type: str = ""  # "": the weight's
    keeps_head: bool = False  # by a rule of its own

    def is_rows(self):
        """torchao's Int8Tensor: one formula for rows and tensors of symmetric int8, with scales in f32."""
        return self.code == "i8" and self.symmetric and self.size in ("row", "tensor") and self.formula != "ggml"


BASES = {
    "int8wo": Spec(),
    "int8dq": Spec(act="i8"),
    "int4wo": Spec("i4", 32, False, "float"),
    "8da4w": Spec("i4", 32, act="i8", act_symmetric=False),
    "4da4w": Spec("i4", 32, act="i4", act_symmetric=False),
    "fp8wo": Spec("e4m3"),
    "fp8dq": Spec("e4m3", act="e4m3"),
    "mxfp8": Spec("mx8", 32, act="mx8", keeps_head=True),
    "mxfp4": Spec("mx4", 32),
    "mxfp4dq": Spec("mx4", 32, act="mx4"),
    "nvfp4": Spec("nv4", 16),
    "nvfp4dq": Spec("nv4", 16, act="nv4"),
}


def spec_of(recipe):
    """The Spec of a name such as int4wo-g32-sym."""
    base, *words = recipe.split("-")
    spec = dataclasses.replace(BASES[base])
    for word in words:
        if re.fullmatch(r"g\d+", word):
            spec.size = int(word[1:])
        elif word in ("row", "tensor"):
            spec.size = word
        elif word == "sym":
            spec.symmetric, spec.zero = True, "none"
        elif word in ("asym", "intzero"):
            spec.symmetric, spec.zero = False, "float" if word == "asym" and base == "int4wo" else "int"
        elif word in ("actsym", "actasym"):
            spec.act_symmetric = word == "actsym"
        elif word in ("tinygemm", "ao017", "ggml"):
            spec.formula = word
        elif word in ("floor", "rceil"):
            spec.floor = word == "floor"
        elif word == "block":
            spec.levels = 1
        else:
            raise ValueError(f"{recipe}: {word}")
    return spec


def clamp(x, low, high):
    return max(low, min(high, x))


# ---- one group ----

def integer_group(w, spec, r, t, eps):
    """torchao's choose_qparams_affine and quantize_affine: r rounds to the weight's type, t to that of the scales."""
    half = 8 if spec.code == "i4" else 128
    low, high = min(min(w), 0.0), max(max(w), 0.0)
    zero = 0
    if spec.symmetric:
        scale = max(r(max(-low, high) / (half - 0.5)), eps)
    else:
        scale = max(r(r(high - low) / (2 * half - 1)), eps)
        zero = clamp(-half - round(r(low / scale)), -half, half - 1)
    scale = t(scale)
    inverse = t(1 / scale)
    product = r if t is r else f32
    codes = [clamp(round(product(x * inverse)) + zero, -half, half - 1) for x in w]
    return codes, scale, zero, [f32((q - zero) * scale) for q in codes]


def row_group(w, r):
    """torchao's Int8Tensor."""
    scale = max(r(max(map(abs, w)) / 127.5), 2.0 ** -23)
    inverse = f32(1 / scale)
    codes = [clamp(round(f32(x * inverse)), -128, 127) for x in w]
    return codes, scale, 0, [f32(q * scale) for q in codes]


def float_zero_group(w, r):
    """MSLK's int4_row_quantize_zp: all in f32, then scale and zero become the weight's type."""
    low, high = min(w), max(w)
    scale = f32(max(f32(high - low), f32(1e-6)) / 15)
    zero = f32(low + f32(scale * 8))
    codes = [clamp(round(f32(f32(x - low) / scale)), 0, 15) - 8 for x in w]
    scale, zero = r(scale), r(zero)
    return codes, scale, zero, [f32(f32(q * scale) + zero) for q in codes]


def tinygemm_group(w, r, eps):
    low, high = min(w), max(w)
    scale = max(r(r(high - low) / 15), eps)
    zero = r(low + r(8 * scale))
    base = r(zero - r(8 * scale))
    codes = [clamp(round(r(r(x - base) / scale)), 0, 15) - 8 for x in w]
    return codes, scale, zero, [f32(f32(q * scale) + zero) for q in codes]


def e4m3_group(w, r):
    scale = r(max(map(abs, w)) / 448)
    if scale == 0:
        return [0.0] * len(w), 1.0, 0, [0.0] * len(w)
    codes = [e4m3(clamp(f32(x / scale), -448.0, 448.0)) for x in w]
    return codes, scale, 0, [f32(q * scale) for q in codes]


def mx_group(w, spec):
    largest, shift, rounded = (448.0, 8, e4m3) if spec.code == "mx8" else (6.0, 2, e2m1)
    amax = max(map(abs, w))
    if amax == 0:
        return [0.0] * len(w), 2.0 ** -127, 0, [0.0] * len(w)
    mantissa, exponent = math.frexp(amax)
    if spec.floor:
        exponent = exponent - 1 - shift
    else:
        mantissa, exponent = math.frexp(amax / largest)
        exponent -= mantissa == 0.5
    scale = 2.0 ** clamp(exponent, -127, 127)
    codes = [rounded(clamp(x / scale, -largest, largest)) for x in w]
    return codes, scale, 0, [q * scale for q in codes]


def nv_group(w, total):
    scale = e4m3(clamp(f32(f32(max(map(abs, w)) / 6) / total), 2.0 ** -6, 448.0))
    inverse = f32(f32(1 / total) / scale)
    codes = [e2m1(clamp(f32(x * inverse), -6.0, 6.0)) for x in w]
    both = f32(scale * total)
    return codes, scale, 0, [f32(q * both) for q in codes]


# ---- a weight ----

@dataclasses.dataclass
class Quantized:
    """A weight in codes, by rows; scales and zeros as [row][group], of a tensor [0][0]."""
    codes: list
    scales: list
    zeros: list
    values: list


def pieces(row, size):
    return [row] if size in ("row", "tensor") else [row[i:i + size] for i in range(0, len(row), size)]


def group_of(w, spec, dtype, total):
    r = ROUND[dtype]
    eps = {"F32": 2.0 ** -23, "F16": 2.0 ** -10, "BF16": 2.0 ** -7}[dtype] if spec.formula == "ao017" else SMALLEST[dtype]
    if spec.is_rows():
        return row_group(w, r)
    if spec.code == "e4m3":
        return e4m3_group(w, r)
    if spec.code in ("mx8", "mx4"):
        return mx_group(w, spec)
    if spec.code == "nv4":
        return nv_group(w, total)
    if spec.zero == "float":
        return tinygemm_group(w, r, eps) if spec.formula == "tinygemm" else float_zero_group(w, r)
    return integer_group(w, spec, r, ROUND[spec.scale_type] if spec.scale_type not in ("", dtype) else r, eps)


def quantize(rows, spec, dtype):
    """Rows of a weight of this type by the formula of the scheme."""
    total = 1.0
    if spec.code == "nv4" and spec.levels == 2:
        total = f32(max(abs(x) for row in rows for x in row) / 2688) or 1.0
    if spec.size == "tensor":
        codes, scale, zero, values = group_of([x for row in rows for x in row], spec, dtype, total)
        k = len(rows[0])
        cut = lambda flat: [flat[i:i + k] for i in range(0, len(flat), k)]
        return Quantized(cut(codes), [[scale]], [[zero]], cut(values))
    out = Quantized([], [], [], [])
    for row in rows:
        groups = [group_of(piece, spec, dtype, total) for piece in pieces(row, spec.size)]
        out.codes.append([q for g in groups for q in g[0]])
        out.scales.append([g[1] for g in groups])
        out.zeros.append([g[2] for g in groups])
        out.values.append([v for g in groups for v in g[3]])
    return out


# ---- activations ----

EPS = 2.0 ** -126


def integer_grid(x, half, symmetric):
    """Scale and zero point of one token's 2 * half integers."""
    low, high = min(min(x), 0.0), max(max(x), 0.0)
    if symmetric:
        return max(f32(max(-low, high) / (half - 0.5)), EPS), 0
    scale = max(f32(f32(high - low) / (2 * half - 1)), EPS)
    return scale, clamp(-half - round(f32(low / scale)), -half, half - 1)


HALF = {"i8": 128, "i4": 8}


def is_tie(x, act, symmetric):
    """Whether a last bit of f32 decides a code of this token: its largest negative magnitude is -7.5 or -127.5 by the symmetric
    formula, and any other value may lie as near to the middle of two codes."""
    if act not in HALF:
        return False
    if symmetric and -min(x) >= max(x):
        return True
    scale, _ = integer_grid([f32(v) for v in x], HALF[act], symmetric)
    return any(abs(abs(v / scale) % 1 - 0.5) < abs(v / scale) * 2**-21 for v in x)


def token(x, act, symmetric, nudge=0.0):
    """One token's inputs of a product, quantized and back. nudge: the scale is so much smaller, which decides ties."""
    if act == "float":
        return x
    x = [f32(v) for v in x]
    if act in HALF:
        half = HALF[act]
        scale, zero = integer_grid(x, half, symmetric)
        inverse = f32(1 / scale) * (1 + nudge)
        return [(clamp(round(f32(v * inverse)) + zero, -half, half - 1) - zero) * scale for v in x]
    if act == "e4m3":
        return e4m3_group(x, f32)[3]
    if act == "nv4":
        return [v for i in range(0, len(x), 16) for v in nv_group(x[i:i + 16], act_total(x))[3]]
    return [v for i in range(0, len(x), 32) for v in mx_group(x[i:i + 32], Spec(act, 32))[3]]


def act_total(x):
    return f32(max(map(abs, x)) / 2688) or 1.0


def activations_of(tokens, seen, spec):
    """The inputs of a product with the codes of `seen`, the same inputs as an engine computed them: no last bit decides a tie."""
    out = []
    for x, y in zip(tokens, seen, strict=True):
        (scale, _), (other, _) = (integer_grid([f32(v) for v in row], HALF[spec.act], spec.act_symmetric) for row in (x, y))
        out.append([round(v / other) * scale for v in token(y, spec.act, spec.act_symmetric)])
    return out


def activations(tokens, spec, one_scale=False, nudge=lambda t: 0.0):
    """The inputs of a product as the scheme has them; one_scale: as one scale for all tokens would have them; nudge: of token t,
    where one of its codes is a tie."""
    if spec.act == "nv4" and spec.levels == 1:
        return [[v for i in range(0, len(x), 16) for v in nv_group(x[i:i + 16], 1.0)[3]] for x in tokens]
    if spec.act in ("mx8", "mx4"):
        as_weights = Spec(spec.act, 32, floor=spec.floor)
        return [[v for i in range(0, len(x), 32) for v in mx_group(x[i:i + 32], as_weights)[3]] for x in tokens]
    if one_scale and spec.act != "float":
        flat = token([v for x in tokens for v in x], spec.act, spec.act_symmetric)
        k = len(tokens[0])
        return [flat[i:i + k] for i in range(0, len(flat), k)]
    nudged = lambda t, x: nudge(t) if is_tie(x, spec.act, spec.act_symmetric) else 0.0
    return [token(x, spec.act, spec.act_symmetric, nudged(t, x)) for t, x in enumerate(tokens)]
