# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests: paths, the program to compare with, code in a process of its own."""
import json
import os
import subprocess
import sys
import textwrap

import pytest

import nibble

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TALES = "models/nibble-tales"
PROGRAM = os.environ.setdefault("NIBBLE", os.path.join(ROOT, "build", "release", "nibble"))


@pytest.fixture(scope="session", autouse=True)
def _here(tmp_path_factory):
    """Tests run in the root of the tree, with measurements of their own."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.chdir(ROOT)
    # on a busy machine every process measures rates anew, and plans predict from them, unless they are stored
    subprocess.run([PROGRAM, "devices", "cpu", "--measure"], check=True, capture_output=True)


@pytest.fixture(scope="session")
def model():
    with nibble.Model(TALES, recipe="8da4w") as opened:
        yield opened


@pytest.fixture
def program():
    """Runs the program; returns what it prints."""
    def run(*arguments, status=0):
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=600)
        assert done.returncode == status, done.stderr
        return done.stdout
    return run


@pytest.fixture
def program_json(program):
    return lambda *arguments: json.loads(program(*arguments, "--json"))


@pytest.fixture
def process():
    """Runs Python code in a process of its own."""
    def run(code, python=(sys.executable,), **options):
        return subprocess.run([*python, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=600, **options)
    return run


def pytest_unconfigure(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        counts = {name: len(reporter.stats.get(name, ())) for name in ("passed", "failed", "error")}
        print("%d passed, %d failed" % (counts["passed"], counts["failed"] + counts["error"]))
