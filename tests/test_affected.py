"""`make affected` runs the tests that can see a change, the nearest first."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import times
from tests.support.core import core
from tools.affected import __main__ as command
from tools.affected.choose import Affected, affected, estimate, fitting
from tools.affected.reads import Repository

ROOT = Path(__file__).parents[1]
PATCHES = sorted((ROOT / "tools" / "mutants").glob("*.patch"))

MADE: Mapping[str, str] = {
    "ingot/__init__.py": "",
    "ingot/count.py": "def twice(x):\n    return 2 * x\n",
    "ingot/late.py": "def four():\n    from ingot.count import twice\n    return twice(2)\n",
    "ingot/typed.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ingot.count import twice\n\n"
        'def same(x):\n    """Unlike `ingot.count`."""\n    # not ingot.count\n    return x\n'
    ),
    "ingot/verbs/one.py": "from ingot import count\n",
    "ingot/verbs/two.py": "",
    "ingot/parse.py": 'def verb(name):\n    return f"ingot.verbs.{name}"\n',
    "ingot/code/all.h": '#include "sum.h"\n',
    "ingot/code/sum.h": "int sum();\n",
    "ingot/build.py": "TEXT = '#include \"all.h\"'\n",
    "docs/page.md": "A page.",
    "tests/conftest.py": (
        "import pytest\nfrom ingot.late import four\nfrom ingot.build import TEXT\n\n"
        "@pytest.fixture\ndef number():\n    return four()\n\n"
        "@pytest.fixture(autouse=True)\ndef unasked():\n    assert TEXT\n"
    ),
    "tests/test_count.py": (
        "from ingot.count import twice\n\ndef test_twice():\n    assert twice(3) == 6\n"
    ),
    "tests/test_fixture.py": "def test_four(number):\n    assert number == 4\n",
    "tests/test_typed.py": "from ingot.typed import same\n\ndef test_same():\n    assert same(1)\n",
    "tests/test_verbs.py": "from ingot.parse import verb\n\ndef test_verb():\n    assert verb(1)\n",
    "tests/test_build.py": "from ingot import build\n\ndef test_build():\n    assert build.TEXT\n",
    "tests/test_page.py": "def test_page():\n    assert open('docs/page.md').read()\n",
    "tests/test_patched.py": "def test_patched(monkeypatch):\n    assert 'ingot.count.twice'\n",
}


@pytest.fixture
def made(tmp_path: Path) -> Repository:
    """A repository in which each file of tests reads in another way."""
    for path, text in MADE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return Repository(tmp_path, MADE)


def names(repository: Repository, *changed: str) -> list[str]:
    return [each.path for each in affected(repository.reads, changed, {})]


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        # Imported, named in a string, imported late and by a fixture, by a name put together.
        ("ingot/count.py", "count patched fixture verbs"),
        ("ingot/verbs/two.py", "verbs"),
        ("ingot/code/sum.h", "build"),
        ("ingot/typed.py", "typed"),
        ("docs/page.md", "page"),
        ("tests/test_page.py", "page"),
        ("tests/conftest.py", "build count fixture page patched typed verbs"),
        ("README.md", ""),
    ],
)
def test_every_way_to_read_is_seen(made: Repository, changed: str, tests: str) -> None:
    assert names(made, changed) == [f"tests/test_{name}.py" for name in tests.split()]


def test_a_file_that_is_gone_is_missed_by_those_that_name_it(made: Repository) -> None:
    (made.root / "ingot/count.py").unlink()
    assert names(made, "ingot/count.py")[:2] == ["tests/test_count.py", "tests/test_patched.py"]


def test_a_file_without_sense_hinders_nobody(made: Repository) -> None:
    (made.root / "ingot/late.py").write_text("def four(:\n")
    assert "tests/test_fixture.py" in names(made, "ingot/late.py")


def git(root: Path, *arguments: str) -> None:
    named = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *named, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def checkout(made: Repository, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That repository with its first commit, where the command runs."""
    (made.root / ".gitignore").write_text("__pycache__/\nbuild/\n.pytest_cache/\n")
    (made.root / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\npythonpath = ["."]\nmarkers = ["thorough", "slow"]\n'
    )
    git(made.root, "init", "--quiet", "--initial-branch=main")
    git(made.root, "add", "--all")
    git(made.root, "commit", "--quiet", "--message", "first")
    monkeypatch.setattr(command, "ROOT", made.root)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return made.root


