#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Continues a prompt if everything is done as asked, and prints the text piece by piece.

usage: generate.py MODEL PROMPT [RECIPE]"""
import sys

import nibble


def main(path, prompt, recipe=None):
    with nibble.Model(path, recipe=recipe, strict=True) as model:
        for piece in model.generate(prompt, max_tokens=40, temperature=0):
            print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except nibble.Error as error:
        sys.exit(f"{error.status}: {error}")
