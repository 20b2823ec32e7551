# SPDX-License-Identifier: Apache-2.0
"""Which tests run a line, measured once with --coverage, and how a mutant is shown to each.

A test is "unit NAME", "fuzz NAME" (its corpus), "cli NAME" (tests/cli/NAME.sh), "page NAME" (which the program prints) or "serve NAME"
(tests/serve/NAME)."""
import concurrent.futures
import fnmatch
import glob
import gzip
import hashlib
import importlib.machinery
import json
import os
import re
import shutil
import subprocess
import threading

from building import ROOT, read, run

# Those of tests/cli that read files, plan and list settings, and do not measure. The sentences of messages_* are compared here.
SCRIPTS = ("bad_input", "dialects", "explain", "gguf_tokenizer", "info", "pages", "plan", "plan_json", "recipes", "settings",
           "settings_model", "settings_recipe", "settings_train", "tune", "values", "verify")
PAGES = importlib.machinery.SourceFileLoader("lint", os.path.join(ROOT, "tools/lint")).load_module().PAGES
# For the folders that the server alone runs. They are not measured: whatever the server does, it does in them.
SERVER_CHECKS = {"src/serve/": ("check_limits", "check_answers"), "src/api/": ("check_answers",)}
SERVER_SECONDS = 90


def expected_sentences():
    """{unit test: its section of tests/cli/messages_*.out}"""
    found, name = {}, None
    for path in sorted(glob.glob(os.path.join(ROOT, "tests/cli/messages_*.out"))):
        for line in read(path).splitlines():
            if line.startswith("    "):
                found[name].append(line[4:])
            else:
                name = line
                found[name] = []
    return found


def sentences(path):
    """What tests/cli/common makes of the sentences of a run."""
    seen = []
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as f:
            for line in f.read().splitlines():
                line = re.sub(r'/[^ :"]*/nib[a-z_-]*[-_][A-Za-z0-9]{6}\b', "DIR", line)
                if not seen or seen[-1] != line:
                    seen.append(line)
    return seen


class Tests:
    """The tests of one build."""

    def __init__(self, build):
        self.build = build
        self.expected = expected_sentences()
        self.headers = {name: set(re.findall(r'#include "([^"]+)\.h"', read(test.sources[0])))
                        for name, test in build.tests.items()}

    def names(self):
        for name in sorted(self.build.tests):
            yield ("fuzz " + name[5:]) if name.startswith("fuzz_") else "unit " + name
        for name in SCRIPTS:
            yield "cli " + name
        for name in PAGES:
            yield "page " + name

    def source_of(self, test):
        kind, name = test.split()
        return {"unit": "tests/unit/%s.c", "fuzz": "tests/fuzz/fuzz_%s.c", "cli": "tests/cli/%s.sh", "page": "%s"}[kind] % name

    def run(self, test, changed, own, seconds, more=(), env=None):
        """own: a folder for what it writes. (None if the test passes with the changed objects ({source: object}), or why not, in a word; its processor time)"""
        kind, name = test.split()
        scratch = os.path.join(own, "tmp")
        shutil.rmtree(os.path.join(ROOT, scratch), ignore_errors=True)
        os.makedirs(os.path.join(ROOT, scratch))
        env = dict(os.environ, TMPDIR=os.path.join(ROOT, scratch), HOME=os.path.join(ROOT, scratch), **(env or {}))
        if kind in ("unit", "fuzz"):
            program = name if kind == "unit" else "fuzz_" + name
            command = [self.build.link_test(program, changed, own, more)]
            if kind == "fuzz":
                command.append("tests/fuzz/corpus/" + name)
            compared = kind == "unit" and name in self.expected and "only_messages" not in read(self.source_of(test))
            path = os.path.join(ROOT, own, "messages")
            if compared:
                if os.path.exists(path):
                    os.unlink(path)
                env["NIBBLE_MESSAGES"] = path
            sanitized = any(word.startswith("-fsanitize=address") for word in self.build.tests[program].words)
            ran = run(command, seconds, env, memory=not sanitized)
            if ran.status is None:
                return "time limit", ran.seconds
            if ran.status != 0:
                failed = re.search(r"\[  FAILED  \] (\w+)", ran.out)
                return "died" if ran.status < 0 else failed.group(1) if failed else "failed", ran.seconds
            if compared:
                got, wanted = sentences(path), self.expected[name]
                if len(got) != len(wanted) or not all(g == w or fnmatch.fnmatchcase(g, w) for g, w in zip(got, wanted)):
                    return "its sentences", ran.seconds
            return None, ran.seconds
        env.update(NIBBLE=os.path.join(ROOT, own, "nibble"), BUILD=self.build.folder)
        self.build.link_program(changed, own, more)
        if kind == "page":
            ran = run([os.path.join(own, "nibble"), *PAGES[name]], seconds, env)
            return None if ran.status == 0 and ran.out == read(name) else "differs", ran.seconds
        command = ["tests/cli/run", name] if kind == "cli" else ["tests/serve/" + name]
        ran = run(command, seconds, env, stop="FAIL ")
        return None if ran.status == 0 else "time limit" if ran.status is None else "failed", ran.seconds


