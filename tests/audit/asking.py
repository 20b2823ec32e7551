# SPDX-License-Identifier: Apache-2.0
"""One thing asked of Nibble, and the judgement: done as asked, or said, or neither.

An Ask has a command, and a function that looks at what came of it without asking the program whether it was done: it reads
files, compares values, counts lines. What it finds to be other than asked is a list of Deviations. A verdict is then
  done     nothing is other than asked
  said     something is, and a line of the program's words names it: a setting or a layer in the JSON and in the text, refused
           by --strict where it is grave, accepted by --allow; or the command failed, and its error names what cannot be done
  silent   something is, and no line names it; or --strict does not refuse it
  untrue   nothing is, but a line says so
  died     the command failed, and its error names nothing of what was asked
"""
import dataclasses
import json
import shutil
import subprocess
import typing

VERDICTS = ("done", "said", "silent", "untrue", "died")
GOOD = ("done", "said")


@dataclasses.dataclass
class Deviation:
    """Something that is other than asked. needles: alternatives, each a word or several, of which one line must have all."""
    words: str
    needles: tuple
    grave: bool = True  # --strict refuses it


@dataclasses.dataclass
class Ask:
    klass: str  # a row of the table
    words: str
    command: list
    see: typing.Callable = lambda ran: []
    names: tuple = ()  # an error that has one of these names what cannot be done
    strict: bool = True  # the command has --strict
    out: object = None  # what the command writes, taken away before it runs again
    json: bool = True  # the command has --json
    alarms: bool = True  # a setting is untrue where nothing deviates


class Ran:
    """A command that ended."""

    def __init__(self, result, has_json):
        self.status, self.out, self.err = result.returncode, result.stdout, result.stderr
        self.json = json.loads(self.out) if has_json and self.status == 0 else {}
        self.settings = self.json.get("settings", [])

    def lines(self):
        """Everything that the command says, a line each."""
        out = [" ".join(str(s[k]) for k in ("code", "name", "asked", "done", "text")) for s in self.settings]
        for layer in self.json.get("layers", []):
            if layer.get("rung", "none") != "none" or layer.get("denied") or layer.get("kept") in ("lossy", "exact"):
                reasons = " ".join(x["text"] for x in layer.get("reasons", []))
                out.append(f"{layer['name']} {layer.get('rung')} {layer.get('asked')} {layer.get('done')} {reasons}")
        for t in self.json.get("tensors", []):
            out.append(" ".join(map(str, t.values())))
        return out

    def folded(self):
        return " ".join((self.err + " " + self.out).split())

    def last_error(self):
        return self.err.strip().splitlines()[-1] if self.err.strip() else ""


def has(line, needle):
    parts = (needle,) if isinstance(needle, str) else needle
    return all(p.lower() in line.lower() for p in parts)


class Judge:
    """Runs the program and judges what it does."""

    def __init__(self, program, logits_of):
        self.program, self.logits_of = str(program), str(logits_of)

    def run(self, *args, has_json=False):
        result = subprocess.run([self.program, *map(str, args)], capture_output=True, text=True, timeout=120, errors="replace",
                                stdin=subprocess.DEVNULL)
        return Ran(result, has_json)

    def again(self, ask, *more, has_json=False):
        if ask.out is not None:
            shutil.rmtree(ask.out, ignore_errors=True)
        return self.run(*ask.command, *more, has_json=has_json)

    def judge(self, ask):
        """(verdict, words)"""
        more = ("--json", "--quiet") if ask.json else ()
        ran = self.again(ask, *more, has_json=ask.json)
        if ran.status < 0:
            return "died", f"signal {-ran.status}"
        if ran.status != 0:
            named = any(has(" ".join(ran.err.split()), n) for n in ask.names)
            return ("said" if named else "died"), ran.last_error()
        deviations = ask.see(ran)
        if not deviations:
            return self.judge_done(ask, ran)
        lines = ran.lines() if ask.json else [ran.folded()]
        for d in deviations:
            if not any(has(line, n) for n in d.needles for line in lines):
                return "silent", d.words
        if not ask.json:
            return "said", deviations[0].words
        return self.judge_said(ask, ran, deviations)

    def judge_done(self, ask, ran):
        loud = [s for s in ran.settings if s["relation"] in ("other", "without effect")]
        if loud and ask.alarms:
            return "untrue", f"{loud[0]['name']}: {loud[0]['text']}"
        as_asked = all(layer.get("rung", "none") == "none" for layer in ran.json.get("layers", []))
        if ask.strict and ask.json and not ran.settings and as_asked:
            strict = self.again(ask, "--strict", "--quiet", "--json")
            if strict.status != 0:
                return "untrue", f"--strict: {strict.last_error()}"
        return "done", ""

    def judge_said(self, ask, ran, deviations):
        """The same in text; --strict; --allow."""
        text = self.again(ask)
        folded = text.folded()
        needed = [s for s in ran.settings if any(has(" ".join(str(s[k]) for k in ("code", "name", "asked", "done", "text")), n)
                                                 for d in deviations for n in d.needles)]
        for s in needed:
            if " ".join(s["text"].split()) not in folded:
                return "silent", f"JSON has it and the text has not: {s['text']}"
        words = deviations[0].words
        if not ask.strict:
            return "said", words
        strict = self.again(ask, "--strict", "--quiet")
        if any(d.grave for d in deviations) and strict.status == 0:
            return "silent", f"--strict runs: {words}"
        if strict.status not in (0, 4):
            return "died", f"--strict ends with {strict.status}: {strict.last_error()}"
        loud = any(s["relation"] in ("other", "without effect") for s in ran.settings)
        as_asked = all(layer.get("rung", "none") == "none" for layer in ran.json.get("layers", []))
        if not loud and as_asked and strict.status != 0:
            return "untrue", f"--strict: {strict.last_error()}"
        codes = sorted({s["code"] for s in ran.settings})
        if loud and strict.status != 0:
            wrong = next(c for c in ("threads", "lookup") if c not in codes)
            if self.again(ask, "--strict", "--quiet", "--allow", wrong).status == 0:
                return "silent", f"--allow {wrong} accepts it: {words}"
        allowed = self.again(ask, "--strict", "--quiet", *(w for c in codes for w in ("--allow", c)))
        if allowed.status != 0 and codes and as_asked:
            return "died", f"--allow {' '.join(codes)} is not enough: {allowed.last_error()}"
        return "said", words
