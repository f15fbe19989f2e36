"""Finds a C++ compiler and builds the generated units into a shared library.

Object files are kept, since equal sources, compilers and flags give equal bytes. A model whose
weights have changed, or that is compiled again after a mistake, spares the C++ compiler's seconds;
another model of the same target spares those of the C interface.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from ingot.artifact.target import Target
from ingot.cache.builds import Builds
from ingot.cache.store import content_of, key_of
from ingot.errors import ToolchainError, UsageError
from ingot.settings import settings
from ingot.targets.compilers import alone, identity, run_compiler, side_by_side
from ingot.targets.cpu.levels import LEVELS

KERNELS = Path(__file__).parent / "kernels"
# Compiles one source file for a target, with further flags, to an object file.
CompileUnit = Callable[[Path, Path, Target, tuple[str, ...]], None]
COMPILERS = ("g++", "clang++", "c++")
TIMEOUT_SECONDS = 1800  # of a compiler that hangs: on a busy machine a file takes minutes
SHOWN_LINES = 20
# Enough to miss the library of C++, its headers, or the level of a target.
TRY = '{includes}\nextern "C" int ingot_try() {{ return 0; }}\n'

# -ffp-contract=off: kernels decide where a product and a sum are fused, so that the bits do not
# depend on the compiler. Never -ffast-math.
COMMON = (
    *("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-exceptions", "-fno-rtti"),
    *("-fPIC", "-pthread", "-fvisibility=hidden"),
    "-w",  # a user can do nothing about warnings; the tests compile with them
)
# A step is hundreds of calls and computes nothing. More would take twice as long, and save nothing.
OF_STEP = {"step.cpp": ("-O1",)}
# No paths, dates or symbols in the library: the same sources give the same bytes. Kernels use
# headers of libstdc++, but not its library.
SEED = "-frandom-seed=ingot"
LINK = (
    *("-shared", "-pthread", "-static-libgcc", "-s"),
    *("-Wl,--build-id=none", "-Wl,--as-needed", "-Wl,-z,defs"),
)
# Code and constants share pages: a smaller file, fewer mappings. ziglang refuses the flag.
SHARED_PAGES = "-Wl,-z,noseparate-code"
SUFFIX = ".o"  # of object files that are kept


def find_compiler() -> tuple[str, ...]:
    """The command that runs a C++ compiler.

    It is the one that the user named, or else the system's, or that of the `ziglang` package.

    Raises:
        ToolchainError: there is none, or the named one is not a program.
    """
    named = settings().cxx
    if named:
        try:
            command = tuple(shlex.split(named))
        except ValueError:  # a quote that is not closed
            command = ()
        if not command or shutil.which(command[0]) is None:
            raise ToolchainError(
                f"the C++ compiler {named!r} is not a program",
                hint="It is named by INGOT_CXX or CXX; unset them to use the system's.",
            )
        return command
    for name in COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return (path,)
    if find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "c++")
    raise ToolchainError(
        "no C++ compiler found",
        hint="Install g++ or clang++, set CXX, or `pip install ziglang`, which brings one.",
    )


def target_flags(target: Target) -> tuple[str, ...]:
    """The flags that make a compiler build for a target and not for this host."""
    level = LEVELS[target.level]
    features = (level.feature_flags[f] for f in sorted(level.with_implied(target.features)))
    return (*level.compiler_flags, *features, *flags_of(tuning_of(target)))


def compile_command(
    source: Path, out: Path, target: Target, flags: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The whole command that compiles one source file; `flags` come after the target's."""
    prefixes = (f"-ffile-prefix-map={source.parent}=.", f"-ffile-prefix-map={KERNELS}=kernels")
    # -iquote serves quoted includes only, so that no kernel header hides one of the system.
    files = ("-iquote", str(KERNELS), "-c", str(source), "-o", str(out))
    compiler = find_compiler()
    levels = target_flags(target)
    if "ziglang" in compiler:  # it spells the names of processors with underscores
        levels = tuple(f.replace("x86-64", "x86_64").replace("_64-v", "_64_v") for f in levels)
    return (*compiler, *COMMON, *levels, *flags, *prefixes, SEED, *files)


def link_command(objects: Sequence[Path], out: Path) -> tuple[str, ...]:
    """The whole command that links object files to a shared library."""
    compiler = find_compiler()
    pages = () if "ziglang" in compiler else (SHARED_PAGES,)
    return (*compiler, *LINK, *pages, *map(str, objects), "-o", str(out))


def compile_unit(source: Path, out: Path, target: Target, flags: tuple[str, ...] = ()) -> None:
    """Compiles one source file to an object file. Raises as `build` does."""
    _run(compile_command(source, out, target, flags))