def digest(*texts):
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def lines_run(folder, objects):
    """{source: [lines that ran]} from the counters below folder"""
    root = folder + os.path.realpath(ROOT)
    for source, path in objects.items():
        if os.path.exists(os.path.join(root, path[:-2] + ".gcda")):
            os.link(os.path.join(ROOT, path[:-2] + ".gcno"), os.path.join(root, path[:-2] + ".gcno"))
    counted = [path[:-2] + ".gcda" for path in objects.values() if os.path.exists(os.path.join(root, path[:-2] + ".gcda"))]
    if counted:
        subprocess.run(["gcov", "--json-format", "--preserve-paths", *counted], cwd=root, capture_output=True, check=True)
    found = {}
    for path in glob.glob(os.path.join(root, "*.gcov.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as f:
            for file in json.load(f)["files"]:
                name = os.path.basename(file["file"])
                source = next((s for s in objects if os.path.basename(s) == name), None)
                lines = [line["line_number"] for line in file["lines"] if line["count"]]
                if source and lines:
                    found.setdefault(source, set()).update(lines)
    return {source: sorted(lines) for source, lines in found.items()}


def measure(build, tests, sources, jobs, say):
    """{test: {"key", "seconds", "lines": {source: [line]}}}, measured again for tests that changed; all if a source did."""
    path = os.path.join(ROOT, build.work, "nearest.json")
    known = json.load(open(path, encoding="utf-8")) if os.path.exists(path) else {}
    base = digest(*(read(s) for s in sources))
    keys = {test: digest(base, read(tests.source_of(test))) for test in tests.names()}
    missing = [test for test in keys if known.get(test, {}).get("key") != keys[test]]
    known = {test: known[test] for test in keys if test in known and test not in missing}
    if not missing:
        return known
    say("measuring which lines %d tests run" % len(missing))
    folder = os.path.join(build.work, "coverage")
    objects, saving = {}, threading.Lock()

    def compile_one(source):
        to = os.path.join(folder, os.path.dirname(source))
        os.makedirs(os.path.join(ROOT, to), exist_ok=True)
        copy, found = os.path.join(ROOT, to, os.path.basename(source)), os.path.join(to, os.path.basename(source)[:-2] + ".o")
        if not os.path.exists(os.path.join(ROOT, found)) or read(copy) != read(source):
            found, error = build.compile(source, read(source), to, ("-O0", "--coverage"))
            if not found:
                raise RuntimeError(error)
        objects[source] = found

    def measure_one(test):
        own = os.path.join(build.work, "measured-" + test.replace(" ", "-"))
        counters = os.path.join(ROOT, own, "counters")
        os.makedirs(os.path.join(ROOT, own), exist_ok=True)
        wrong, seconds = tests.run(test, objects, own, 600, ("--coverage",), {"GCOV_PREFIX": counters})
        lines = {} if wrong else lines_run(counters, objects)
        shutil.rmtree(os.path.join(ROOT, own))
        if wrong:
            say("%s is left out: without a change, %s" % (test, wrong))
            return
        with saving:
            known[test] = {"key": keys[test], "seconds": seconds, "lines": lines}
            with open(path + ".part", "w", encoding="utf-8") as f:
                json.dump(known, f)
            os.replace(path + ".part", path)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(compile_one, sources))
        list(pool.map(measure_one, missing))
    return known


def nearest(measured, tests, source, line, seconds):
    """[(test, its seconds)] of those that run the line. First those of its file: named after it or its first word (template_lex:
    test_template_limits), or including its header; then others, the fastest first, as many as `seconds` of each kind allow. A line that is
    not code counts as the nearest one above it, or as all of the file."""
    at = {test: max((l for l in about["lines"].get(source, ()) if l <= line), default=None) for test, about in measured.items()}
    best = max((l for l in at.values() if l is not None), default=None)
    whole = best is None or line - best > 12
    chosen = [test for test in at if measured[test]["lines"].get(source) and (whole or at[test] == best)]
    stem = os.path.basename(source)[:-2]

    def far(test):
        name = test.split()[1]
        return not (name.startswith("test_" + stem.split("_")[0]) or stem in tests.headers.get(name, ()))
    spent, out = {}, []
    for test in sorted(chosen, key=lambda test: (far(test), measured[test]["seconds"])):
        kind, needs = test.split()[0], measured[test]["seconds"]
        if kind not in spent or spent[kind] + needs <= seconds[kind] or not far(test):
            spent[kind] = spent.get(kind, 0) + needs
            out.append((test, needs))
    return out + [("serve " + name, SERVER_SECONDS) for folder, names in SERVER_CHECKS.items() if source.startswith(folder) for name in names]