@pytest.mark.parametrize(
    ("path", "mistake"),
    core(
        ("ingot/late.py", ("twice(2)", "twice(1)")),
        further=[("ingot/count.py", ("2 * x", "3 * x"))],
    ),
)
def test_a_planted_mistake_is_found_by_what_is_run(
    checkout: Path,
    path: str,
    mistake: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command.os, "cpu_count", lambda: 1)  # each process takes a second to start
    assert command.main([]) == 0
    assert capfd.readouterr().out == "nothing has changed since main\n"
    harmless = (checkout / path).read_text() + "# harmless\n"
    (checkout / path).write_text(harmless)
    assert command.main([]) == 0  # the control: the tests that run pass
    assert " passed" in capfd.readouterr().out
    (checkout / path).write_text(harmless.replace(*mistake))
    assert command.main([]) == 1
    assert " failed" in capfd.readouterr().out


def test_what_has_changed_is_committed_or_not_or_new(checkout: Path) -> None:
    git(checkout, "checkout", "--quiet", "-b", "branch")
    (checkout / "ingot/count.py").write_text("committed")
    git(checkout, "commit", "--quiet", "--all", "--message", "second")
    (checkout / "ingot/parse.py").unlink()
    (checkout / "ingot/new.py").write_text("")
    (checkout / "build").mkdir()
    (checkout / "build/ignored.py").write_text("")
    expected = ["ingot/count.py", "ingot/new.py", "ingot/parse.py"]
    assert command.changed_files(checkout, "main") == expected
    git(checkout, "checkout", "--quiet", "main", "--force")
    assert command.changed_files(checkout, "main") == ["ingot/new.py"]


