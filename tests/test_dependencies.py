"""What pyproject.toml declares, what `ingot/` imports and what the page names are the same."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.import_rules import API, ROOMS, THIRD_PARTY, facts_of

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# An environment without torch runs these.
CORE_ROOMS = ("artifact", "cache", "runtime", "hub", "cli", API)
EXTRAS = ("compile", "cuda", "hf", "onnx", "serve", "grpc", "ray", "otel")
OPTIONAL = {"rich", "onnx", "llguidance"}  # used by those rooms where it is installed
# What a package that is not named like its module is imported as.
MODULES = {
    "grpcio": "grpc",
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
}
GENERATED = {"protobuf"}  # imported by the modules that a build makes of the .proto files
MOST_BYTES = 101 * 10**6  # of an installation without extras


def names(requirements: Iterable[str]) -> set[str]:
    """The packages of a list of requirements."""
    return {re.split(r"[<>=\[]", line)[0] for line in requirements}


def modules(packages: Iterable[str]) -> set[str]:
    """What packages are imported as."""
    return {MODULES.get(package, package) for package in packages}


def imported(*rooms: str) -> set[str]:
    """The packages that rooms of `ingot/` import, at any depth of the code."""
    found = set()
    for room in rooms:
        folder = ROOT / "ingot" if room == API else ROOT / "ingot" / room
        for file in folder.glob("*.py") if room == API else folder.rglob("*.py"):
            found |= {module.partition(".")[0] for _, module in facts_of(file).imports}
    return found - {"ingot"} - sys.stdlib_module_names


def table(title: str) -> set[str]:
    """The first column of the table below a heading of the page."""
    page = (ROOT / "docs" / "dependencies.md").read_text()
    section = page.split(f"\n## {title}", 1)[1].split("\n## ")[0]
    return set(re.findall(r"^\| ([\w-]+) \|", section, re.M)) - {"package"}


def test_the_core_declares_what_it_imports():
    assert names(PROJECT["dependencies"]) == imported(*CORE_ROOMS) - OPTIONAL


def test_the_core_is_small():
    """Byte code, which is written later or not at all, does not count."""
    package = sum(size(path) for path in (ROOT / "ingot").rglob("*") if path.is_file())
    required = needed(PROJECT["dependencies"])
    files = [path.locate() for name in required for path in distribution(name).files]
    assert required > {"numpy", "tokenizers", "hf-xet"}
    assert MOST_BYTES / 2 < package + sum(map(size, files)) < MOST_BYTES


def needed(requirements: Iterable[str]) -> set[str]:
    """What the requirements bring to an installation of Python, and what that requires in turn."""
    found: set[str] = set()
    waiting = list(map(Requirement, requirements))
    while waiting:
        each = waiting.pop()
        name = canonicalize_name(each.name)
        if name not in found and (not each.marker or each.marker.evaluate({"extra": ""})):
            found.add(name)
            waiting += map(Requirement, distribution(name).requires or ())
    return found


def size(path: Path) -> int:
    return 0 if path.suffix == ".pyc" or not path.is_file() else path.stat().st_size


def extra(name: str) -> set[str]:
    return names(PROJECT["optional-dependencies"][name]) - {PROJECT["name"]}  # another extra of it


def test_the_extras_declare_what_only_they_import():
    extras = modules(set().union(*map(extra, EXTRAS)) - GENERATED)
    assert extras == imported(*ROOMS) - names(PROJECT["dependencies"])
    assert extras >= OPTIONAL


def test_triton_is_imported_for_cuda_alone():
    """Compiling for a CPU works without it."""
    files = [path for path in (ROOT / "ingot").rglob("*.py") if imports_triton(path)]
    cuda = ROOT / "ingot" / "targets" / "cuda"
    assert files and {path.parent for path in files} <= {cuda, cuda / "kernels"}
    assert [path.name for path in files if path.parent == cuda] == ["triton_compile.py"]


def imports_triton(path: Path) -> bool:
    return any(module.partition(".")[0] == "triton" for _, module in facts_of(path).imports)


def test_the_page_names_every_package():
    assert table("The core") == names(PROJECT["dependencies"])
    for name in EXTRAS:
        assert table(f"The extra `{name}`") == extra(name)


def test_stubs_fit_the_packages_that_run_them():
    """Modules that grpcio-tools makes refuse to run on an older grpcio or protobuf."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    (tools,) = (line for line in build if line.startswith("grpcio-tools"))
    assert tools in PROJECT["optional-dependencies"]["dev"]
    oldest, newest = re.fullmatch(r"grpcio-tools>=(1\.\d+),<(1\.\d+)", tools).groups()
    assert int(newest.split(".")[1]) == int(oldest.split(".")[1]) + 1
    run = [line for line in PROJECT["optional-dependencies"]["grpc"] if line.startswith("grpcio")]
    assert len(run) == 3 and all(line.endswith(f">={oldest}") for line in run)
    assert f"grpcio-tools=={oldest}." in (ROOT / "tools" / "constraints.txt").read_text()


def test_the_rules_of_imports_name_no_other_package():
    assert set().union(*THIRD_PARTY.values()) == imported(*ROOMS)