def build(
    source_dir: Path,
    out: Path,
    target: Target,
    flags: tuple[str, ...] = (),
    compile_unit: CompileUnit = compile_unit,
) -> None:
    """Builds all source files of a folder into the shared library `out`.

    Raises:
        ToolchainError: there is no compiler, it fails (with the command and its first lines), or it
            takes longer than five minutes.
    """
    sources = sorted(source_dir.glob("*.cpp"))
    with TemporaryDirectory(prefix="ingot-build-") as folder:
        objects = [Path(folder, f"{source.stem}.o") for source in sources]
        side_by_side(
            partial(compile_unit, source, made, target, (*OF_STEP.get(source.name, ()), *flags))
            for source, made in zip(sources, objects, strict=True)
        )
        _run(link_command(objects, out))


def try_tools(folder: Path, target: Target, compile_unit: CompileUnit = compile_unit) -> None:
    """Builds next to nothing for a target in an empty folder. Raises ToolchainError."""
    headers = ("cmath", *LEVELS[target.level].headers)
    includes = "\n".join(f"#include <{header}>" for header in headers)
    (folder / "try.cpp").write_text(TRY.format(includes=includes))
    build(folder, folder / "try.so", target, compile_unit=compile_unit)


def _run(command: tuple[str, ...]) -> None:
    shown = shlex.join(command)
    try:
        done = run_compiler(command, TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(
            f"the C++ compiler took longer than {TIMEOUT_SECONDS} s", hint=f"Command: {shown}"
        ) from error
    except OSError as error:
        raise ToolchainError(
            f"the C++ compiler could not be started: {error}", hint=f"Command: {shown}"
        ) from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise ToolchainError(
            f"the C++ compiler failed with exit code {done.returncode}\n"
            + "\n".join(lines[:SHOWN_LINES]),
            hint=f"Command: {shown}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The sizes that kernels are built with; `kernels/tuning.h` has them as constants.

    They decide how fast a target is, and no bit of what it computes. `python -m bench.tune_cpu`
    times others on a processor, and says how many operations that processor does for each byte that
    it reads.

    Attributes:
        core_cache: bytes of second-level cache, which blocks of weights and rows share; see
            `CpuLevel.core_cache`.
        float_rows, bfloat16_rows, quad_rows: rows of a tile in registers, whose weights are
            float32, bfloat16, or integers, of which four are multiplied at once.
        stream_cache: the level of cache, 1 or 2, that what is read once is fetched into.
        float_ahead, int8_ahead, int4_ahead: how far ahead weights that are read once are fetched,
            in bytes.
        unpacked_rows: the fewest rows for which int4 becomes int8 once, and not in every tile.
    """

    core_cache: int
    float_rows: int = 6
    bfloat16_rows: int = 6
    quad_rows: int = 6
    stream_cache: int = 2
    float_ahead: int = 4096
    int8_ahead: int = 2560
    int4_ahead: int = 3072
    unpacked_rows: int = 12


def tuning_of(target: Target) -> Tuning:
    """The sizes of a CPU target."""
    return Tuning(**LEVELS[target.level].sizes(target.features))


def flags_of(tuning: Tuning) -> tuple[str, ...]:
    """Flags that give the sizes to a compiler."""
    return tuple(f"-DINGOT_{x.name.upper()}={getattr(tuning, x.name)}" for x in fields(tuning))


def compile_once(source: Path, out: Path, target: Target, flags: tuple[str, ...] = ()) -> None:
    """Calls `compile_unit`, unless the same was compiled before."""
    try:
        builds = Builds.opened()
        key = _key(source, target, flags)
    except (OSError, UsageError, subprocess.TimeoutExpired):  # a compile needs no cache
        compile_unit(source, out, target, flags)
        return
    with alone(key):
        data = builds.take(key, SUFFIX)
        if data is not None:
            out.write_bytes(data)
            return
        compile_unit(source, out, target, flags)
        with suppress(OSError):  # a full disk is told by what needs the room
            if _key(source, target, flags) == key:  # nobody has edited a header meanwhile
                builds.keep(key, out.read_bytes(), SUFFIX)


def _key(source: Path, target: Target, flags: tuple[str, ...]) -> str:
    """Changes with everything that the compiler's output depends on, and with nothing else."""
    anywhere = Path("source")
    command = compile_command(anywhere / "unit.cpp", anywhere / "unit.o", target, flags)
    # Where ingot is installed is no part of what is built.
    parts = {
        "command": [part.replace(str(KERNELS), "kernels") for part in command],
        "compiler": [*identity(find_compiler()), *settings().compiler_paths],
        "source": content_of(source),
        "headers": {path.name: content_of(path) for path in KERNELS.glob("*.h")},
    }
    return key_of(parts)
