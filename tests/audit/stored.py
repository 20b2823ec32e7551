# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds, read from its bytes: every dialect that Nibble writes, as codes, scales, zeros and values.

Independent of the program: from docs/formats.md and the formats' own definitions.
"""
import dataclasses
import json
import pathlib
import re
import struct

import tensor_files
from number_types import E2M1, NAMES, nibbles, signed


@dataclasses.dataclass
class Weight:
    """One weight. code is "float" where it is not quantized."""
    values: list
    code: str = "float"
    size: object = "row"
    zero: str = "none"
    scale_type: str = ""
    act: str = "float"
    act_symmetric: bool = True
    dtype: str = ""
    codes: list = None
    scales: list = None
    zeros: list = None


def spread(scales, k, size):
    """A row's scales, one for each of its k elements."""
    if len(scales) == 1:
        return scales * k
    return [scales[i // size] for i in range(k)]


def weigh(codes, scales, zeros, size, kind, total=1.0):
    """Rows of values; kind: of the zeros."""
    out = []
    for i, row in enumerate(codes):
        k = len(row)
        s = spread(scales[i if len(scales) > 1 else 0], k, size)
        if kind == "none":
            out.append([q * (a * total) for q, a in zip(row, s)])
            continue
        z = spread(zeros[i if len(zeros) > 1 else 0], k, size)
        out.append([q * a + b for q, a, b in zip(row, s, z)] if kind == "float"
                   else [(q - b) * a for q, a, b in zip(row, s, z)])
    return out


def transposed(rows):
    return [list(column) for column in zip(*rows)]


def unswizzled(tensor, n, groups):
    """Scales in tiles of 128 rows and 4 groups, as torch._scaled_mm reads them, by rows."""
    flat, wide = tensor.values(), -(-groups // 4)
    return [[flat[((r // 128) * wide + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] for c in range(groups)]
            for r in range(n)]


def group_size(k, scales):
    """Elements per scale, of groups that divide the row."""
    count = len(scales[0])
    return "row" if count == 1 else k // count


# ---- torchao ----

def mapping(act):
    return act.get("mapping_type", {}).get("_data") != "ASYMMETRIC"


def read_torchao(name, described, tensors):
    part = lambda p: tensors.get(f"{name}._weight_{p}")
    kind, data = described["_type"], described["_data"]
    qdata, scale = part("qdata"), part("scale")
    act = (data.get("act_quant_kwargs") or {}).get("_data", {})
    if kind == "Int8Tensor":
        scales = scale.rows()
        size = "tensor" if scale.shape[0] == 1 and qdata.shape[0] != 1 else "row"
        return Weight(weigh(qdata.rows(), scales, None, size, "none"), "i8", size, "none", NAMES[scale.dtype],
                      "i8" if act else "float", mapping(act), codes=qdata.rows(), scales=scales)
    if kind == "IntxUnpackedToInt8Tensor":
        scales, zeros = scale.rows(), part("zero_point").rows()
        zero = "int" if any(any(z) for z in zeros) else "none"
        size = group_size(qdata.shape[1], scales)
        words = data["activation_quantization"]
        return Weight(weigh(qdata.rows(), scales, zeros, size, "int"), "i4" if data["target_dtype"]["_data"] == "int4" else "i8",
                      size, zero, NAMES[scale.dtype], "i8" if words else "float", words is None or "asym" not in words,
                      codes=qdata.rows(), scales=scales, zeros=zeros)
    if kind == "Int4Tensor":
        codes = [[signed(c) for c in nibbles(bytes(b & 255 for b in row))] for row in qdata.rows()]
        scales, zeros = transposed(scale.rows()), transposed(part("zero_point").rows())
        size = data["block_size"][1]
        return Weight(weigh(codes, scales, zeros, size, "float"), "i4", size, "float", NAMES[scale.dtype], codes=codes,
                      scales=scales, zeros=zeros)
    if kind == "Float8Tensor":
        scales = scale.rows()
        size = "tensor" if scale.shape[0] == 1 and qdata.shape[0] != 1 else "row"
        return Weight(weigh(qdata.rows(), scales, None, size, "none"), "e4m3", size, "none", NAMES[scale.dtype],
                      "e4m3" if act else "float", codes=qdata.rows(), scales=scales)
    n, block = qdata.shape[0], data["block_size"]
    four = kind == "NVFP4Tensor" or data["elem_dtype"]["_data"] == "float4_e2m1fn_x2"
    codes = [[E2M1[c] for c in nibbles(bytes(map(int, row)))] for row in qdata.rows()] if four else qdata.rows()
    groups = -(-len(codes[0]) // block)
    scales = unswizzled(scale, n, groups) if data["is_swizzled_scales"] else scale.rows()
    total = part("per_tensor_scale").values()[0] if part("per_tensor_scale") else 1.0
    code = "nv4" if kind == "NVFP4Tensor" else "mx4" if four else "mx8"
    return Weight(weigh(codes, scales, None, block, "none", total), code, block, act=code if act else "float", codes=codes,
                  scales=scales)


# ---- nibble ----

def read_nibble(name, described, tensors):
    part = lambda p: tensors.get(f"{name}._weight_{p}")
    n, k = described["shape"]
    code, qdata, scale = described["code"], part("qdata"), part("scale")
    codes = qdata.rows()
    if code in ("i4", "mx4", "nv4"):
        table = E2M1 if code != "i4" else [signed(c) for c in range(16)]
        codes = [[table[c] for c in nibbles(bytes(map(int, row)))][:k] for row in codes]
    size = described["group"] if described["granularity"] == "group" else described["granularity"]
    scales, zeros = scale.rows(), part("zero_point").rows() if part("zero_point") else None
    total = part("per_tensor_scale").values()[0] if part("per_tensor_scale") else 1.0
    act = {"i8_token": "i8", "i8_static": "i8 static", "i4_token": "i4", "e4m3_token": "e4m3"}.get(described["act"], described["act"])
    return Weight(weigh(codes, scales, zeros, size, described["zero"], total), code, size, described["zero"],
                  "" if code in ("mx8", "mx4", "nv4") else NAMES[scale.dtype], act, described.get("act_symmetric", True),
                  codes=codes, scales=scales, zeros=zeros)


# ---- ExecuTorch's 8da4w, compressed-tensors ----

def read_8da4w(name, tensors):
    codes, scale = tensors[name + ".weight"].rows(), tensors[name + ".scales"]
    flat = scale.values()
    groups = len(flat) // len(codes)
    scales = [flat[i:i + groups] for i in range(0, len(flat), groups)]
    zeros = tensors[name + ".zeros"].rows() if name + ".zeros" in tensors else [[0] * groups] * len(codes)
    size = group_size(len(codes[0]), scales)
    rows = len(scale.shape) == 1
    return Weight(weigh(codes, scales, zeros, size, "int"), "i8" if rows else "i4", size,
                  "int" if any(any(z) for z in zeros) else "none", NAMES[scale.dtype], "float" if "embed" in name else "i8", False,
                  codes=codes, scales=scales, zeros=zeros)


def unpacked(words, bits, count, offset):
    per = 32 // bits
    return [(words[i // per] >> i % per * bits & (1 << bits) - 1) - offset for i in range(count)]


def read_compressed(name, tensors, config):
    part = lambda p: tensors.get(f"{name}.{p}")
    group = next(g for g in config["config_groups"].values()
                 if "Linear" in g["targets"] or any(matches_target(t, name) for t in g["targets"]))
    weights, inputs = group["weights"], group.get("input_activations")
    bits, scale = weights["num_bits"], part("weight_scale")
    if part("weight_packed"):
        n, k = map(int, part("weight_shape").values())
        codes = [unpacked(row, bits, k, 1 << bits - 1) for row in part("weight_packed").rows()]
    else:
        codes = part("weight").rows()
        n, k = len(codes), len(codes[0])
    scales = scale.rows() if len(scale.shape) > 1 else [scale.values()]
    zero, zeros = part("weight_zero_point"), None
    if zero is not None and zero.dtype == "I32":
        columns = [unpacked(c, bits, n, 1 << bits - 1) for c in transposed(zero.rows())]
        zeros = transposed(columns)
    elif zero is not None:
        zeros = zero.rows()
    size = {"tensor": "tensor", "channel": "row"}.get(weights["strategy"]) or weights["group_size"]
    code = "e4m3" if weights["type"] == "float" else f"i{bits}"
    act = "float" if not inputs else "e4m3" if inputs["type"] == "float" else f"i{inputs['num_bits']}"
    return Weight(weigh(codes, scales, zeros, size, "int" if zeros else "none"), code, size, "int" if zeros else "none",
                  NAMES[scale.dtype], act, not inputs or inputs["symmetric"], codes=codes, scales=scales, zeros=zeros)


def matches_target(target, name):
    return re.fullmatch(target[3:], name) is not None if target.startswith("re:") else target == name


# ---- GGUF ----

def gguf_string(data, at):
    size = struct.unpack_from("<Q", data, at)[0]
    return data[at + 8:at + 8 + size].decode(), at + 8 + size


def gguf_skip(data, at, kind):
    if kind == 8:
        return gguf_string(data, at)[1]
    if kind == 9:
        inner, count = struct.unpack_from("<IQ", data, at)
        at += 12
        for _ in range(count):
            at = gguf_skip(data, at, inner)
        return at
    return at + (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)[kind]


GGUF_TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
              8: ("Q8_0", 32, 34), 39: ("MXFP4", 32, 17)}


def gguf_block(kind, block):
    """The values of one block."""
    half = struct.unpack_from("<e", block)[0] if kind != "MXFP4" else 0.0
    if kind == "Q8_0":
        return [half * q for q in struct.unpack("<32b", block[2:])]
    codes = lambda data: [b & 15 for b in data] + [b >> 4 for b in data]
    if kind == "Q4_0":
        return [half * (q - 8) for q in codes(block[2:])]
    if kind == "Q4_1":
        least = struct.unpack_from("<e", block, 2)[0]
        return [half * q + least for q in codes(block[4:])]
    return [E2M1[q] * 2.0 ** (block[0] - 127) for q in codes(block[1:])]


def read_gguf(path):
    """{name: (type, rows)} under GGUF's names."""
    data = pathlib.Path(path).read_bytes()
    count, keys = struct.unpack_from("<QQ", data, 8)
    at = 24
    for _ in range(keys):
        _, at = gguf_string(data, at)
        kind = struct.unpack_from("<I", data, at)[0]
        at = gguf_skip(data, at + 4, kind)
    infos = []
    for _ in range(count):
        name, at = gguf_string(data, at)
        dims = struct.unpack_from("<I", data, at)[0]
        shape = struct.unpack_from(f"<{dims}Q", data, at + 4)
        kind, offset = struct.unpack_from("<IQ", data, at + 4 + 8 * dims)
        infos.append((name, shape, kind, offset))
        at += 16 + 8 * dims
    base, out = -(-at // 32) * 32, {}
    for name, shape, kind, offset in infos:
        words, per, size = GGUF_TYPES[kind]
        elements = 1
        for d in shape:
            elements *= d
        raw = data[base + offset:base + offset + elements // per * size]
        values = tensor_files.decode(words, raw) if per == 1 else \
            [v for i in range(0, len(raw), size) for v in gguf_block(words, raw[i:i + size])]
        out[name] = (words, [values[i:i + shape[0]] for i in range(0, elements, shape[0])])
    return out


# ---- a directory ----

class Directory:
    """The weights of a Hugging Face directory, whatever their dialect."""

    def __init__(self, path):
        path = pathlib.Path(path)
        self.config = json.loads((path / "config.json").read_text())
        self.tensors, self.metadata = tensor_files.read(path / "model.safetensors")
        self.said = self.config.get("quantization_config") or {}

    def weight(self, name):
        """The Weight of a module, or None."""
        described = self.metadata.get(name + ".weight")
        if name + "._weight_qdata" in self.tensors and described:
            described = json.loads(described)
            return read_torchao(name, described, self.tensors) if "_type" in described else \
                read_nibble(name, described, self.tensors)
        if name + ".scales" in self.tensors:
            return read_8da4w(name, self.tensors)
        if name + ".weight_scale" in self.tensors:
            return read_compressed(name, self.tensors, self.said)
        t = self.tensors.get(name + ".weight")
        return None if t is None else Weight(t.rows(), dtype=t.dtype)

    def vector(self, name):
        t = self.tensors.get(name)
        return None if t is None else t.values()
