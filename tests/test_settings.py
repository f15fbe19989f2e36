"""Where the cache lies, how large it may be, and what else the environment says."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from ingot.errors import UsageError
from ingot.settings import (
    VARIABLES,
    UnknownVariableWarning,
    parse_bytes,
    settings,
    unknown_variables,
)

HOME = Path("/home/of-tests")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(HOME))


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({}, HOME / ".cache/ingot"),
        ({"INGOT_CACHE": ""}, HOME / ".cache/ingot"),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/ingot")),
        ({"XDG_CACHE_HOME": "relative"}, HOME / ".cache/ingot"),
        ({"XDG_STATE_HOME": "/x"}, HOME / ".cache/ingot"),
        ({"INGOT_CACHE": "/y", "XDG_CACHE_HOME": "/x"}, Path("/y")),
        ({"INGOT_CACHE": "~/y"}, HOME / "y"),
        ({"INGOT_CACHE": "relative"}, Path("relative")),
    ],
)
def test_the_folder_of_the_cache(environ: dict[str, str], folder: Path) -> None:
    assert settings(environ).cache_dir == folder
    assert settings(environ).kernels_dir == folder / "kernels"


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({}, HOME / ".local/state/ingot"),
        ({"XDG_STATE_HOME": "/x"}, Path("/x/ingot")),
        ({"XDG_STATE_HOME": "relative"}, HOME / ".local/state/ingot"),
        ({"XDG_CACHE_HOME": "/x", "INGOT_CACHE": "/y"}, HOME / ".local/state/ingot"),
    ],
)
def test_the_folder_of_what_was_typed(environ: dict[str, str], folder: Path) -> None:
    assert settings(environ).state_dir == folder


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    for folder in ("cache_dir", "kernels_dir"):
        with pytest.raises(UsageError, match="no folder for the cache: Could not") as info:
            getattr(settings({}), folder)
        assert "INGOT_CACHE" in info.value.hint
    assert settings({}).state_dir is None
    assert settings({"INGOT_CACHE": "/y"}).cache_dir == Path("/y")


@pytest.mark.parametrize(
    ("environ", "cxx"),
    [
        ({}, None),
        ({"CXX": "c"}, "c"),
        ({"INGOT_CXX": "i", "CXX": "c"}, "i"),
        ({"INGOT_CXX": "", "CXX": "c"}, "c"),
        ({"CXX": ""}, None),
    ],
)
def test_the_compiler_that_is_named(environ: dict[str, str], cxx: str | None) -> None:
    assert settings(environ).cxx == cxx


@pytest.mark.parametrize(("text", "debug"), [("", 0), *((str(n), n) for n in range(6))])
def test_verbosity(text: str, debug: int) -> None:
    assert settings({"INGOT_DEBUG": text}).debug == debug
    assert settings({}).debug == 0


def test_an_empty_environment_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("INGOT_CACHE_LIMIT", "1"), ("INGOT_DEBUG", "2"), ("INGOT_NONE", "")):
        monkeypatch.setenv(name, value)
    with pytest.warns(UnknownVariableWarning, match="INGOT_NONE"):
        found = settings()
    assert (found.cache_limit, found.debug, unknown_variables({})) == (1, 2, "")
    assert "INGOT_NONE" in unknown_variables()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = settings({})
    assert (found.cache_limit, found.debug) == (None, 0)


@pytest.mark.parametrize("text", ["6", "-1", "01", "yes", " 1"])
def test_what_is_no_verbosity(text: str) -> None:
    with pytest.raises(UsageError, match="INGOT_DEBUG is") as info:
        settings({"INGOT_DEBUG": text})
    assert "0 to 5" in info.value.hint


@pytest.mark.parametrize(
    ("environ", "escapes"),
    [
        ({}, False),
        ({"TERM": ""}, False),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
    ],
)
def test_escapes(environ: dict[str, str], escapes: bool) -> None:
    assert settings(environ).escapes == escapes


def test_where_a_compiler_looks_by_itself() -> None:
    names = ("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX")
    none = settings({}).compiler_paths
    assert none == tuple(f"{name}=" for name in names)
    for index, name in enumerate(names):
        found = settings({name: "/x"}).compiler_paths
        assert found == (*none[:index], f"{name}=/x", *none[index + 1 :])


def test_names_that_are_unknown_are_told_with_what_may_be_meant() -> None:
    known = dict.fromkeys(VARIABLES, "1")
    assert unknown_variables(known) == "" == unknown_variables({"INGO_CACHE": "", "XINGOT_": ""})
    found = unknown_variables({**known, "INGOT_PORT": "", "INGOT_CACH": "", "INGOT_CXXX": ""})
    assert "INGOT_CACH (did you mean INGOT_CACHE?), INGOT_CXXX (did you" in found
    assert "INGOT_PORT;" in found and found.endswith(f"known: {', '.join(VARIABLES)}")
    with pytest.warns(UnknownVariableWarning, match="INGOT_PORT") as caught:
        settings({"INGOT_PORT": "80"})
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings(known)


@pytest.mark.parametrize(
    ("text", "count"),
    [("7B", 7), ("1k", 10**3), ("1M", 10**6), ("1g", 10**9), ("2TB", 2 * 10**12), (" 5 MB ", 5e6)],
)
def test_units_of_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "1P", "1,5G", "1_000", "٣G", "1..5G", "5 0"])
def test_what_is_no_size_is_told_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="500MB, 20GB or"):
        parse_bytes(text)
