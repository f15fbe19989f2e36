"""Builds the kernels that `launches.json` lists, through Triton in child processes.

Imports neither torch nor Triton. Nothing that the user's environment says changes what is built.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from ingot.artifact.drivers import least_cuda
from ingot.artifact.host import usable_processors
from ingot.artifact.launches import (
    BuiltLaunches,
    KernelSpec,
    Launches,
    decode_launches,
    encode_built,
    encode_launches,
)
from ingot.artifact.target import Target
from ingot.cache.builds import Builds
from ingot.cache.store import content_of, key_of
from ingot.errors import ToolchainError, UsageError
from ingot.settings import settings
from ingot.targets.compilers import run_compiler, side_by_side
from ingot.targets.cuda import builder
from ingot.targets.cuda.compiled import Compiled
from ingot.targets.cuda.cubin import described
from ingot.targets.cuda.tools import KERNELS, Tools, tools_of
from ingot.targets.cuda.triton_package import Assembler

LAUNCHES = "launches.json"
CUBINS = "cubins"  # the folder of the binaries, beside the file that describes them
SUFFIX = ".cubin"
TIMEOUT_SECONDS = 600
SHOWN_LINES = 20
FEW = 4  # kernels that take about as long as it takes to start a process for them
# What a Python program may need to start at all.
PASSED = ("PATH", "HOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


def build(folder: Path, out: Path, target: Target, package: str = KERNELS) -> None:
    """Compiles the kernels of `folder/launches.json` and writes `out`, which describes them.

    The binaries lie beside `out`, in the folder `cubins`. Where this raises, nothing is written.

    Raises:
        ToolchainError: Triton is missing or of another version, a kernel cannot be compiled, it
            does not fit the target, or it takes longer than ten minutes.
    """
    launches = decode_launches((folder / LAUNCHES).read_bytes())
    tools = tools_of(target, package)
    specs = {binary_name(spec): spec for spec in launches.kernels}
    compiled = _all_compiled(specs, tools)
    described_as = {
        name: described(spec, f"{CUBINS}/{name}", compiled[name], tools.architecture)
        for name, spec in specs.items()
    }
    binaries = tuple(described_as[binary_name(spec)] for spec in launches.kernels)
    built = BuiltLaunches(
        launches=launches,
        binaries=binaries,
        built_with=tools.versions,
        least_cuda=least_cuda(tools.assembler.version, tools.architecture),
    )
    encoded = encode_built(built)
    (out.parent / CUBINS).mkdir(parents=True, exist_ok=True)
    for name, each in compiled.items():
        (out.parent / CUBINS / name).write_bytes(each.cubin)
    out.write_bytes(encoded)


def binary_name(spec: KernelSpec) -> str:
    """The file of a kernel: its function, and a hash that changes with the spec."""
    return f"{spec.function}-{hashlib.sha256(_encoded(spec)).hexdigest()[:10]}{SUFFIX}"


def _encoded(*specs: KernelSpec) -> bytes:
    return encode_launches(Launches(kernels=specs, launches=()))


def _all_compiled(specs: Mapping[str, KernelSpec], tools: Tools) -> dict[str, Compiled]:
    """The kernels by name: those that were compiled before, and the others."""
    keys = {name: _key(spec, tools) for name, spec in specs.items()}
    builds = None
    with suppress(OSError, UsageError):  # a compile needs no cache
        builds = Builds.opened()
    found = {name: builds.take(key, SUFFIX) for name, key in keys.items()} if builds else {}
    done = {name: Compiled.decode(data) for name, data in found.items() if data is not None}
    missing = {name: spec for name, spec in specs.items() if name not in done}
    for name, compiled in _compiled_now(missing, tools).items():
        done[name] = compiled
        with suppress(OSError):  # a full disk is told by what needs the room
            # Nobody has edited a kernel meanwhile.
            if builds is not None and _key(specs[name], tools) == keys[name]:
                builds.keep(keys[name], compiled.encode(), SUFFIX)
    return {name: done[name] for name in specs}


def _key(spec: KernelSpec, tools: Tools) -> str:
    """Changes with everything that the binary depends on, and with nothing else."""
    program = Path(__file__).with_name("triton_compile.py")
    parts = {
        "spec": _encoded(spec).decode(),
        "versions": list(tools.versions.values()),
        "architecture": tools.architecture.number,
        "program": content_of(program),
        "sources": [(path.name, content_of(path)) for path in _sources(tools.package)],
    }
    return key_of(parts)


def _sources(package: str) -> list[Path]:
    spec = find_spec(package)
    places = (spec.submodule_search_locations if spec else None) or ()
    return sorted(path for place in places for path in Path(place).glob("*.py"))


def _compiled_now(specs: Mapping[str, KernelSpec], tools: Tools) -> dict[str, Compiled]:
    names = list(specs)
    if not names:
        return {}
    children = min(usable_processors(), -(-len(names) // FEW))
    found: dict[str, Compiled] = {}
    with TemporaryDirectory(prefix="ingot-build-") as temporary:

        def compile_part(number: int) -> None:
            part, folder = names[number::children], Path(temporary, str(number))
            made = _run_child(folder, [specs[name] for name in part], tools)
            found.update(zip(part, made, strict=True))

        side_by_side(partial(compile_part, number) for number in range(children))
    return found


def _run_child(folder: Path, specs: Sequence[KernelSpec], tools: Tools) -> list[Compiled]:
    folder.mkdir()
    (folder / LAUNCHES).write_bytes(_encoded(*specs))
    level = str(tools.architecture.number)
    # -P: no module of the folder that somebody compiles in hides one of ours.
    command = (sys.executable, "-P", "-m", builder.__name__, str(folder), level, tools.package)
    with _told(specs):
        done = run_compiler(command, TIMEOUT_SECONDS, _environment(folder, tools.assembler))
    if done.returncode != 0:
        raise _failure(folder, specs, tools, done)
    files = [builder.built_file(folder, number) for number in range(len(specs))]
    return [Compiled.decode(file.read_bytes()) for file in files]


def _environment(folder: Path, assembler: Assembler) -> dict[str, str]:
    """All variables of the child, which finds the modules that this process finds."""
    places = [os.path.abspath(place) for place in sys.path]
    environ = settings().environ
    return {
        **{name: environ[name] for name in PASSED if name in environ},
        "PYTHONPATH": os.pathsep.join(places),
        "TMPDIR": str(folder),
        "TRITON_CACHE_DIR": str(folder / "cache"),
        "TRITON_DISABLE_LINE_INFO": "1",  # lines would name the folder of the kernels
        "TRITON_PTXAS_PATH": str(assembler.path),
        "TRITON_PTXAS_BLACKWELL_PATH": str(assembler.path),
    }


@contextmanager
def _told(specs: Sequence[KernelSpec]) -> Iterator[None]:
    try:
        yield
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(
            f"compiling {len(specs)} kernels took longer than {TIMEOUT_SECONDS} s"
        ) from error
    except OSError as error:
        raise ToolchainError(f"Python could not be started to compile kernels: {error}") from error


def _failure(
    folder: Path,
    specs: Sequence[KernelSpec],
    tools: Tools,
    done: subprocess.CompletedProcess[str],
) -> ToolchainError:
    """Error of the child, with what it says or how it died, and the kernel."""
    file = folder / builder.FAILED
    if file.exists():
        told = json.loads(file.read_text())
        number, lines = told["kernel"], told["found"].splitlines()[:SHOWN_LINES]
        what = f"cannot be compiled for sm_{tools.architecture.number}"
    else:
        number = sum(builder.built_file(folder, n).exists() for n in range(len(specs)))
        lines = done.stderr.splitlines()[-SHOWN_LINES:]
        what = f"was not compiled: Triton's process {_ended(done.returncode)}"
    spec = specs[min(number, len(specs) - 1)]
    return ToolchainError(
        "\n".join((f"kernel {spec.function} {what}", *lines)),
        hint=f"Triton {tools.triton.version}; constants: {dict(spec.constants)}. "
        "Please report it with what `ingot doctor` prints.",
    )


def _ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
