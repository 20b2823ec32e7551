#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the codes and scales that ggml's reference quantizers make from small activations
(tests/golden/act_ggml.txt); with --dots, products of ggml's blocks with them
(tests/golden/dots_ggml.txt).

Usage: python3 tools/golden/act_ggml.py LIBGGML_BASE VERSION > tests/golden/act_ggml.txt
       python3 tools/golden/act_ggml.py LIBGGML_BASE VERSION --dots > tests/golden/dots_ggml.txt
Needs: numpy, and libggml-base.so and libggml-cpu.so, in one folder, of a llama.cpp (here that of
llama-cpp-python's source).

Lines:  VALUES, then SCALES CODES of Q8_0 and SCALES CODES of Q8_K; hex, little endian, values and
        scales f32 (Q8_0's are f16, widened), codes one byte each.
        --dots: TYPE VALUES BLOCKS PRODUCTS, 3 rows of blocks and their products with the values (f32),
        by ggml's code for the current CPU (AVX-512): its portable code for Q5_0, compiled by gcc 12,
        contradicts ggml's own dequantization.
The values include ties of both roundings, both signs of a largest value, and blocks of 0.
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


def dots(library, cpu):
    """Products of weights quantized by ggml with activations quantized by its reference."""
    types = {"Q4_0": (18, "q8_0"), "Q4_1": (20, "q8_1"), "Q5_0": (22, "q8_0"), "Q5_1": (24, "q8_1"),
             "Q8_0": (34, "q8_0"), "IQ4_NL": (18, "q8_0"), "Q4_K": (144, "q8_K"), "Q5_K": (176, "q8_K"),
             "Q6_K": (210, "q8_K"), "Q2_K": (84, "q8_K"), "Q3_K": (110, "q8_K")}
    rng = np.random.default_rng(SEED)
    pointer, rows, k = (lambda a: ctypes.c_void_p(a.ctypes.data)), 3, 512
    for name, (size, act) in types.items():
        lower = name if name.endswith("K") else name.lower()
        lower = lower[0].lower() + lower[1:]
        w = rng.standard_normal((rows, k)).astype("<f4")
        x = rng.standard_normal(k).astype("<f4")
        blocks = np.zeros((rows, k // (256 if name.endswith("_K") else 32) * size), np.uint8)
        codes = np.zeros(4 * k, np.uint8)
        for i in range(rows):
            getattr(library, f"quantize_row_{lower}_ref")(pointer(w[i]), pointer(blocks[i]), ctypes.c_int64(k))
        getattr(library, f"quantize_row_{act}_ref")(pointer(x), pointer(codes), ctypes.c_int64(k))
        out = np.zeros(rows, "<f4")
        for i in range(rows):
            getattr(cpu, f"ggml_vec_dot_{lower}_{act}")(
                ctypes.c_int(k), pointer(out[i:]), ctypes.c_size_t(0), pointer(blocks[i]), ctypes.c_size_t(0),
                pointer(codes), ctypes.c_size_t(0), ctypes.c_int(1))
        print(name, x.tobytes().hex(), blocks.tobytes().hex(), out.tobytes().hex())


def main():
    library, version = ctypes.CDLL(sys.argv[1]), sys.argv[2]
    if sys.argv[3:] == ["--dots"]:
        cpu = ctypes.CDLL(sys.argv[1].replace("ggml-base", "ggml-cpu"))
        cpu.ggml_cpu_init()
        print(f"# {version}, libggml-cpu, seed {SEED}, tools/golden/act_ggml.py LIBGGML_BASE VERSION --dots")
        dots(library, cpu)
        return
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
