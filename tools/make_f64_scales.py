#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrites the scales of a quantized checkpoint as float64, as some versions of torchao computed them.

Every tensor of a .safetensors file whose name ends in `scale` and whose type is F32, F16 or BF16 becomes F64. The other
files of the directory are copied, except the manifest. --nudge X multiplies each scale by 1 + X, so that no narrower type holds it
exactly.
usage: tools/make_f64_scales.py IN OUT [--nudge X]      IN and OUT are directories
"""
import argparse
import json
import os
import shutil
import struct
import sys

SIZES = {"F32": 4, "F16": 2, "BF16": 2}


def as_floats(dtype, data):
    count = len(data) // SIZES[dtype]
    if dtype == "BF16": # the upper half of a float32
        halves = struct.unpack(f"<{count}H", data)
        return struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(h << 16 for h in halves)))
    return struct.unpack(f"<{count}{'f' if dtype == 'F32' else 'e'}", data)


def rewrite(source, target, nudge):
    """Rewrites one safetensors file; returns the number of tensors converted to F64."""
    with open(source, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = f.read()
    changed, at, parts, out = 0, 0, [], {}
    if "__metadata__" in header:
        out["__metadata__"] = header.pop("__metadata__")
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = tensor["data_offsets"]
        dtype, part = tensor["dtype"], data[begin:end]
        if name.endswith("scale") and dtype in SIZES:
            values = [v * (1 + nudge) for v in as_floats(dtype, part)]
            dtype, part = "F64", struct.pack(f"<{len(values)}d", *values)
            changed += 1
        out[name] = {"dtype": dtype, "shape": tensor["shape"], "data_offsets": [at, at + len(part)]}
        at += len(part)
        parts.append(part)
    text = json.dumps(out, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))
    return changed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--nudge", type=float, default=0.0)
    a = parser.parse_args()
    os.mkdir(a.target)
    changed = 0
    for name in sorted(os.listdir(a.source)):
        source, target = os.path.join(a.source, name), os.path.join(a.target, name)
        if name.endswith(".safetensors"):
            changed += rewrite(source, target, a.nudge)
        elif name != "nibble.json" and os.path.isfile(source):
            shutil.copyfile(source, target)
    print(f"{changed} scale tensors are F64 now")
    return changed == 0


sys.exit(main())
