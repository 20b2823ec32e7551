#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes conversions and dequantizations of ml_dtypes, numpy and onnx's reference evaluator:
tests/golden/number_casts.txt.

Usage: python3 tools/golden/make_number_golden.py > tests/golden/number_casts.txt
Needs: ml_dtypes, numpy, onnx.

All numbers are hexadecimal; f32 values are their bits. A line is one of

decode FORMAT CODE=F32...            ml_dtypes; f16 and f64 numpy. All codes; a sample for 16 bits and more
encode FORMAT F32=CODE[/CODE]...     ml_dtypes; f16 numpy. After the slash: saturated, by onnx's Cast. The values: every
                                     special one, and for a sample of codes the value, the midpoint to the next one and
                                     the midpoint's neighbours. e8m0 is onnx's Cast with round_mode up, for finite values
                                     that are not denormal (onnx makes 2^-126 of each, even of 2^-127);
                                     e2m1 has no NaN, so none is cast to it
pack int4 COUNT BYTES=VALUES         onnx's packing of int4 codes into bytes; a value is a byte in two's complement
quantize FORMAT SCALE F32=CODE...    onnx's QuantizeLinear, except for -0, whose sign it keeps only in some formats
dequantize CODES ZEROS SCALES AXIS BLOCK ROWS COLUMNS codes=HEX zeros=HEX scales=F32... values=F32...
                                     onnx's DequantizeLinear. CODES, SCALES: types; a code or zero has one byte. ZEROS: the
                                     type of the zero points, or none. AXIS: 0 or 1 (blocks along it), row (a scale per
                                     row) or tensor (one scale); BLOCK is 0 for the last two. All values are row by row
