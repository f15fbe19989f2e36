"""Makes `.venv`: a virtual environment with ingot, torch and, once asked, the development tools.

    python tools/setup_env.py .venv           makes it, with what the demo needs
    python tools/setup_env.py .venv tools     adds what tests, lint and such need
    python tools/setup_env.py .venv triton    adds Triton, which only tests, lint and such need
    python tools/setup_env.py .venv ray       adds Ray, which only slow tests need

Run by the Makefile with any Python 3.11+; uses the standard library only. Prints a line a step;
what pip says goes to `.venv/setup.log` and is shown only if a step fails.

PyPI's torch for Linux needs gigabytes of CUDA packages. Where there is no NVIDIA GPU the CPU
build is taken instead: from the package index that pip is configured for, if that has it, else
from PyTorch's own index.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "tools" / "constraints.txt"
CUDA_CONSTRAINTS = ROOT / "tools" / "constraints_cuda.txt"
# The demo imports a small part, which Python compiles then.
INSTALL = ("install", "--no-compile")
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NO_COMPILER = """\
no C++ compiler found (looked for $CXX, g++, clang++ and c++)
Install one and run make again, for example: apt-get install g++, dnf install gcc-c++,
xcode-select --install. A compiler elsewhere can be named: make CXX=/path/to/g++"""
NO_CPU_TORCH = """\
the CPU build of torch {version} could not be fetched, neither from pip's package index nor from
{index}
Check the network, or put a wheel of it where pip finds it (pip config set global.find-links DIR).
To take the CUDA build, gigabytes, all the same: {python} -m pip install torch=={version}"""

NO_TRITON = """\
Triton has no wheel for {platform}, only for Linux: nothing here can build for CUDA, and the tests
of CUDA targets fail"""


class SetupError(Exception):
    """A step that failed, with what to do about it."""


class Venv:
    """The environment being made: its interpreter and the log of its pip."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.python = root / "bin" / "python"
        self.log = root / "setup.log"

    def create(self) -> None:
        """Makes the environment; keeps one that works."""
        works = self.python.exists() and self.pip("--version") == 0
        if not works:
            venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(self.root)

    def pip(self, *arguments: str) -> int:
        """Runs pip, its output appended to the log; returns its exit status."""
        quiet = ("--disable-pip-version-check", "--no-input")
        with self.log.open("a") as log:
            log.write(f"\n$ pip {' '.join(arguments)}\n")
            log.flush()
            command = [str(self.python), "-m", "pip", *arguments, *quiet]
            return subprocess.call(command, cwd=ROOT, stdout=log, stderr=log)

    def must(self, *arguments: str) -> None:
        """Like `pip`, but a failure stops the setup with the end of the log."""
        if self.pip(*arguments) != 0:
            tail = "\n".join(self.log.read_text().splitlines()[-15:])
            raise SetupError(f"pip failed; its last words:\n\n{tail}\n\nAll of them: {self.log}")

    def write_byte_code(self) -> None:
        """Writes byte code of all packages. Tests start hundreds of processes, and where
        PYTHONDONTWRITEBYTECODE is set each would compile torch again."""
        command = [str(self.python), "-m", "compileall", "-q", "-j", "0", str(self.root / "lib")]
        with self.log.open("a") as log:  # some packages have templates that are no Python
            subprocess.call(command, stdout=log, stderr=log)

    def version(self, package: str) -> str:
        """The version of a package that is installed, or nothing."""
        code = f"from importlib.metadata import version as v; print(v('{package}'))"
        done = subprocess.run([str(self.python), "-c", code], capture_output=True, text=True)
        return done.stdout.strip()


def install_torch(env: Venv, version: str) -> None:
    """Installs torch without its dependencies; the CPU build where there is no NVIDIA GPU."""
    if env.version("torch").partition("+")[0] == version:
        return
    if sys.platform != "linux" or shutil.which("nvidia-smi"):
        env.must(*INSTALL, "--no-deps", f"torch=={version}")
        return
    cpu = (*INSTALL, "--no-deps", f"torch=={version}+cpu")
    elsewhere = ("--index-url", TORCH_CPU_INDEX, "--retries", "1", "--timeout", "20")
    if env.pip(*cpu) == 0 or env.pip(*cpu, *elsewhere) == 0:
        return
    raise SetupError(NO_CPU_TORCH.format(version=version, index=TORCH_CPU_INDEX, python=env.python))


def add_tools(root: Path) -> None:
    """Installs the development tools into an environment that is there."""
    say("installing the development tools (once)")
    env = Venv(root)
    env.must(*INSTALL, "-c", str(CONSTRAINTS), "-e", ".[dev]")
    env.write_byte_code()


def add_triton(root: Path) -> None:
    """Installs Triton into an environment that is there; says it where there is none to install."""
    env, version = Venv(root), pinned("triton", CUDA_CONSTRAINTS)
    if sys.platform != "linux":
        say(NO_TRITON.format(platform=sys.platform))
    elif env.version("triton") != version:
        say(f"installing triton {version} (about 290 MB, to build for CUDA; once)")
        # Torch for CUDA asks for one version and no other; it works with this one as well.
        env.must(*INSTALL, "--no-deps", f"triton=={version}")
        env.write_byte_code()


def add_ray(root: Path) -> None:
    """Installs the extra `ray` into an environment that is there."""
    env, version = Venv(root), pinned("ray")
    if env.version("ray") != version:
        say(f"installing ray {version} (about 470 MB, to test replicas on a cluster; once)")
        env.must(*INSTALL, "-c", str(CONSTRAINTS), "-e", ".[ray]")
        env.write_byte_code()


def pinned(package: str, constraints: Path = CONSTRAINTS) -> str:
    """The version that a constraints file asks for."""
    lines = constraints.read_text().splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{package}=="))


def cxx_compiler() -> str:
    """The path of the C++ compiler. Raises SetupError if there is none."""
    named = os.environ.get("INGOT_CXX") or os.environ.get("CXX") or ""
    for name in (*shlex.split(named)[:1], "g++", "clang++", "c++"):
        if found := shutil.which(name):
            return found
    raise SetupError(NO_COMPILER)


def setup(root: Path) -> None:
    """Makes the environment, saying each step before it is taken."""
    start = time.monotonic()
    env, version = Venv(root), pinned("torch")
    say(f"python {sys.version.split()[0]}, C++ compiler {cxx_compiler()}")
    say(f"making {root.name}")
    root.mkdir(exist_ok=True)
    env.create()
    say(f"installing torch {version} (about 200 MB for a CPU; once)")
    install_torch(env, version)
    say("installing ingot")
    env.must(*INSTALL, "-c", str(CONSTRAINTS), "-e", ".[compile]")
    say(f"ready after {time.monotonic() - start:.0f} s")


def say(line: str) -> None:
    print(f"setup: {line}", flush=True)


if __name__ == "__main__":
    try:
        steps = {"tools": add_tools, "triton": add_triton, "ray": add_ray}
        step = steps[sys.argv[2]] if sys.argv[2:] else setup
        step(Path(sys.argv[1]).resolve())
    except SetupError as error:
        sys.exit(f"setup: {error}")
