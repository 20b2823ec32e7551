# SPDX-License-Identifier: Apache-2.0
"""The blocks of docs/python.md and of the package's page, examples in docstrings, and types."""
import doctest
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys

import pytest

import nibble

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def blocks(page):
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        return re.findall(r"^```(py|text)( output)?\n(.*?)^```$", f.read(), flags=re.S | re.M)


@pytest.mark.parametrize("page", ["docs/python.md", "python/README.md"])
def test_blocks_run(page, tmp_path):
    """In order, in one interpreter, in a folder with links to models/ and tests/. A `text output` block is what the block before it
    prints; ... stands for anything."""
    for name in ("models", "configs", "tests"):
        os.symlink(os.path.join(ROOT, name), tmp_path / name)
    code, wanted = "", []
    for language, output, body in blocks(page):
        if language == "py":
            code += f"{body}\nprint(chr(0), end='')\n"
            wanted.append(None)
        elif output:
            wanted[-1] = body
    assert wanted
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split("\0")
    for body, found in zip(wanted, printed):
        if body is not None:
            pattern = "".join(".*" if part == "..." else re.escape(part) for part in re.split(r"(\.\.\.)", body.strip()))
            assert re.fullmatch(pattern, found.strip(), flags=re.S), f"wanted:\n{body}\ngot:\n{found}"


def test_examples_in_docstrings():
    tried = 0
    for name in ["nibble"] + [f"nibble.{m.name}" for m in pkgutil.iter_modules(nibble.__path__)]:
        if name.endswith("lm_eval"):
            continue
        module = importlib.import_module(name)
        result = doctest.testmod(module, extraglobs={"nibble": nibble})
        assert result.failed == 0, name
        tried += result.attempted
    assert tried > 20


def test_everything_public_has_a_docstring():
    for name in nibble.__all__:
        thing = getattr(nibble, name)
        if callable(thing):
            assert thing.__doc__ and not thing.__doc__.startswith(name + "("), name
            for member, value in vars(thing).items() if isinstance(thing, type) else ():
                if not member.startswith("_") and callable(value):
                    assert value.__doc__ or member in ("close",), f"{name}.{member}"


def mypy(*arguments):
    run = shutil.which("mypy", path=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    if run is None:
        pytest.skip("mypy is not installed")
    return subprocess.run([run, "--strict", "--no-incremental", *arguments], capture_output=True, text=True, cwd=ROOT)


def test_types_of_the_package():
    done = mypy("python/nibble")
    assert done.returncode == 0, done.stdout


def test_types_for_its_users(tmp_path):
    source = tmp_path / "use.py"
    source.write_text('''
import nibble
with nibble.Model("m", recipe="8da4w", allow=["dequant"]) as model:
    for layer in model.plan():
        reveal_type(layer.done)
    for piece in model.generate("Once", max_tokens=3, schema={"type": "object"}):
        reveal_type(piece.token)
    reveal_type(model.logits([1]))
    reveal_type(model.complete("x", seed=3))
    reveal_type(nibble.eval("m", "t", window=3).loss)
    model.complete("x", tempature=1)
    nibble.eval("m", "t", recip="x")
    model.generate(3)
''')
    done = mypy(str(source))
    lines = done.stdout.splitlines()
    shown = [re.search(r'"(.*)"', line).group(1) for line in lines if "Revealed" in line]
    assert [s.replace("builtins.", "").lower() for s in shown[:2]] == ["str | none", "int | none"], done.stdout
    assert "float" in shown[2] and "ndarray" in shown[2] and shown[3:] in (["str", "float"], ["builtins.str", "builtins.float"])
    assert len([line for line in lines if "error:" in line]) == 3, done.stdout
