# SPDX-License-Identifier: Apache-2.0
"""Safetensors and Hugging Face directories, read and written without any package."""
import json
import pathlib
import struct

from number_types import WIDTH, decode, encode


class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), data

    @classmethod
    def of(cls, dtype, shape, values):
        return cls(dtype, shape, encode(dtype, values))

    def values(self):
        return decode(self.dtype, self.data)

    def rows(self):
        """Its values as rows of the last dimension."""
        values, width = self.values(), self.shape[-1] if self.shape else 1
        return [values[i:i + width] for i in range(0, len(values), width)]

    def as_type(self, dtype, change=lambda v: v):
        return Tensor.of(dtype, self.shape, [change(v) for v in self.values()])


def read(path):
    """({name: Tensor}, metadata) of a file."""
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + size]), data[8 + size:]
    metadata = header.pop("__metadata__", {})
    return {n: Tensor(t["dtype"], t["shape"], body[slice(*t["data_offsets"])]) for n, t in header.items()}, metadata


def write(path, tensors, metadata=None):
    header, body = {"__metadata__": metadata} if metadata else {}, b""
    # wide types first, so that each lies on a multiple of its size
    for name, t in sorted(tensors.items(), key=lambda item: (-WIDTH[item[1].dtype], item[0])):
        header[name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": [len(body), len(body) + len(t.data)]}
        body += t.data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)