def test_an_unknown_revision_is_refused_in_a_line(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--since", "nowhere"]) == 2
    told = capsys.readouterr()
    assert "git knows no 'nowhere'" in told.err and told.err.count("\n") == 1 and not told.out


def test_estimates_come_before_anything_runs(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {"tests/test_count.py": {"test_twice": (40.0, 90.0)}}
    monkeypatch.setattr(times, "read", lambda folder: known)
    monkeypatch.setattr(command.os, "cpu_count", lambda: 2)
    (checkout / "ingot/count.py").write_text("")
    assert command.main(["--list", "--seconds", "48"]) == 0
    told = capsys.readouterr().out
    assert "        ?  tests/test_patched.py\n   40.0 s  tests/test_count.py\n" in told
    assert "4 files of tests, about 48 s on 2 processors" in told and "left out" not in told
    # What takes longer than is asked for is left out, and told.
    assert command.main(["--list", "--seconds", "10"]) == 0
    told = capsys.readouterr().out
    assert "3 files of tests, about 10 s" in told and "test_count" not in told
    assert "left out for their time: 1 file of tests, 48 s more; SECONDS=0 runs all" in told


def each(path: str, seconds: float) -> Affected:
    return Affected(path, 1, 0, seconds, True)


def test_what_fits_is_the_nearest_and_at_least_one() -> None:
    found = [each("a", 300.0), each("b", 20.0), each("c", 30.0)]
    assert fitting(found, 2, 60) == (found[:1], found[1:])
    assert fitting(found[1:], 2, 60) == (found[1:], [])
    assert fitting(found, 2, float("inf")) == (found, [])
    assert estimate(found[1:], 2) == estimate(found[2:], 1) == 38


def test_what_is_compiled_anew_is_estimated_by_the_slowest_run(made: Repository) -> None:
    known = {"tests/test_build.py": {"test_build": (1.0, 9.0)}}
    (header,) = affected(made.reads, ["ingot/code/sum.h"], known)
    (python,) = affected(made.reads, ["ingot/build.py"], known)
    assert (header.seconds, python.seconds) == (9.0, 1.0)


@cache
def whole() -> Repository:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return Repository(ROOT, done.stdout.splitlines())


def test_of_each_mistake_that_tests_find_one_of_them_is_run() -> None:
    """All of tools/mutants, within two minutes on two processors if each file takes a second."""
    forgotten = []
    for patch in PATCHES:
        text = patch.read_text()
        chosen = chosen_for(tuple(re.findall(r"^\+\+\+ b/(.+)$", text, re.M)))
        known = re.match(r"# tests: (.+)", text)
        finders = known[1].split() if known else ["tests"]
        if not any(is_of(finder, each) for finder in finders for each in chosen):
            forgotten.append(patch.name)
    assert len(PATCHES) > 200 and forgotten == []


@cache
def chosen_for(changed: tuple[str, ...]) -> list[str]:
    """Nearly half of the mistakes are in a file that has others, too."""
    return [each.path for each in fitting(affected(whole().reads, changed, {}), 2, 120)[0]]


def is_of(finder: str, path: str) -> bool:
    place = finder.partition("::")[0].rstrip("/")
    return path == place or path.startswith(f"{place}/")


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., times.Times]:
    """Times after a run of tests with those seconds."""

    def recorded(
        seconds: Mapping[str, float], *marks: str, whole: bool = False, exitstatus: int = 0
    ) -> times.Times:
        recorder = times.Recorder(tmp_path, whole=whole)
        for nodeid, each in seconds.items():
            for when in ("setup", "call"):
                report = pytest.TestReport(
                    nodeid, ("", 0, ""), dict.fromkeys(marks, 1), "passed", None, when,  # type: ignore[arg-type]
                    duration=each / 2,
                )  # fmt: skip
                recorder.pytest_runtest_logreport(report)
        recorder.pytest_sessionfinish(exitstatus)
        return times.read(tmp_path)

    return recorded


def test_times_of_the_core_are_kept(recorded: Callable[..., times.Times], tmp_path: Path) -> None:
    assert times.read(tmp_path) == {}
    recorded({"tests/a.py::one": 9.0, "tests/b.py::two[x::y]": 2.0})
    found = recorded({"tests/a.py::one": 3.0})
    assert found == {"tests/a.py": {"one": (3.0, 9.0)}, "tests/b.py": {"two[x::y]": (2.0, 2.0)}}
    assert recorded({"tests/a.py::far": 70.0}, "thorough") == found
    # What is not there any more is forgotten by a run of everything, unless it ends early.
    assert recorded({"tests/b.py::two[x::y]": 2.0}, whole=True, exitstatus=2) == found
    found = {"tests/b.py": {"two[x::y]": (1.0, 2.0)}}
    assert recorded({"tests/b.py::two[x::y]": 1.0}, whole=True) == found
    (tmp_path / times.NAME).write_text('{"tests/a.py": {"one": 3')
    assert times.read(tmp_path) == {}


@pytest.mark.parametrize(
    ("arguments", "whole"),
    [
        (["-m", times.CORE, "-n", "2"], True),
        (["-m", times.CORE, "-k", "rope"], False),
        (["-m", times.CORE, "tests/passes"], False),
        (["-m", times.CORE, "-x"], False),
        (["-m", times.CORE, "--collect-only"], False),
        (["-m", "not slow"], False),
        (["-m", times.CORE, "--deselect=tests/a.py"], False),
    ],
)
def test_a_run_of_everything_is_known(
    arguments: list[str], whole: bool, pytestconfig: pytest.Config
) -> None:
    asked = pytestconfig._parser.parse_known_args(arguments)
    assert times.is_whole(SimpleNamespace(option=asked)) is whole  # type: ignore[arg-type]


def test_the_command_is_the_one_of_make() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.affected", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and "--since" in done.stdout
    makefile = (ROOT / "Makefile").read_text()
    assert "tools.affected --since $(SINCE) --seconds $(SECONDS)" in makefile
    assert f'-m "{times.CORE}" $(ARGS)' in makefile  # whose times are those of the core
