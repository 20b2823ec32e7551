#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes which texts are JSON according to Python's json and its UTF-8 decoder: tests/golden/json_texts.txt.

Usage: python3 tools/golden/make_json_golden.py > tests/golden/json_texts.txt
Needs: only Python.

Strict JSON: no NaN and no Infinity. A lone surrogate, which Python accepts, counts as refused, as it has no UTF-8. A line is

accept BYTES, refuse BYTES       a text, in hexadecimal
changes BYTES SET VERDICTS       a text, a set of bytes, and the verdict of each change: at each position, first with the byte
                                 removed, then for each byte of SET with the byte replaced by it, then with it inserted
                                 before. VERDICTS: a bit per change, 1 accepts, four per hexadecimal digit, the first highest
"""
import json
import platform
import sys

SIGNS = b'"\\{}[]:,019.eE+-tufn/ \t\n\x00\x1f\x7f\x80\xc3\xff'
HIGH = bytes.fromhex("22 41 5c 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 ed ef f0 f1 f4 f5 f8 ff")
SAMPLES = [
    (b'{"a":[1,-2.5e+3,{}],"b\\n":null}', SIGNS), (b' [true , false,"x" ]\n', SIGNS), (b'-0.1E-2', SIGNS), (b'[[],[0]]', SIGNS),
    (b'["\\u00e9\\ud83d\\ude00\\t"]', SIGNS + b"8dD"), ('"é€😀"'.encode(), HIGH),
    (bytes.fromhex("22 ed9fbf ee8080 f48fbfbf 22"), HIGH), (bytes.fromhex("22 c280 e0a080 f0908080 22"), HIGH),
]
TEXTS = [
    b"", b" ", b"null", b"nul", b"nulll", b"True", b"NaN", b"-Infinity", b"[]", b"[]]", b"[[]", b"{}", b"{}}", b"[}", b"{]", b"[1,]", b"[,1]",
    b"[,]", b"[1,,2]", b'{"a":1,}', b'{,"a":1}', b'{"a"}', b'{"a":}', b'{:1}', b"{1:1}", b"{a:1}", b"{'a':1}", b'{"a":1 "b":2}',
    b'{"a":1,"a":2}', b'{"":0}', b"[1 2]", b"1 2", b"/**/1", b"1//", b"#", b"[1]x", b"\x0b1", b"\x0c1", b"1\xc2\xa0", b"\xe2\x80\xa81",
    b"-", b"--1", b"+1", b"01", b"-01", b"00", b"0.", b".0", b"0.e1", b"1e", b"1e+", b"1e-", b"1e1.5", b"1ee1", b"0x1", b"1_0",
    b"1e5", b"1E+05", b"-0", b"0.00", b"1.0e-0", b'"', b'"a', b"'a'", b'"a"b', b'"\n"', b'"\t"', b'"\x7f"', b'"\\"', b'"\\a"',
    b'"\\0"', b'"\\x41"', b'"\\u"', b'"\\u12"', b'"\\u123"', b'"\\u12G4"', b'"\\U0041"', b'"\\u 041"', b'"\\u0000"', b'"\\u+041"',
    b'"\\ud800"', b'"\\udfff\\ud800"', b'"\\ud800\\u0041"', b'"\\ud800\\udbff"', b'"\\uD834\\uDD1E"', b'"\\/\\b\\f\\n\\r\\t\\"\\\\"',
    bytes.fromhex("22c32822"), bytes.fromhex("22c0af22"), bytes.fromhex("22eda08022"), bytes.fromhex("22f490808022"),
    bytes.fromhex("22e28222"), bytes.fromhex("22efbfbf22"), b"[" * 60 + b"]" * 60, b"[" * 60 + b"]" * 59, b'{"a":' * 60 + b"1" + b"}" * 60,
]


def constant(name):
    raise ValueError(name)


def accepts(data):
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=constant)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
        return True
    except ValueError:  # also text that cannot be decoded or encoded
        return False


def changes(data, replacements):
    for i in range(len(data)):
        yield data[:i] + data[i + 1:]
        for byte in replacements:
            yield data[:i] + bytes([byte]) + data[i + 1:]
            yield data[:i] + bytes([byte]) + data[i:]


def main():
    if len(sys.argv) != 1:
        sys.exit(__doc__)
    print(f"# Python {platform.python_version()}, no seed: python3 tools/golden/make_json_golden.py")
    for text in TEXTS:
        print("accept" if accepts(text) else "refuse", text.hex() or "-")
    for data, replacements in SAMPLES:
        assert accepts(data), data
        bits = "".join("1" if accepts(text) else "0" for text in changes(data, replacements))
        bits += "0" * (-len(bits) % 4)
        print("changes", data.hex(), replacements.hex(), "".join(f"{int(bits[i:i + 4], 2):x}" for i in range(0, len(bits), 4)))


if __name__ == "__main__":
    main()
