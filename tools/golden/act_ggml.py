#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Codes and scales that ggml's reference quantizers give small activations, as
tests/golden/act_ggml.txt.

Usage: python3 tools/golden/act_ggml.py LIBGGML_BASE VERSION > tests/golden/act_ggml.txt
Needs: numpy, and libggml-base.so of a llama.cpp (here that of llama-cpp-python's source).

Lines:  VALUES, then SCALES CODES of Q8_0 and SCALES CODES of Q8_K; hex, little endian, values and
        scales f32 (Q8_0's are f16, widened), codes one byte each.
Among the values are ties of both roundings, both signs of a largest value, and blocks of 0.
"""
import ctypes
import sys

import numpy as np

SEED = 20261120


def blocks(rng):
    """Rows of 512 values."""
    for spread in (1.0, 1e-4, 3e4, 1.0, 1.0):
        yield rng.standard_normal(512) * spread
    ties = np.arange(512) % 250 / 2 - 62.25  # the scale of both is 1: halves are ties
    ties = np.round(ties * 2) / 2
    ties[::32] = 127
    yield ties
    ties = ties.copy()
    ties[::32] = -127
    yield ties
    both = rng.standard_normal(512)
    both[5::256], both[9::256] = 7, -7
    yield both
    yield -both
    some = rng.standard_normal(512)
    some[32:64] = 0
    some[256:] = 0
    yield some


def main():
    library, version = ctypes.CDLL(sys.argv[1]), sys.argv[2]
    print(f"# {version}, libggml-base, seed {SEED}, tools/golden/act_ggml.py LIBGGML_BASE VERSION")
    forms = (
        (32, library.quantize_row_q8_0_ref, np.dtype([("d", "<f2"), ("q", "i1", 32)])),
        (256, library.quantize_row_q8_K_ref,
         np.dtype([("d", "<f4"), ("q", "i1", 256), ("sums", "<i2", 16)])),
    )
    rng = np.random.default_rng(SEED)
    for values in blocks(rng):
        x = np.ascontiguousarray(values, "<f4")
        words = [x.tobytes().hex()]
        for block, quantize, layout in forms:
            out = np.zeros(x.size // block, layout)
            quantize(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data),
                     ctypes.c_int64(x.size))
            words += [out["d"].astype("<f4").tobytes().hex(), out["q"].tobytes().hex()]
        print(*words)


if __name__ == "__main__":
    main()
