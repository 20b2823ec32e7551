# SPDX-License-Identifier: Apache-2.0
"""Compiling one source with a change, and linking it with the objects that the Makefile built. The commands are the Makefile's own."""
import collections
import glob
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MEMORY = 8 << 30  # of one test, without mapped files: a mutant may allocate without end
WAIT = 300  # seconds until a process that needs no time, as in a deadlock, ends
RUNNING = set()
Ran = collections.namedtuple("Ran", "status out seconds")  # exit status, or None for a time limit; output; processor time
# words to compile, its own sources, {source: object} linked besides the library, words behind the library
Test = collections.namedtuple("Test", "words sources objects libraries")


def limits(seconds, memory):
    """Of processor time: a busy machine must not decide what a test finds."""
    def apply():
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
        if memory:
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    return apply


def end(process):
    """Ends the process and all of its session: timeout(1) makes groups of its own."""
    for stat in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(stat, encoding="utf-8", errors="replace") as f:
                session = int(f.read().rpartition(")")[2].split()[3])
            if session == process.pid:
                os.kill(int(stat.split("/")[2]), signal.SIGKILL)
        except (OSError, ValueError):
            pass


def run(command, seconds, env=None, stop=None, memory=True):
    """A line of output that begins with `stop` ends the command at once. memory: it is limited, too; sanitizers reserve more."""
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors="replace", start_new_session=True, preexec_fn=limits(seconds, memory))
    RUNNING.add(process)
    late, lines, stopped = threading.Event(), [], False
    timer = threading.Timer(WAIT, lambda: (late.set(), end(process)))
    timer.start()
    for line in process.stdout:
        lines.append(line)
        if stop and line.startswith(stop):
            stopped = True
            end(process)
    timer.cancel()
    _, code, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    end(process)
    RUNNING.discard(process)
    limited = late.is_set() or process.returncode in (-signal.SIGXCPU, -signal.SIGKILL) and not stopped
    return Ran(None if limited else process.returncode, "".join(lines), usage.ru_utime + usage.ru_stime)


def interrupted(number, _):
    for process in list(RUNNING):
        end(process)
    os._exit(128 + number)


class Build:
    """The commands of one build folder."""

    def __init__(self, folder, sanitizers="", work="mutate"):
        self.folder, self.work = folder, os.path.join(folder, work)
        os.makedirs(os.path.join(ROOT, self.work), exist_ok=True)
        goals = ["all", "test-programs"]
        text = subprocess.run(["make", "-n", "-B", *goals, *(["SAN=" + sanitizers] if sanitizers else [])], cwd=ROOT, capture_output=True, text=True,
                              check=True).stdout
        self.compiles, self.tests = {}, {}  # source -> words; name -> Test
        for line in text.splitlines():
            words = [w for w in shlex.split(line) if w not in ("-MMD", "-MP")] if " -o " in line else []
            sources = [w for w in words if w.endswith(".c")]
            if "-c" in words and sources and sources[0].startswith("src/"):
                self.compiles[sources[0]] = words[:words.index("-c")]
            elif sources and sources[0].startswith(("tests/unit/test_", "tests/fuzz/")):
                name = os.path.basename(words[words.index("-o") + 1])
                first = min(i for i, w in enumerate(words) if w.startswith("tests/") and w.endswith(".c") or w in ("-MF", "-o"))
                objects = {w[len(folder) + 1:-2] + ".c": w for w in words if w.endswith(".o")}
                self.tests[name] = Test(words[:first], sources, objects, words[words.index(folder + "/libnibble.a") + 1:])
            elif folder + "/nibble" in words and words[words.index("-o") + 1] == folder + "/nibble":
                self.program = words
        self.lock, self.locks = threading.Lock(), {}
        self.library = os.path.join(self.work, "libnibble.a")

    def prepare(self):
        """A copy of the library without debug information, so that links are short and a build meanwhile changes nothing."""
        shutil.copy2(os.path.join(ROOT, self.folder, "libnibble.a"), os.path.join(ROOT, self.library))
        subprocess.run(["strip", "--strip-debug", self.library], cwd=ROOT, check=True)

    def compile(self, source, text, to, extra=()):
        """(object, None) or (None, what the compiler says). A warning is an error."""
        path = os.path.join(to, os.path.basename(source))
        with open(os.path.join(ROOT, path), "w", encoding="utf-8") as f:
            f.write(text)
        ran = run([*self.compiles[source], "-iquote", os.path.dirname(source), "-g0", "-Werror", *extra, "-c", path, "-o", path[:-2] + ".o"], 300)
        return (path[:-2] + ".o", None) if ran.status == 0 else (None, ran.out)

    def test_objects(self, name):
        """Compiles the sources of a test, unless they are older than the objects, as are the library and the headers of tests."""
        with self.lock:
            one = self.locks.setdefault(name, threading.Lock())
        with one:
            return self.compile_test(name)

    def compile_test(self, name):
        objects = []
        for source in self.tests[name].sources:
            target = os.path.join(self.work, "tests", name + "-" + os.path.basename(source)[:-2] + ".o")
            objects.append(target)
            os.makedirs(os.path.join(ROOT, os.path.dirname(target)), exist_ok=True)
            inputs = [source, os.path.join(self.folder, "libnibble.a"), *glob.glob("tests/*.h", root_dir=ROOT)]
            if os.path.exists(os.path.join(ROOT, target)) and all(
                    os.path.getmtime(os.path.join(ROOT, target)) > os.path.getmtime(os.path.join(ROOT, i)) for i in inputs):
                continue
            ran = run([*self.tests[name].words, "-g0", "-c", source, "-o", target], 300)
            if ran.status != 0:
                raise RuntimeError(source + ": " + ran.out)
        return objects

    def link_test(self, name, changed, to, extra=()):
        """changed: {source: object}"""
        program, test = os.path.join(to, name), self.tests[name]
        flags = [w for w in test.words if w.startswith(("-fsanitize", "-pthread", "-Wl,--wrap="))]
        others = {s: o for s, o in changed.items() if s in test.objects or not s.startswith("src/serve/")}
        objects = [*self.test_objects(name), *{**test.objects, **others}.values()]
        ran = run([test.words[0], *flags, *extra, *objects, "-o", program, self.library, *test.libraries], 300)
        if ran.status != 0:
            raise RuntimeError(name + ": " + ran.out[-400:])
        return program

    def link_program(self, changed, to, extra=()):
        """changed: {source: object}"""
        program = os.path.join(to, "nibble")
        words = list(self.program)
        words[words.index("-o") + 1] = program
        for source, new in changed.items():
            old = os.path.join(self.folder, source[:-2] + ".o")
            if old in words:
                words[words.index(old)] = new
            else:
                words.insert(words.index(self.folder + "/libnibble.a"), new)
        words[words.index(self.folder + "/libnibble.a")] = self.library
        ran = run([*words, *extra], 300)
        if ran.status != 0:
            raise RuntimeError("nibble: " + ran.out[-400:])
        return program


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()