"""
import sys
import warnings

import ml_dtypes
import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

SEED = 20261123
F32 = numpy.float32
TYPES = {
    "f16": (numpy.float16, TensorProto.FLOAT16), "bf16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16),
    "e4m3": (ml_dtypes.float8_e4m3fn, TensorProto.FLOAT8E4M3FN), "e5m2": (ml_dtypes.float8_e5m2, TensorProto.FLOAT8E5M2),
    "e2m1": (ml_dtypes.float4_e2m1fn, TensorProto.FLOAT4E2M1), "e8m0": (ml_dtypes.float8_e8m0fnu, TensorProto.FLOAT8E8M0),
    "int4": (ml_dtypes.int4, TensorProto.INT4), "int8": (numpy.int8, TensorProto.INT8),
    "uint8": (numpy.uint8, TensorProto.UINT8), "f32": (F32, TensorProto.FLOAT),
}
SPECIAL = [0x00000000, 0x00000001, 0x00400000, 0x00800000, 0x007fffff, 0x33000000, 0x33000001, 0x3f800000, 0x477fe000,
           0x477fefff, 0x477ff000, 0x47800000, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000]


def evaluate(op, inputs, out_type, **attributes):
    names = [f"x{i}" for i in range(len(inputs))]
    types = [helper.np_dtype_to_tensor_dtype(x.dtype) for x in inputs]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)], "g",
        [helper.make_tensor_value_info(n, t, list(x.shape)) for n, t, x in zip(names, types, inputs)],
        [helper.make_tensor_value_info("y", out_type, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    return ReferenceEvaluator(model).run(None, dict(zip(names, inputs)))[0]


def codes_of(values):
    """The codes as unsigned numbers."""
    bits = values.view(numpy.uint16 if values.dtype.itemsize == 2 else numpy.uint8)
    return bits & 15 if values.dtype == ml_dtypes.float4_e2m1fn else bits


def hexes(bits, width):
    return [f"{int(b):0{width}x}" for b in bits]


def f32_hex(values):
    with numpy.errstate(all="ignore"):
        return hexes(values.astype(F32).ravel().view(numpy.uint32), 8)


def bytes_hex(values):
    return values.view(numpy.uint8).ravel().tobytes().hex()


def put(head, left, right):
    for i in range(0, len(left), 8):
        print(head, *(f"{a}={b}" for a, b in zip(left[i:i + 8], right[i:i + 8])))


def bits_and_width(name):
    bits = {"e2m1": 4, "f16": 16, "bf16": 16}.get(name, 8)
    return bits, bits // 4


def sample(random, name, count):
    """A sample of codes without their sign: some at the ends, the others random; all if there are few."""
    bits, _ = bits_and_width(name)
    top = 1 << (bits if name == "e8m0" else bits - 1)
    if top <= count:
        return numpy.arange(top)
    return numpy.unique(numpy.concatenate([numpy.arange(4), top - 1 - numpy.arange(4),
                                           random.integers(0, top, count - 8)]))


def values_of(name, codes):
    bits, _ = bits_and_width(name)
    return codes.astype(numpy.uint16 if bits == 16 else numpy.uint8).view(TYPES[name][0])


def write_decode(random):
    for name in ("e2m1", "e4m3", "e5m2", "e8m0", "f16", "bf16"):
        bits, width = bits_and_width(name)
        codes = numpy.arange(1 << bits)
        if bits == 16:
            codes = sample(random, name, 64)
            codes = numpy.concatenate([codes, codes + (1 << 15)])
        put(f"decode {name}", hexes(codes, width), f32_hex(values_of(name, codes)))
    doubles = numpy.concatenate([
        F32(1) + numpy.array([0, 1, 0.5, 1.5, 0.5 + 2.0**-20, 0.5 - 2.0**-20]) * 2.0**-23,
        numpy.array([0.0, -0.0, 2.0**-150, 2.0**-149, 1.5 * 2.0**-149, 2.0**-127, 3.4e38, 3.5e38, -1e300, 1e-300, numpy.inf]),
        random.standard_normal(16) * 10.0 ** random.integers(-44, 39, 16)])
    put("decode f64", hexes(doubles.view(numpy.uint64), 16), f32_hex(doubles))


def inputs_of(random, name):
    """f32 values that are special or near ties in a format."""
    codes = sample(random, name, 40)
    values = values_of(name, codes).astype(numpy.float64)
    values = values[numpy.isfinite(values)]
    after = values_of(name, codes + 1) if name == "e8m0" else values_of(name, numpy.minimum(codes + 1, codes[-1]))
    after = after.astype(numpy.float64)[:len(values)]
    middle = ((values + after) / 2).astype(F32)
    middle = middle[numpy.isfinite(middle)]
    largest = numpy.float64(ml_dtypes.finfo(TYPES[name][0]).max)
    over = (largest * numpy.array([1 + 2.0**-9, 1.03, 1.03125, 1.0625, 1.0714, 1.125, 1.1667, 1.25, 1.5, 2])).astype(F32)
    some = random.standard_normal(24) * 2.0 ** random.integers(-12, 9, 24)
    x = numpy.concatenate([values.astype(F32), middle, numpy.nextafter(middle, F32(0)), numpy.nextafter(middle, F32(numpy.inf)),
                           over, numpy.array(SPECIAL, numpy.uint32).view(F32), some.astype(F32)])
    x = numpy.unique(x.view(numpy.uint32) & 0x7fffffff)
    signs = random.integers(0, 2, len(x)).astype(numpy.uint32) << 31
    signs[x == 0] = 0
    return numpy.concatenate([x | signs, [numpy.uint32(1 << 31)]]).view(F32)


def write_encode(random):
    for name in ("e2m1", "e4m3", "e5m2", "e8m0", "f16", "bf16"):
        dtype, onnx_type = TYPES[name]
        _, width = bits_and_width(name)
        x = inputs_of(random, name)
        if name == "e2m1":
            x = x[~numpy.isnan(x)]
        if name == "e8m0":
            x = x[numpy.isfinite(x) & ((x == 0) | (abs(x) >= F32(2.0**-126)))]
            codes = hexes(codes_of(evaluate("Cast", [x], onnx_type, to=onnx_type, round_mode="up")), width)
        else:
            codes = hexes(codes_of(x.astype(dtype)), width)
        if name in ("e4m3", "e5m2"):
            plain = evaluate("Cast", [x], onnx_type, to=onnx_type, saturate=0)
            assert (codes_of(plain) == codes_of(x.astype(dtype))).all()
            saturated = hexes(codes_of(evaluate("Cast", [x], onnx_type, to=onnx_type, saturate=1)), width)
            codes = [f"{a}/{b}" for a, b in zip(codes, saturated)]
        put(f"encode {name}", hexes(x.view(numpy.uint32), 8), codes)


def write_pack(random):
    for count in (1, 2, 16, 33):
        values = (numpy.arange(16) - 8 if count == 16 else random.integers(-8, 8, count)).astype(numpy.int8)
        packed = numpy_helper.from_array(values.astype(ml_dtypes.int4)).raw_data
        print(f"pack int4 {count} {packed.hex()}={bytes_hex(values)}")


def write_quantize(random):
    for name in ("e4m3", "e5m2", "e2m1"):
        dtype, onnx_type = TYPES[name]
        for scale in (F32(0.0625), F32(3.7)):
            reach = 1.5 * float(ml_dtypes.finfo(dtype).max) * float(scale)
            x = numpy.concatenate([[0.0, -1e-30, reach, -reach], reach * random.uniform(-1, 1, 27) ** 5]).astype(F32)
            y = evaluate("QuantizeLinear", [x, numpy.array(scale), numpy.zeros((), dtype)], onnx_type)
            put(f"quantize {name} {f32_hex(numpy.array(scale))[0]}", f32_hex(x), hexes(codes_of(y), bits_and_width(name)[1]))


DEQUANTIZE = [  # codes, zeros, scales, axis, block, rows, columns
    ("int4", "int4", "f32", "1", 16, 3, 64), ("int4", "none", "f32", "1", 32, 2, 96), ("int4", "int4", "f32", "tensor", 0, 2, 9),
    ("int4", "int4", "f32", "row", 0, 5, 7), ("uint8", "uint8", "f32", "0", 2, 4, 6), ("uint8", "uint8", "f32", "1", 8, 3, 24),
    ("int8", "none", "f32", "row", 0, 4, 33), ("int8", "int8", "f16", "1", 16, 2, 32), ("e4m3", "none", "f32", "row", 0, 3, 20),
    ("e4m3", "none", "f32", "tensor", 0, 2, 16), ("e5m2", "none", "f32", "row", 0, 2, 16),
    ("e2m1", "none", "e4m3", "1", 16, 2, 48), ("e2m1", "none", "e8m0", "1", 32, 2, 64),
]


def random_codes(random, name, shape):
    dtype = TYPES[name][0]
    if name == "int4":
        return random.integers(-8, 8, shape).astype(numpy.int8).astype(dtype)
    if name in ("int8", "uint8"):
        return random.integers(0, 256, shape).astype(numpy.uint8).view(dtype)
    codes = random.integers(0, 1 << bits_and_width(name)[0], shape).astype(numpy.uint8)
    values = codes.view(dtype)
    return numpy.where(numpy.isfinite(values.astype(F32)), values, dtype(1)).astype(dtype)


def write_dequantize(random):
    for codes, zeros, scales, axis, block, rows, columns in DEQUANTIZE:
        x = random_codes(random, codes, (rows, columns))
        shape = {"0": (rows // max(block, 1), columns), "1": (rows, columns // max(block, 1)), "row": (rows,),
                 "tensor": ()}[axis]
        if scales == "e8m0":
            s = random.integers(120, 134, shape).astype(numpy.uint8).view(TYPES[scales][0])
        else:
            s = random.uniform(0.01, 1, shape).astype(TYPES[scales][0])
        inputs = [x, numpy.asarray(s)]
        if zeros != "none":
            inputs.append(numpy.asarray(random_codes(random, zeros, shape or (1,)).reshape(shape)))
        attributes = {"output_dtype": TensorProto.FLOAT}
        attributes |= {} if axis == "tensor" else {"axis": 0 if axis == "row" else int(axis)}
        if block:
            attributes["block_size"] = block
        y = evaluate("DequantizeLinear", inputs, TensorProto.FLOAT, **attributes)
        zero = bytes_hex(inputs[2].astype(numpy.int8)) if zeros == "int4" else bytes_hex(inputs[2]) if zeros != "none" else "-"
        code = bytes_hex(x.astype(numpy.int8)) if codes == "int4" else bytes_hex(x)
        print(f"dequantize {codes} {zeros} {scales} {axis} {block} {rows} {columns} codes={code} zeros={zero} "
              f"scales={''.join(f32_hex(inputs[1]))} values={''.join(f32_hex(y))}")


def main():
    if len(sys.argv) != 1:
        sys.exit(__doc__)
    warnings.simplefilter("ignore")
    numpy.seterr(all="ignore")
    random = numpy.random.Generator(numpy.random.PCG64(SEED))
    print(f"# ml_dtypes {ml_dtypes.__version__}, numpy {numpy.__version__}, onnx {onnx.__version__}, seed {SEED}, "
          "python3 tools/golden/make_number_golden.py")
    write_decode(random)
    write_encode(random)
    write_pack(random)
    write_quantize(random)
    write_dequantize(random)


if __name__ == "__main__":
    main()
