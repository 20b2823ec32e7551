# SPDX-License-Identifier: Apache-2.0
"""Builds wheels and the source archive: the hooks that pip calls (PEP 517 and 660), with no package
to download. libnibble comes from the project's Makefile; libraries that a system may lack go into the
wheel beside it. The same sources and compiler give the same bytes.

--config-settings make="CC=clang CUDA=1" passes words to make.
"""
import base64
import gzip
import hashlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile

PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# In a checkout, the parent folder; in a source archive, a folder of it.
ROOT = next((folder for folder in (os.path.dirname(PYTHON), os.path.join(PYTHON, "source"))
             if os.path.exists(os.path.join(folder, "include", "nibble.h"))), None)
# What the library is built from.
SOURCES = ("Makefile", "LICENSE", "include", "src", "machines", "tools/cuda_programs",
           "tools/embed_machines", "tools/symbols.txt", "tools/version_script")
PACKAGE = ("nibble", "licenses")  # folders of the package that both archives have
# What every system with this C library has (the list of manylinux).
SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s)\.so\.\d+|ld-linux.*\.so\.\d+|ld64\.so\.\d+)$")
NEEDS = """building libnibble failed, see above. It needs a C compiler, make, pkg-config, and the
development files of Oniguruma, utf8proc, xxHash and OpenCL's headers. On Debian:
    apt-get install gcc libc6-dev make pkg-config libonig-dev libutf8proc-dev libxxhash-dev opencl-c-headers
A wheel for your system needs none of them."""


def _read(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


def _version():
    return re.search(r'#define NIB_VERSION "(.*)"', _read(PYTHON, "nibble", "_api.py")
                     if ROOT is None else _read(ROOT, "include", "nibble.h")).group(1)


def _metadata():
    return f"""Metadata-Version: 2.4
Name: nibble
Version: {_version()}
Summary: Low-bit language models: plan, run, quantize and check them, and say what is not done as asked
License-Expression: Apache-2.0 AND BSD-2-Clause AND MIT
License-File: LICENSE
License-File: libraries.txt
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
Description-Content-Type: text/markdown

{_read(PYTHON, "README.md")}"""


# ---- the library ----


def _make(settings, *words):
    """Runs make; returns the lines that it prints."""
    if ROOT is None:
        raise SystemExit(f"{PYTHON} is neither in a checkout of Nibble nor a source archive of this package")
    given = (settings or {}).get("make", "")
    words = [*shlex.split(given if isinstance(given, str) else " ".join(given)), *words]
    if "-j" not in os.environ.get("MAKEFLAGS", ""):
        words.insert(0, f"-j{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}")
    try:
        run = subprocess.run(["make", "-s", "--no-print-directory", "-C", ROOT, *words], stdout=subprocess.PIPE, text=True)
    except OSError as e:
        raise SystemExit(f"make cannot be started: {e}\n{NEEDS}") from e
    if run.returncode:
        sys.stdout.write(run.stdout)
        raise SystemExit(NEEDS)
    return run.stdout.splitlines()


def _libraries(settings):
    """Paths of libnibble and of the libraries to put beside it."""
    library, *needed = _make(settings, "wheel-library")
    found = [os.path.join(ROOT, library)]
    for path in needed:
        if SYSTEM.search(path):
            continue
        if not os.path.isabs(path):
            raise SystemExit(f"{library} needs {path}, which the compiler does not find")
        found.append(path)
    return found


def _readelf(*arguments):
    try:
        run = subprocess.run(["readelf", "-W", *arguments], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    except OSError:
        return ""
    return run.stdout if run.returncode == 0 else ""


def _platform(libraries):
    """The wheel's platform: the oldest glibc that has every symbol which the libraries need."""
    machine = re.search(r"Machine: +(.*)", _readelf("-h", libraries[0]))
    arch = {"AArch64": "aarch64", "Intel 80386": "i686", "RISC-V": "riscv64"}.get(
        machine.group(1).strip(), "x86_64" if "X86-64" in machine.group(1) else None) if machine else None
    versions = re.findall(r"Name: GLIBC_2\.(\d+)", "".join(_readelf("-V", path) for path in libraries))
    if arch is None or not versions:  # another system, or another C library
        return re.sub(r"[-.]", "_", sysconfig.get_platform())
    return f"manylinux_2_{max(map(int, versions))}_{arch}"


# ---- archives ----


def _moment():
    return int(os.environ.get("SOURCE_DATE_EPOCH", 315532800))  # 1 January 1980, the first that zip has


def _package_files():
    """(name in a wheel, path) of the package's own files."""
    for folder, folders, files in os.walk(os.path.join(PYTHON, "nibble")):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for name in sorted(files):
            path = os.path.join(folder, name)
            yield os.path.relpath(path, PYTHON), path


def _info():
    return f"nibble-{_version()}.dist-info"


def _wheel(folder, tag, files):
    """Writes a wheel of (name, bytes, executable); returns its name."""
    info = _info()
    files = list(files) + [
        (f"{info}/METADATA", _metadata().encode(), False),
        (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: nibble_build\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), False),
        (f"{info}/licenses/LICENSE", _read(ROOT, "LICENSE").encode(), False),
        (f"{info}/licenses/libraries.txt", _read(PYTHON, "licenses", "libraries.txt").encode(), False)]
    record = "".join("%s,sha256=%s,%d\n" % (name, base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(),
                                            len(data)) for name, data, _ in files)
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), False))
    wheel = f"nibble-{_version()}-{tag}.whl"
    with zipfile.ZipFile(os.path.join(folder, wheel), "w") as out:
        for name, data, executable in files:
            entry = zipfile.ZipInfo(name, time.gmtime(_moment())[:6])
            entry.create_system = 3
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(entry, data)
    return wheel


