# SPDX-License-Identifier: Apache-2.0
"""The wheel: what is in it, that it is the same each time, and where it runs."""
import base64
import csv
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

import nibble

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WHEEL = os.environ.get("NIBBLE_WHEEL", "")
TRY = ("import nibble; model = nibble.Model('models/nibble-tales', recipe='8da4w'); "
       "print(model.plan().summary); print(model.complete('Once upon', max_tokens=8, temperature=0))")
needs_wheel = pytest.mark.skipif(not WHEEL, reason="NIBBLE_WHEEL is not set: run python/tests/run")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="for Linux")


def build(hook, folder, **environment):
    """Calls a hook of the backend."""
    code = (f"import sys; sys.path.insert(0, {ROOT + '/python/backend'!r}); import nibble_build; "
            f"print(nibble_build.{hook}({str(folder)!r}))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment})
    return done, os.path.join(folder, done.stdout.strip().split("\n")[-1])


@needs_wheel
def test_contents():
    with zipfile.ZipFile(WHEEL) as wheel:
        names = wheel.namelist()
        info = f"nibble-{nibble.__version__}.dist-info"
        metadata = wheel.read(f"{info}/METADATA").decode()
        record = wheel.read(f"{info}/RECORD").decode()
        for name, digest, size in csv.reader(record.splitlines()):
            if name != f"{info}/RECORD":
                data = wheel.read(name)
                assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert int(size) == len(data)
        assert [row[0] for row in csv.reader(record.splitlines())] == names
        sbom = json.loads(wheel.read(f"{info}/sboms/nibble.cdx.json"))
        assert {c["name"]: c["hashes"][0]["content"] for c in sbom["components"]} == {
            name.split("/")[-1]: hashlib.sha256(wheel.read(name)).hexdigest() for name in names if name.startswith("nibble/lib/")}
        tag = re.search(r"^Tag: (.*)$", wheel.read(f"{info}/WHEEL").decode(), flags=re.M).group(1)
    assert f"Version: {nibble.__version__}\n" in metadata and WHEEL.endswith(f"-{tag}.whl") and tag.startswith("py3-none-")
    assert {"nibble/py.typed", "nibble/lib/libnibble.so.1", f"{info}/licenses/LICENSE", f"{info}/licenses/libraries.txt"} <= set(names)
    assert not [n for n in names if "test" in n or n.endswith(".pyc")]
    # one set of licences for the libraries inside
    licences = open(f"{ROOT}/python/licenses/libraries.txt", encoding="utf-8").read().lower()
    for name in names:
        library = re.match(r"nibble/lib/lib(\w+)\.so", name)
        assert library is None or library.group(1) == "nibble" or library.group(1)[:4] in licences, name


@needs_wheel
def test_auditwheel_agrees():
    auditwheel = shutil.which("auditwheel", path=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    if auditwheel is None:
        pytest.skip("auditwheel is not installed")
    shown = subprocess.run([auditwheel, "show", WHEEL], capture_output=True, text=True, check=True).stdout
    tag = re.search(r"manylinux_\w+(?=\.whl)", WHEEL).group(0)
    assert f'is consistent with the following platform tag: "{tag}"' in " ".join(shown.split())
    assert "lib" not in "".join(re.findall(r"libraries: +(.*)", shown)).replace("libc.so.6", "").replace("libm.so.6", "")


def test_the_same_bytes_each_time(tmp_path):
    made = []
    for at in range(2):
        (tmp_path / str(at)).mkdir()
        done, path = build("build_wheel", tmp_path / str(at))
        assert done.returncode == 0, done.stderr
        made.append(open(path, "rb").read())
    assert made[0] == made[1]
    (tmp_path / "dated").mkdir()
    _, dated = build("build_wheel", tmp_path / "dated", SOURCE_DATE_EPOCH="1700000000")
    with zipfile.ZipFile(dated) as wheel:
        assert {entry.date_time[0] for entry in wheel.infolist()} == {2023}


def test_errors_of_make_are_shown(tmp_path):
    done, _ = build("build_wheel", tmp_path, CC="no-such-compiler", MAKEFLAGS="-B")
    assert done.returncode != 0 and "no-such-compiler" in done.stderr and "apt-get install gcc" in done.stderr
    done, _ = build("build_wheel", tmp_path, PATH="/nowhere")
    assert done.returncode != 0 and "make cannot be started" in done.stderr


def test_source_archive(tmp_path):
    """It has what a build needs, and can make itself again."""
    done, path = build("build_sdist", tmp_path)
    assert done.returncode == 0, done.stderr
    first = open(path, "rb").read()
    with tarfile.open(path) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path / "out")
    base = tmp_path / "out" / names[0].split("/")[0]
    assert (base / "PKG-INFO").exists() and (base / "source" / "src" / "base" / "base.h").exists()
    assert not [n for n in names if n.endswith((".o", ".so", ".pyc")) or "/lib/" in n]
    code = "import sys; sys.path.insert(0, 'backend'); import nibble_build; print(nibble_build.build_sdist('.'))"
    subprocess.run([sys.executable, "-c", code], cwd=base, check=True)
    assert (base / os.path.basename(path)).read_bytes() == first
    # every rule of the library is there: make would build it
    plan = subprocess.run(["make", "-n", "-C", base / "source", "wheel-library"], capture_output=True, text=True)
    assert plan.returncode == 0, plan.stderr
    assert "-shared" in plan.stdout
    if os.environ.get("NIBBLE_TEST_ALL"):  # some minutes
        code = "import sys; sys.path.insert(0, 'backend'); import nibble_build; print(nibble_build.build_wheel('.'))"
        subprocess.run([sys.executable, "-c", code], cwd=base, check=True)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A virtual environment with the wheel alone, and a path without a compiler."""
    if not WHEEL:
        pytest.skip("NIBBLE_WHEEL is not set: run python/tests/run")
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    environment = {"PATH": "/nowhere", "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    subprocess.run([folder / "venv/bin/python", "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check", WHEEL],
                   check=True, env=environment)
    return folder / "venv/bin/python", environment


def test_without_a_compiler(bare):
    python, environment = bare
    done = subprocess.run([python, "-c", "import sys\ntry:\n    import numpy\n    sys.exit(9)\nexcept ImportError:\n    pass\n" +
                           TRY.replace("; ", "\n")], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "0 substituted" in done.stdout
    # the libraries that are needed come from the wheel
    maps = subprocess.run([python, "-c", TRY + "; print([l.split()[-1] for l in open('/proc/self/maps') if '.so' in l])"],
                          capture_output=True, text=True, env=environment, cwd=ROOT, check=True).stdout
    for name in ("libonig", "libutf8proc", "libxxhash", "libnibble"):
        paths = set(re.findall(r"'([^']*%s[^']*)'" % name, maps))
        assert paths and all("/nibble/lib/" in p for p in paths), (name, paths)


@pytest.mark.skipif(platform.machine() != "x86_64" or shutil.which("qemu-x86_64") is None, reason="no qemu-x86_64")
@pytest.mark.parametrize("cpu", ["Nehalem", "Haswell"])
def test_on_older_processors(bare, cpu):
    """Nehalem has no AVX: kernels in plain C run, and give the same text."""
    python, environment = bare
    done = subprocess.run([shutil.which("qemu-x86_64"), "-cpu", cpu, python, "-c", TRY], capture_output=True, text=True,
                          env=environment, cwd=ROOT, timeout=900)
    assert done.returncode == 0, done.stderr
    assert {"Nehalem": "cpu/ref", "Haswell": "cpu/avx2"}[cpu] in done.stdout
    with nibble.Model("models/nibble-tales", recipe="8da4w") as model:
        assert done.stdout.split("\n", 1)[1].rstrip("\n") == model.complete("Once upon", max_tokens=8, temperature=0)


def test_editable(tmp_path):
    """An editable wheel points to the folder of the package."""
    done, path = build("build_editable", tmp_path)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(path) as wheel:
        assert wheel.read("nibble.pth").decode() == f"{ROOT}/python\n"
    done = subprocess.run([sys.executable, "-c", "import nibble; print(nibble.__file__); " + TRY], capture_output=True, text=True,
                          cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}/python"})
    assert done.returncode == 0 and done.stdout.startswith(f"{ROOT}/python/nibble/"), done.stderr
