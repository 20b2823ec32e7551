#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/gguf_blocks.gguf: floats, and the same quantized by PyPI's gguf.

    make_gguf_blocks.py [OUT]

Tensor "x" has the floats, "Q8_0" and so on the same in that type. Rows are random weights of several sizes, constants,
zeros, powers of two and ties of each type's rounding. Negative zeros are left out, as this package and ggml differ in
the sign of a scale or minimum of 0.
"""
import sys
from importlib import metadata

import gguf
import numpy as np

SEED = 3
TYPES = [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1,
         gguf.GGMLQuantizationType.MXFP4]


def rows():
    rng = np.random.default_rng(SEED)
    for scale in (1, 0.02, 1e-3, 30, 1e4, 1e-6):
        for _ in range(4):
            yield rng.standard_normal(64) * scale
    yield np.zeros(64)
    yield np.full(64, 0.3)
    yield np.full(64, -0.3)
    yield np.arange(64) - 31.5
    yield np.arange(64) / 8 - 4
    yield np.ldexp(1.0, np.arange(64) % 16 - 12)
    yield -np.ldexp(1.0, np.arange(64) % 9 - 4)
    yield np.resize([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, -0.25, -0.75, -2.5, -5], 64)
    yield np.resize([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5], 64)
    yield np.resize([-8, 8, 7.5, 0.5, -0.5, 1.5, -7.5, 3.4999999], 64)
    yield np.nextafter(np.float32(np.ldexp(1.0, np.arange(64) // 32 - 4)), np.float32(0))
    yield np.where(np.arange(64) == 40, 60000.0, 1e-3)


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/gguf_blocks.gguf"
    x = np.stack([np.asarray(row, dtype=np.float32) for row in rows()])
    w = gguf.GGUFWriter(out, "none")
    w.add_string("golden.made_by", f"gguf {metadata.version('gguf')}, numpy {np.__version__}, seed {SEED}: "
                 "python3 tools/golden/make_gguf_blocks.py")
    w.add_tensor("x", x)
    for kind in TYPES:
        w.add_tensor(kind.name, gguf.quants.quantize(x, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
