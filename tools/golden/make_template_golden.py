#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders templates as transformers' apply_chat_template does and writes the results.

    make_template_golden.py GOLDEN [DATA]

GOLDEN is tests/golden. Its template_cases.txt and template_chats.txt hold the cases and are rewritten with
their results: to add a case, add its line without a result. DATA ($NIBBLE_TEST_DATA) has known models'
templates; without it their lines stay as they are.

template_cases.txt: "@ VALUES" (a JSON object of variables), then lines TEMPLATE, tab, RESULT, where TEMPLATE
is a JSON string.

template_chats.txt: "@ NAME VALUES" for each conversation, then lines FILE, tab, NAME, tab, RESULT. FILE is of
GOLDEN/templates or of DATA. Every file has every conversation.

RESULT is a JSON string; "SIZE HASH" (FNV-1a, 64 bits) for known models' templates; or "!" if rendering
fails, followed by the text of raise_exception as a JSON string.
"""
import datetime
import json
import pathlib
import sys

import jinja2
from transformers.utils.chat_template_utils import _compile_jinja_template

NOW = datetime.datetime(2023, 11, 14, 22, 13, 20)  # 1,700,000,000 seconds after 1970, in UTC
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

KNOWN = ["text/chat_templates/*.jinja", "text/mistral-chat/chat_templates/*.jinja", "tokenizers/*/chat_template.jinja"]


def dumps(value):
    """JSON on one line."""
    return json.dumps(value, ensure_ascii=False).replace("\u2028", "\\u2028").replace("\u0085", "\\u0085").replace("\x7f", "\\u007f")


def render(template, values):
    """The text, or ! and what raise_exception said. values: JSON, because some filters change lists."""
    try:
        return _compile_jinja_template(template).render(**{**TOKENS, "strftime_now": NOW.strftime, **json.loads(values)})
    except jinja2.exceptions.TemplateError as error:
        return ("!" + dumps(str(error.message)),) if type(error) is jinja2.exceptions.TemplateError else ("!",)
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError, SyntaxError):
        return ("!",)


def hashed(text):
    data, value = text.encode(), 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{len(data)} {value:016x}"


def shown(result):
    return result[0] if isinstance(result, tuple) else dumps(result)


def write(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")


def read(path):
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


def write_cases(path):
    values, lines = None, []
    for line in read(path):
        if line.startswith("@ "):
            values = line[2:]
        elif not line.startswith("#"):
            template = line.split("\t")[0]
            line = template + "\t" + shown(render(json.loads(template), values))
        lines.append(line)
    write(path, lines)


def write_chats(path, own, data):
    old = read(path)
    head = [line for line in old if line[0] in "#@"]
    chats = dict(line[2:].split(" ", 1) for line in head if line[0] == "@")
    lines = []
    for file in sorted(own.glob("*.jinja")):
        source = file.read_bytes().decode()
        for name, values in chats.items():
            lines.append(f"{file.name}\t{name}\t{shown(render(source, values))}")
    if data is None:
        lines += [line for line in old if "/" in line.split("\t")[0] and line[0] not in "#@"]
    else:
        for file in (file for pattern in KNOWN for file in sorted(data.glob(pattern))):
            source = file.read_bytes().decode()
            for name, values in chats.items():
                result = render(source, values)
                result = result[0] if isinstance(result, tuple) else hashed(result)
                lines.append(f"{file.relative_to(data)}\t{name}\t{result}")
    write(path, head + lines)


def main():
    golden = pathlib.Path(sys.argv[1])
    write_cases(golden / "template_cases.txt")
    write_chats(golden / "template_chats.txt", golden / "templates", pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None)


main()
