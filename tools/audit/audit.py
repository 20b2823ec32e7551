#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs random small models through torchao, llama.cpp, compressed-tensors and Nibble: done as requested, or reported?

    audit.py PROGRAM LOGITS_OF [--llama-quantize PATH] [--engines nibble|others|all] [--count 2000] [--seed 20261124] [--part I/N]
             [--seconds S] OUT.jsonl

Writes a line per question to OUT.jsonl: turn, engine, class, verdict, request, words. --part runs every Nth model, to
use several processes; --seconds ends early. The other engines' answers do not depend on the program, so --engines
nibble is enough if they are saved. page.py makes the page from such files. The models, formulas and Nibble's part are
in tests/audit.
"""
import argparse
import dataclasses
import json
import pathlib
import random
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "tests/audit"), str(HERE.parent / "oracle")]
import ask_mixtures
import asking
import audit_cases
import models
import other_engines


@dataclasses.dataclass
class Case:
    """A model with its requests to the other engines."""
    scheme: str
    group: int
    twist: str
    llama: str

    @property
    def recipe(self):
        base, *words = self.scheme.split("-")
        return "-".join([base, *([f"g{self.group}"] if self.group else []), *words])


def case_of(r, turn):
    scheme = r.choice(["int8wo", "int8dq", "int4wo-sym", "8da4w", "fp8wo"])
    group = r.choice([8, 32, 64]) if "4" in scheme else 0
    twist = r.choice(["none", "none", "none", "none", "no-match", "dead-rule", "f64"])
    if twist == "f64" and not group:
        twist = "none"
    types = list(other_engines.LLAMA_TYPES)
    return Case(scheme, group, twist, types[turn % len(types)])


def answers(judge, options, turn, folder):
    """(engine, class, verdict, asked, words) for each question about the model of this turn."""
    r = random.Random(options.seed * 100003 + turn)
    model = models.random_model(r, aligned=r.random() < 0.4)
    source = model.write(folder / "model")
    case = case_of(r, turn)
    prequantized = other_engines.with_f64_scales(judge, case, source, folder) if case.twist == "f64" else None
    if case.twist == "f64" and prequantized is None:
        case.twist = "none"
    asked = f"{case.recipe}, {model.shape_words()}"
    # Most of llama.cpp's types want widths of 256.
    wide = models.random_model(r, width=256) if turn % 3 == 0 else model
    yield "llama.cpp", case.twist, *other_engines.ask_llama(case, wide, folder, options.llama_quantize), \
        f"{case.llama}, {wide.shape_words()}"
    yield "torchao", case.twist, *other_engines.ask_torchao(case, model, source, prequantized), asked
    yield "compressed-tensors", case.twist, *other_engines.ask_compressed(case, model, source), asked


def answers_about_mixtures(options, turn, folder):
    """The same of a mixture of experts, in every fourth turn: are its experts quantized, too?"""
    r = random.Random(options.seed * 100003 + turn)
    case = dataclasses.replace(case_of(r, turn), twist="none")
    model = ask_mixtures.mixture(r)
    source = model.write(folder / "mixture")
    asked = f"{case.recipe}, {model.shape_words()}"
    yield "llama.cpp", "experts", *other_engines.ask_llama(case, model, folder, options.llama_quantize), f"{case.llama}, {model.shape_words()}"
    yield "torchao", "experts", *other_engines.ask_torchao_experts(case, model, source), asked
    yield "compressed-tensors", "experts", *other_engines.ask_compressed_experts(case, model, source), asked


def answers_of_nibble(judge, options, turn, parts):
    """Of Nibble's classes of twists a model has some, in turn; its recipe always."""
    twists = audit_cases.MODULES[1:]
    for a in audit_cases.answers(judge, options.seed, turn, modules=[audit_cases.MODULES[0], twists[turn // parts % len(twists)]]):
        yield "Nibble", a.klass, a.verdict, a.words, a.asked


def answers_of_others(judge, options, turn):
    with tempfile.TemporaryDirectory() as folder:
        found = [*answers(judge, options, turn, pathlib.Path(folder)),
                 *(answers_about_mixtures(options, turn, pathlib.Path(folder)) if turn % 4 == 0 else ())]
        for engine, klass, verdict, words, asked in found:
            yield engine, klass, verdict, words.replace(folder + "/", ""), asked


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("logits_of", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--llama-quantize", type=pathlib.Path)
    parser.add_argument("--engines", choices=("nibble", "others", "all"), default="all")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=20261124)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--seconds", type=float, default=0)
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    other_engines.torch.set_num_threads(1)
    judge = asking.Judge(options.program.resolve(), options.logits_of.resolve())
    start = time.monotonic()
    with open(options.out, "w", encoding="utf-8") as out:
        for turn in range(part, options.count, parts):
            if options.seconds and time.monotonic() - start > options.seconds:
                break
            found = [*(answers_of_others(judge, options, turn) if options.engines != "nibble" else ()),
                     *(answers_of_nibble(judge, options, turn, parts) if options.engines != "others" else ())]
            for engine, klass, verdict, words, asked in found:
                print(json.dumps({"turn": turn, "engine": engine, "class": klass, "verdict": verdict, "asked": asked,
                                  "words": " ".join(words.split())[:400]}), file=out, flush=True)


if __name__ == "__main__":
    sys.exit(main())
