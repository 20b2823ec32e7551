# SPDX-License-Identifier: Apache-2.0
"""The declarations: those of the headers, and what the library does with structs of other sizes."""
import ctypes
import os
import shutil
import subprocess
import sys

import pytest

import nibble
from nibble import _api
from nibble._engine import Callbacks, Engine, fill
from nibble._errors import CLASSES, error_of
from nibble._library import lib


def test_declarations_are_those_of_the_headers():
    printed = subprocess.run([sys.executable, "tools/python_api"], capture_output=True, text=True, check=True).stdout
    with open("python/nibble/_api.py", encoding="utf-8") as f:
        assert f.read() == printed


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_structs_lie_as_in_c(tmp_path):
    source = subprocess.run([sys.executable, "tools/python_api", "--probe"], capture_output=True, text=True, check=True).stdout
    (tmp_path / "probe.c").write_text(source)
    subprocess.run(["cc", "-Iinclude", tmp_path / "probe.c", "-o", tmp_path / "probe"], check=True)
    lines = subprocess.run([tmp_path / "probe"], capture_output=True, text=True, check=True).stdout.splitlines()
    structs = [name for name in vars(_api) if isinstance(getattr(_api, name), type) and issubclass(getattr(_api, name), ctypes.Structure)
               and name != "Structure"]
    assert [line.split()[0] for line in lines] == structs and len(structs) > 30
    for line in lines:
        name, size, *members = line.split()
        struct = getattr(_api, name)
        assert ctypes.sizeof(struct) == int(size), name
        assert ["%s=%d" % (m, getattr(struct, m).offset) for m, _ in struct._fields_] == members, name


def test_every_function_is_in_the_library():
    assert {name for name in _api.FUNCTIONS if not hasattr(lib, name)} == set()
    exported = subprocess.run([sys.executable, "tools/symbols", "list"], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(_api.FUNCTIONS) == exported


def test_statuses():
    names = {value: name[4:] for name, value in vars(_api).items() if name.startswith("NIB_") and value in CLASSES
             and lib.nib_status_name(value).decode() == name[4:]}
    assert sorted(names) == sorted(CLASSES) == list(range(1, len(CLASSES) + 1))
    for number, error in CLASSES.items():
        assert (error.status, error.code, error.exit_status) == (names[number], number, lib.nib_status_exit(number))
        assert type(error_of(number, "text")) is error and str(error_of(number, "text")) == "text"
    newer = error_of(99, "text")
    assert isinstance(newer, nibble.Failed) and newer.code == 99 and newer.status == lib.nib_status_name(99).decode()
    assert lib.nib_status_name(len(CLASSES) + 1) == lib.nib_status_name(99)  # this package knows all of them
    assert nibble.__version__ == lib.nib_version().decode()


def refusal(options):
    out, err = ctypes.c_void_p(), _api.nib_err()
    status = lib.nib_engine_open(ctypes.byref(out), ctypes.byref(options), ctypes.byref(err))
    assert status == err.status and not out
    return CLASSES[status].status, err.text.decode()


@pytest.mark.parametrize("size", [1, 7, 12, ctypes.sizeof(_api.nib_engine_options) - 1, 1 << 40])
def test_a_wrong_size_is_an_error(size):
    status, text = refusal(_api.nib_engine_options(size=size))
    assert status == "USAGE" and str(size) in text


def test_a_struct_of_a_newer_version():
    class Newer(ctypes.Structure):
        _fields_ = [("old", _api.nib_engine_options), ("added", ctypes.c_uint64 * 8)]

    newer = Newer()
    newer.old.size = ctypes.sizeof(newer)
    newer.added[3] = 1
    status, text = refusal(ctypes.cast(ctypes.pointer(newer), ctypes.POINTER(_api.nib_engine_options)).contents)
    assert status == "UNSUPPORTED"
    newer.added[3], newer.old.threads = 0, 1
    out = ctypes.c_void_p()
    assert lib.nib_engine_open(ctypes.byref(out), ctypes.cast(ctypes.pointer(newer), ctypes.POINTER(_api.nib_engine_options)),
                               None) == 0
    lib.nib_engine_close(out)


def test_values_that_ctypes_would_change_are_errors():
    options = _api.nib_generate_options
    for bad in ({"seed": -1}, {"seed": 1 << 64}, {"top_k": 1 << 63}, {"prompt": "a\0b"}, {"prompt": "\ud800"}):
        with pytest.raises(ValueError):
            fill(options(), **bad)
    for bad in ({"prompt": b"bytes"}, {"prompt": 1}, {"seed": 1.5}, {"seed": True}, {"temperature": "1"}, {"temperature": True},
                {"ignore_eos": 1}, {"stop": [1]}, {"max_tokens": "1"}):
        with pytest.raises(TypeError, match=next(iter(bad))):
            fill(options(), **bad)
    filled = fill(options(), prompt="é", seed=(1 << 64) - 1, stop="one")
    assert filled.prompt == "é".encode() and filled.seed == (1 << 64) - 1
    assert filled.stop.count == 1 and filled.stop.items[0] == b"one" and filled.size == ctypes.sizeof(filled)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_library_that_lacks_something_says_so(process, tmp_path):
    """Another version of the library beside the package."""
    package = os.path.dirname(nibble.__file__)
    copy = tmp_path / "nibble"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("lib", "__pycache__"))
    (copy / "lib").mkdir()
    (copy / "lib" / "libnibble.so.1").write_bytes(b"no library")
    done = process("import nibble", cwd=tmp_path)
    assert "ImportError: the library of Nibble cannot be loaded" in done.stderr
    # any library without the functions
    (tmp_path / "other.c").write_text("int nib_version_number(void) { return 1; }")
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "other.c", "-o", copy / "lib" / "libnibble.so.1"], check=True)
    done = process("import nibble", cwd=tmp_path)
    assert "ImportError" in done.stderr and "is another version of the library" in done.stderr


def test_engines_are_independent():
    keep = [Callbacks(None, None) for _ in range(3)]
    engines = [Engine(c, "test", threads=1) for c in keep]
    engines[1].root.close()
    assert engines[1].root.pointer is None and engines[0].root.pointer and engines[2].root.pointer
    for engine in engines:
        engine.root.close()
        engine.root.close()
