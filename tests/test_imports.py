"""Imports go one way: every arrow between the rooms is one that the design allows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.import_cycles import circles
from tests.import_rules import API, ROOMS, arrows, breaches, drawing

ROOT = Path(__file__).resolve().parent.parent


def test_the_package_keeps_to_the_table():
    assert breaches(ROOT / "ingot") == []


def test_every_arrow_of_the_table_is_used():
    assert arrows(ROOT / "ingot") == ROOMS


def test_the_drawing_of_the_rooms_is_current():
    assert f"```text drawing\n{drawing(ROOMS)}\n```" in (ROOT / "docs" / "layout.md").read_text()


def test_the_table_of_the_design_is_current():
    design = (ROOT / "docs" / "design.md").read_text()
    rows = re.findall(r"^\| `ingot/(\w+)(/|\.py).*\| (.*?) \|$", design, re.M)
    table = {name: set() if other == "–" else set(other.split(", ")) for name, _, other in rows}
    assert table == ROOMS


def test_a_drawing_has_a_dot_above_each_room_that_a_line_leads_to():
    rooms = {"low": set(), "mid": {"low"}, "side": set(), "top": {"mid", "low"}}
    assert drawing(rooms).splitlines() == [
        "top ─────────●─────●",
        "             │     │",
        "      side   │     │",
        "             ▼     │",
        "             mid ──●",
        "                   ▼",
        "                   low",
    ]


def test_arrows_are_those_of_the_imports(tmp_path):
    package = tmp_path / "ingot"
    for file, source in {
        "ops/a.py": "def f():\n  from ingot.artifact import plan",
        "llm.py": "from ingot import errors\nimport ingot.runtime.engine",
        "errors.py": "import ingot.cli.never",
        "cli/run.py": "from ingot import LLM\nimport numpy",
    }.items():
        (package / file).parent.mkdir(parents=True, exist_ok=True)
        (package / file).write_text(source)
    found = {room: others for room, others in arrows(package).items() if others}
    assert found == {"ops": {"artifact"}, "api": {"runtime"}, "cli": {"api"}}


def test_every_room_exists():
    folders = {path.name for path in (ROOT / "ingot").iterdir() if (path / "__init__.py").exists()}
    assert folders == set(ROOMS) - {API}


@pytest.mark.parametrize(
    ("file", "source", "breach"),
    [
        ("runtime/engine.py", "import torch", "runtime imports torch"),
        ("runtime/engine.py", "from ingot.compiler import a", "runtime imports ingot.compiler.a"),
        ("runtime/engine.py", "def f():\n  import ingot.cli.a", "runtime imports ingot.cli.a"),
        ("runtime/engine.py", "from ingot.cache import path", "runtime imports ingot.cache.path"),
        ("artifact/plan.py", "import jinja2", "artifact imports jinja2"),
        ("artifact/plan.py", "import ingot.runtime.a", "artifact imports ingot.runtime.a"),
        ("models/llama.py", "from ingot.passes.a import b", "models imports ingot.passes.a.b"),
        ("passes/fuse.py", "from ..models import llama", "relative import"),
        ("passes/fuse.py", "import transformers", "passes imports transformers"),
        ("passes/fuse.py", "import ingot.targets.cpu", "passes imports ingot.targets.cpu"),
        ("targets/cpu/pack.py", "from ingot.passes import a", "targets imports ingot.passes.a"),
        ("targets/cpu/pack.py", "import ingot.compiler.a", "targets imports ingot.compiler.a"),
        ("ops/linear.py", "import ingot.targets.target", "ops imports ingot.targets.target"),
        ("llm.py", "import torch", "api imports torch"),
        ("llm.py", "from ingot.cli.main import main", "api imports ingot.cli.main.main"),
        ("misc/things.py", "import json", "misc is no room of the table"),
        ("runtime/engine.py", "import os\nx = os.environ['A']", "reads the environment"),
        ("runtime/engine.py", "from os import getenv", "reads the environment"),
    ],
)
def test_a_breach_is_found(tmp_path, file, source, breach):
    path = tmp_path / "ingot" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    line = len(source.splitlines())
    assert breaches(tmp_path / "ingot") == [f"ingot/{file}:{line}: {breach}"]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("runtime/engine.py", "import numpy\nfrom ingot.artifact.plan import Plan"),
        ("runtime/engine.py", "from ingot.errors import IngotError\nfrom ingot import errors"),
        ("compiler/compile.py", "import torch\nfrom ingot.models import registry"),
        ("targets/cpu/pack.py", "import torch\nfrom ingot.ops.scaled import Scaled"),
        ("compiler/compile.py", "from ingot.targets.target import kind_of"),
        ("cli/run.py", "from ingot import LLM\nfrom ingot.compiler.compile import compile_model"),
        ("settings.py", "import os\nx = os.environ"),
        ("llm.py", "import numpy\nfrom ingot.runtime.engine import Engine"),
    ],
)
def test_an_allowed_arrow_is_no_breach(tmp_path, file, source):
    path = tmp_path / "ingot" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert breaches(tmp_path / "ingot") == []


def test_modules_import_one_another_in_no_circle():
    assert circles(ROOT / "ingot") == []


def write(folder: Path, **sources: str) -> Path:
    for name, source in sources.items():
        path = folder.joinpath("ingot", *name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return folder / "ingot"


@pytest.mark.parametrize(
    "back",
    [
        "import ingot.a",
        "from ingot.a import x",
        "from ingot import a",
        "def f():\n    from ingot.a import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ingot.a import x",
    ],
)
def test_a_circle_is_found(tmp_path, back):
    package = write(tmp_path, a="from ingot.room.b import y", room__b="import ingot.c", c=back)
    assert circles(package) == [("a", "c", "room.b")]


def test_what_goes_one_way_is_no_circle(tmp_path):
    package = write(
        tmp_path,
        a="from ingot.b import y\nfrom ingot.c import z\nimport json",
        b="from ingot.c import z\nfrom ingot import __version__",
        c="x = 1",
        __init__="def f():\n    from ingot.a import x",
    )
    assert circles(package) == []


def test_lint_checks_style_and_types():
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert recipe is not None
    assert "ruff check" in recipe[1]
    assert "mypy" in recipe[1]
