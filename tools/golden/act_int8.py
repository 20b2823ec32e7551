# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/act_int8.txt: int8 codes of single tokens by torchao's own functions.

Line: mapping (s or a) and eps (8: torchao 0.18, 7: 0.17 and older), scale, zero | x | q; floats in hexadecimal.
"""
import sys

import torch
import torchao
from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine, quantize_affine

SEED = 20261120


def token(kind, generator):
    count = int(torch.randint(1, 100, (1,), generator=generator))
    x = torch.randn(count, generator=generator)
    return [x, x.abs(), -x.abs(), x * 1e-40, x * 1e-30, x * 0, x * 1e30, torch.full((count,), 0.375)][kind % 8]


def main(path):
    generator = torch.Generator().manual_seed(SEED)
    with open(path, "w") as out:
        out.write(f"# torchao {torchao.__version__}, torch {torch.__version__}, seed {SEED}: tools/golden/act_int8.py\n")
        for kind in range(16):
            x = token(kind, generator)
            for name, mapping, eps in (("a8", MappingType.ASYMMETRIC, None), ("a7", MappingType.ASYMMETRIC, 2.0**-23),
                                       ("s8", MappingType.SYMMETRIC, 2.0**-23)):
                scale, zero = choose_qparams_affine(x, mapping, (x.numel(),), torch.int8, -128, 127, eps=eps,
                                                    scale_dtype=torch.float32, zero_point_dtype=torch.int32)
                q = quantize_affine(x, (x.numel(),), scale, zero, torch.int8, -128, 127)
                out.write(f"{name} {scale.item().hex()} {zero.item()} | {' '.join(v.item().hex() for v in x)} | "
                          f"{' '.join(str(v.item()) for v in q)}\n")


main(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/act_int8.txt")
