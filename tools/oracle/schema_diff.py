#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes random schemas and random texts that their masks allow, and checks each text with jsonschema.

usage: schema_diff.py SCHEMA_WALKS TOKENIZER_JSON [SCHEMAS [WALKS [SEED]]]     Last line: N texts of M schemas, K failed
"""
import json
import random
import subprocess
import sys
from datetime import datetime

import jsonschema

CHARACTERS = "abc \"\\/\n\u00e9\u20ac\U0001f600\x7f\x01"
checker = jsonschema.FormatChecker(formats=())


@checker.checks("date", ValueError)
def is_date(text):
    if not isinstance(text, str):
        return True
    return len(text) == 10 and bool(datetime.strptime(text, "%Y-%m-%d"))


@checker.checks("date-time", ValueError)
def is_date_time(text):
    if not isinstance(text, str):
        return True
    head, tail = text[:19], text[19:].lstrip(".0123456789")
    hours, minutes = ("00", "00") if tail == "Z" else tail[1:].split(":")
    return bool(datetime.strptime(head, "%Y-%m-%dT%H:%M:%S")) and int(hours) < 24 and int(minutes) < 60


@checker.checks("time", ValueError)
def is_time(text):
    if not isinstance(text, str):
        return True
    return is_date_time("2000-01-01T" + text)


@checker.checks("uuid", ValueError)
def is_uuid(text):
    if not isinstance(text, str):
        return True
    parts = text.split("-")
    return [len(p) for p in parts] == [8, 4, 4, 4, 12] and int(text.replace("-", ""), 16) >= 0


def name(r):
    return "".join(r.choice(CHARACTERS) for _ in range(r.randint(1, 3)))


def value(r, depth):
    kind = r.randint(0, 7 if depth > 0 else 5)
    if kind < 6:
        return [None, True, r.randint(-200, 200), name(r), False, r.choice([0.5, -1e20, 1.25e-3])][kind]
    if kind == 6:
        return [value(r, depth - 1) for _ in range(r.randint(0, 2))]
    return {name(r): value(r, depth - 1) for _ in range(r.randint(0, 2))}


def bounds(r, schema, low, high):
    if r.random() < 0.6:
        schema[r.choice(["minimum", "exclusiveMinimum"])] = low
    if r.random() < 0.6:
        schema[r.choice(["maximum", "exclusiveMaximum"])] = high


def schema(r, depth):
    kinds = ["string", "integer", "number", "word", "enum", "format", "const"]
    if depth > 0:
        kinds += ["object", "object", "object", "array", "array", "anyOf", "oneOf", "ref", "any", "types", "allOf"]
    kind = r.choice(kinds)
    out = {}
    if kind == "string":
        out["type"] = "string"
        if r.random() < 0.5:
            out["minLength"] = r.randint(0, 6)
        if r.random() < 0.5:
            out["maxLength"] = r.randint(6, 12)
    elif kind == "integer":
        out["type"] = "integer"
        low = r.choice([r.randint(-2000, 2000), r.randint(-10**9, 10**9), 0])
        bounds(r, out, low, low + r.choice([2, 7, 100, 10**6]))
    elif kind == "number":
        out["type"] = "number"
        low = r.choice([0, r.randint(-50, 50) / 4, -0.125])
        bounds(r, out, low, low + r.choice([0.25, 1, 1000]))
    elif kind == "word":
        out["type"] = r.choice(["boolean", "null", ["null", "boolean"]])
    elif kind == "enum":
        out["enum"] = [value(r, 2) for _ in range(r.randint(1, 5))]
    elif kind == "const":
        out["const"] = value(r, 3)
    elif kind == "format":
        out = {"type": "string", "format": r.choice(["date", "time", "date-time", "uuid"])}
    elif kind == "object":
        names = list(dict.fromkeys(name(r) for _ in range(r.randint(0, 5))))
        out = {"type": "object", "properties": {n: schema(r, depth - 1) for n in names}}
        out["required"] = [n for n in names if r.random() < 0.5]
        if r.random() < 0.6:
            out["additionalProperties"] = r.choice([True, False, False, schema(r, 0)])
    elif kind == "array":
        out = {"type": "array"}
        prefix = r.randint(0, 2) if r.random() < 0.3 else 0
        if prefix:
            out["prefixItems"] = [schema(r, depth - 1) for _ in range(prefix)]
        if r.random() < 0.8:
            out["items"] = schema(r, depth - 1)
        if r.random() < 0.5:
            out["minItems"] = r.randint(0, 3)
        if r.random() < 0.5:
            out["maxItems"] = r.randint(3, 5)
    elif kind in ("anyOf", "oneOf"):
        out[kind] = [schema(r, depth - 1) for _ in range(r.randint(1, 4))]
    elif kind == "allOf":
        out = {"allOf": [schema(r, depth - 1)], "description": "x"}
    elif kind == "ref":
        out["$ref"] = r.choice(["#", "#/$defs/a", "#/definitions/b"])
    elif kind == "types":
        out = {"type": r.sample(["string", "integer", "null", "object", "array", "boolean"], 3)}
    return out


def main():
    program, tokenizer = sys.argv[1:3]
    count, walks, seed = (int(a) for a in (sys.argv[3:] + ["400", "6", "1"][len(sys.argv) - 3:]))
    r = random.Random(seed)
    schemas = []
    for _ in range(count):
        s = schema(r, 3)
        s["$defs"] = {"a": schema(r, 2)}
        s["definitions"] = {"b": schema(r, 2)}
        schemas.append(s)
    lines = "".join(json.dumps(s) + "\n" for s in schemas)
    run = subprocess.run([program, tokenizer, str(walks)], input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == count, (len(answers), count)
    texts = failed = refused = unfinished = unjudged = 0
    for s, answer in zip(schemas, answers):
        if "error" in answer:
            refused += 1
            continue
        validator = jsonschema.Draft202012Validator(s, format_checker=checker)
        unfinished += len(answer["long"])
        for text in answer["stuck"]:
            failed += 1
            print(f"STUCK {json.dumps(s)}\n  {text!r}")
        for text in answer["ended"]:
            texts += 1
            try:
                problem = next(validator.iter_errors(json.loads(text)), None)
            except RecursionError:  # a reference to itself without a value between: jsonschema recurses without end
                problem, unjudged = None, unjudged + 1
            except ValueError as e:
                problem = e
            if problem is not None:
                failed += 1
                print(f"FAIL {json.dumps(s)}\n  {text!r}\n  {str(problem)[:300]}")
    print(f"{texts} texts of {count - refused} schemas, {failed} failed ({refused} schemas refused, {unfinished} texts "
          f"not ended, {unjudged} not judged)")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
