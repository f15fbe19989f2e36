"""What a compile takes as options, and what it makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from ingot.compiler.options import Clock, CompileOptions, check_known
from ingot.errors import UsageError

DEFAULTS: Mapping[str, object] = {
    "library": "ingot",
    "targets": ("cpu:native",),
    "programs": (),
    "dtype": "auto",
    "quantize": "none",
    "bits": None,
    "max_bytes": None,
    "activations": "",
    "group_size": "",
    "keep": (),
    "calibrate": None,
    "quality": True,
    "quality_text": None,
    "quality_positions": 512,
    "max_kl": None,
    "dequantize": False,
    "kv_dtype": "auto",
    "cuda_reach": "wide",
    "max_model_len": None,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 512,
    "page_size": 16,
    "verify_passes": False,
    "dump_dir": None,
    "disable_passes": (),
}


def test_what_is_not_asked_for_has_its_written_default() -> None:
    options = CompileOptions()
    assert {f.name: getattr(options, f.name) for f in fields(options)} == DEFAULTS


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("targets", "cpu:portable", ("cpu:portable",)),
        ("targets", ["cpu:portable", "cpu:native"], ("cpu:portable", "cpu:native")),
        ("keep", "a=none", ("a=none",)),
        ("disable_passes", ("x", "y"), ("x", "y")),
        ("group_size", 64, "64"),
        ("group_size", "channel", "channel"),
        ("group_size", 0, "0"),
        ("calibrate", "text", Path("text")),
        ("calibrate", None, None),
        ("max_kl", 1, 1.0),
        ("max_kl", 0, 0.0),
        ("quality_text", "text", Path("text")),
        ("quality_positions", 65536, 65536),
        ("dump_dir", Path("x"), Path("x")),
        ("max_model_len", None, None),
        ("max_model_len", 0, 0),
        ("page_size", 32, 32),
        ("verify_passes", True, True),
    ],
)
def test_what_is_given_is_kept_in_one_form(name: str, given: object, kept: object) -> None:
    found = getattr(CompileOptions(**{name: given}), name)
    assert found == kept and type(found) is type(kept)


@pytest.mark.parametrize(
    ("name", "given", "hint"),
    [
        ("targets", (), "at least one target, such as 'cpu:native'."),
        ("targets", None, "a string or a list of strings."),
        ("targets", [1], "a string or a list of strings."),
        ("targets", {"cpu:native"}, "a string or a list of strings."),
        ("dtype", None, "a string."),
        ("quantize", 8, "a string."),
        ("cuda_reach", 12, "a string."),
        ("group_size", True, "a string or an integer."),
        ("group_size", 1.5, "a string or an integer."),
        ("calibrate", 3, "a path or None."),
        ("max_kl", "much", "a number or None."),
        ("max_kl", -0.1, "a number from 0 on."),
        ("max_kl", float("nan"), "a number from 0 on."),
        ("quality", 1, "True or False."),
        ("quality_positions", 0, "from 1 to 65536."),
        ("quality_positions", 65537, "from 1 to 65536."),
        ("dump_dir", True, "a path or None."),
        ("max_model_len", "64", "an integer or None."),
        ("max_model_len", True, "an integer or None."),
        ("max_num_seqs", None, "an integer."),
        ("max_num_seqs", False, "an integer."),
        ("max_num_batched_tokens", 1.0, "an integer."),
        ("page_size", None, "an integer."),
        ("verify_passes", 1, "True or False."),
        ("verify_passes", None, "True or False."),
        ("disable_passes", None, "a string or a list of strings."),
    ],
)
def test_what_is_something_else_is_refused_by_name(name: str, given: object, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        CompileOptions(**{name: given})
    assert caught.value.found == f"{name} is {given!r}"
    assert caught.value.hint == f"{name} must be {hint}"


def test_a_long_value_is_not_repeated_whole() -> None:
    with pytest.raises(UsageError) as caught:
        CompileOptions(max_num_seqs="x" * 1000)
    assert caught.value.found == f"max_num_seqs is '{'x' * 79}"


@pytest.mark.parametrize("value", ["", "c", "A"])
def test_only_what_is_supported_is_known(value: str) -> None:
    check_known("letter", "a", ("a", "b"))
    with pytest.raises(UsageError, match=f"unknown letter '{value}'") as caught:
        check_known("letter", value, ("a", "b"))
    assert caught.value.hint == "Supported: a, b."


def test_a_clock_measures_each_stage_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 103.0, 104.0, 110.0, 150.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    told: list[tuple[str, str, float | None]] = []
    clock = Clock(lambda *event: told.append(event), started=90.0)
    for name in ("a", "b"):
        with clock.stage(name, name.upper()):
            pass
    assert clock.stage_seconds == {"a": 3.0, "b": 6.0} and clock.seconds == 60.0
    assert told == [("a", "A", None), ("a", "A", 1.0), ("b", "B", None), ("b", "B", 1.0)]


def test_a_stage_that_fails_does_not_end() -> None:
    told: list[float | None] = []
    clock = Clock(lambda stage, detail, fraction: told.append(fraction))
    with pytest.raises(KeyError), clock.stage("a", ""):
        raise KeyError
    assert told == [None] and clock.stage_seconds == {}