def _sbom(libraries):
    """What is in the wheel besides Python's code, as CycloneDX (PEP 770)."""
    def component(path):
        return {"type": "library", "name": os.path.basename(path),
                "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(_bytes(path)).hexdigest()}]}

    return json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.4", "version": 1,
                       "metadata": {"component": {"type": "library", "name": "nibble", "version": _version()}},
                       "components": [component(path) for path in libraries]}, indent=2) + "\n"


def _bytes(path):
    with open(path, "rb") as f:
        return f.read()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    libraries = _libraries(config_settings)
    files = [(name, _bytes(path), False) for name, path in _package_files()]
    files += [(f"nibble/lib/{os.path.basename(path)}", _bytes(path), True) for path in libraries]
    files.append((f"{_info()}/sboms/nibble.cdx.json", _sbom(libraries).encode(), False))
    return _wheel(wheel_directory, f"py3-none-{_platform(libraries)}", files)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _make(config_settings, "all")
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    return _wheel(wheel_directory, f"py3-none-{platform}", [("nibble.pth", (PYTHON + "\n").encode(), False)])


def build_sdist(sdist_directory, config_settings=None):
    base = f"nibble-{_version()}"
    files = {f"{base}/PKG-INFO": _metadata().encode()}

    def add(name, path):
        if os.path.isfile(path):
            files[f"{base}/{name}"] = _bytes(path)
        for folder, folders, names in os.walk(path):
            folders[:] = [f for f in folders if f != "__pycache__"]
            for file in names:
                at = os.path.join(folder, file)
                files[f"{base}/{name}/{os.path.relpath(at, path)}"] = _bytes(at)

    for name in ("pyproject.toml", "README.md", "backend", *PACKAGE):
        add(name, os.path.join(PYTHON, name))
    for name in SOURCES:
        add(f"source/{name}", os.path.join(ROOT, name))
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as out:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(files[name]), _moment()
            entry.mode = 0o755 if name.startswith(f"{base}/source/tools/") else 0o644
            out.addfile(entry, io.BytesIO(files[name]))
    with open(os.path.join(sdist_directory, f"{base}.tar.gz"), "wb") as file, \
            gzip.GzipFile("", "wb", 9, file, _moment()) as out:
        out.write(data.getvalue())
    return f"{base}.tar.gz"


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = os.path.join(metadata_directory, _info())
    os.makedirs(folder)
    with open(os.path.join(folder, "METADATA"), "w", encoding="utf-8") as f:
        f.write(_metadata())
    return _info()


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def get_requires_for_build_wheel(config_settings=None):
    return []


get_requires_for_build_editable = get_requires_for_build_sdist = get_requires_for_build_wheel
