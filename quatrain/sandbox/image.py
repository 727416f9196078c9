"""What a sandbox can see of this machine: the interpreter, its standard library, and the shared objects these load."""

import functools
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quatrain.sandbox.job import SandboxError

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
INSIDE = Path(__file__).parent / "inside"
# Modules that solutions often import; a job gets them for the price of a fork.
PRELOAD = (
    "abc", "array", "bisect", "cmath", "collections", "contextlib", "copy", "ctypes", "dataclasses", "datetime",
    "decimal", "enum", "fractions", "functools", "heapq", "io", "itertools", "json", "math", "operator", "os", "queue",
    "random", "re", "statistics", "string", "struct", "sys", "threading", "time", "traceback", "typing",
)  # fmt: skip

# Import every extension module of the standard library and the named packages, then say which files are mapped.
_PROBE = """
import ctypes, importlib, json, os, sys
sys.path += sys.argv[2:3]
for name in os.listdir(sys.argv[1]) if os.path.isdir(sys.argv[1]) else []:
    module = name.partition(".")[0]
    if not module.startswith(("_test", "_ctypes_test", "_xx", "xx", "_tkinter", "readline", "_curses")):
        try:
            importlib.import_module(module)
        except Exception:
            pass
for name in sys.argv[3:]:
    importlib.import_module(name)
try:
    ctypes.CDLL("libgcc_s.so.1")  # glibc loads it when a thread ends early
except OSError:
    pass
with open("/proc/self/maps") as maps:
    print(json.dumps(sorted({line.split(maxsplit=5)[5].rstrip("\\n") for line in maps if line.count("/")})))
"""


@dataclass(frozen=True)
class Image:
    """Bind mounts (source, place inside), symbolic links (place, target), folders to hide, how to start Python."""

    binds: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]
    python: tuple[str, ...]
    preload: tuple[str, ...]
    outside: tuple[str, ...]  # where the packages lie on this machine, for a run without namespaces


def python_path() -> str:
    """The interpreter itself, not a virtual environment's link or a version manager's shim."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def library_path() -> dict[str, str]:
    """The one variable of the environment that an interpreter may need to start."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


@functools.cache
def build_image(packages: tuple[tuple[str, str], ...] = ()) -> Image:
    """The image with further packages (name, folder of the package); SandboxError when the probe fails.

    Everything lies at neutral places (/python, /lib, /packages), so that no path of this machine is shown.
    """
    stdlib, extensions = sysconfig.get_path("stdlib"), sysconfig.get_config_var("DESTSHARED") or ""
    own = [(name, folder) for name, folder in packages if not Path(folder).is_relative_to(INSIDE.parents[1])]
    mapped = _mapped_files(extensions, [name for name, _ in own], own[0][1] if own else "")
    libraries = [path for path in mapped if ".so" in os.path.basename(path) and not path.startswith(stdlib + "/")]
    libraries = [path for path in libraries if not any(path.startswith(os.path.dirname(f) + "/") for _, f in own)]
    loader = [path for path in libraries if re.match(r"ld[-.]", os.path.basename(path))]
    python = f"/python/bin/{VERSION}"
    start = (f"/lib/{os.path.basename(loader[0])}", "--library-path", "/lib", python) if loader else (python,)
    binds = {python: python_path(), f"/python/{sys.platlibdir}/{VERSION}": stdlib, "/packages/inside": str(INSIDE)}
    binds.update((f"/lib/{os.path.basename(path)}", path) for path in libraries)
    binds.update((f"/packages/{name}", folder) for name, folder in packages)
    for name, folder in own:  # shared objects that a wheel carries beside its package
        if os.path.isdir(beside := f"{folder}.libs"):
            binds[f"/packages/{name}.libs"] = beside
    binds.update((device, device) for device in ("/dev/null", "/dev/urandom"))
    hidden = [f"/python/{sys.platlibdir}/{VERSION}/{name}" for name in ("site-packages", "dist-packages")
              if os.path.isdir(os.path.join(stdlib, name))]  # fmt: skip
    return Image(
        binds=tuple((source, place) for place, source in binds.items()),
        links=tuple(_links(libraries)),
        hidden=tuple(hidden),
        python=start,
        preload=(*PRELOAD, *(name for name, _ in packages)),
        outside=tuple(dict.fromkeys(os.path.dirname(folder) for _, folder in packages)),
    )


def find_packages(names: tuple[str, ...]) -> Mapping[str, str]:
    """Folders of installed packages by name; SandboxError for one that is not installed as a folder."""
    found = {}
    for name in names:
        folders = [Path(place) / name for place in sys.path if (Path(place) / name / "__init__.py").is_file()]
        if not folders:
            raise SandboxError(f"package {name!r}: not installed as a folder on sys.path; install it here first")
        found[name] = str(folders[0])
    return found


def _mapped_files(extensions: str, packages: list[str], folder: str) -> list[str]:
    command = [python_path(), "-I", "-S", "-B", "-c", _PROBE, extensions, os.path.dirname(folder), *packages]
    environment = {**library_path(), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=120, check=False)
    if done.returncode:
        raise SandboxError(f"{command[0]} does not start: {done.stderr.decode(errors='replace')[-300:]}")
    return [path for path in json.loads(done.stdout) if path.startswith("/")]


def _links(libraries: list[str]) -> list[tuple[str, str]]:
    """Names such as libz.so.1 by which a library is asked for, when its file is called libz.so.1.2.13."""
    found = {}
    for folder in {os.path.dirname(path) for path in libraries}:
        with os.scandir(folder) as entries:
            for entry in entries:
                if ".so" in entry.name and entry.is_symlink():
                    real = os.path.realpath(entry.path)
                    if real in libraries and os.path.basename(real) != entry.name:
                        found[f"/lib/{entry.name}"] = os.path.basename(real)
    return sorted(found.items())
