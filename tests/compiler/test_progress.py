"""The long stages of a compile say how far they have come."""

from __future__ import annotations

from ingot.compiler.compile import compile_model
from ingot.compiler.options import Clock, CompileOptions
from ingot.models.model_dir import ModelDir
from ingot.targets.cpu import toolchain


def test_long_stages_tell_the_share_of_the_parameters(shakespeare_dir, tmp_path, monkeypatch):
    def build(source, out, target, flags=(), compile_unit=None):
        out.write_bytes(b"no code")

    told: dict[str, list[float]] = {}

    def progress(stage, detail, fraction):
        told.setdefault(stage, []).append(fraction)

    monkeypatch.setattr(toolchain, "build", build)
    monkeypatch.setattr(toolchain, "compile_unit", build)
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "empty"))
    options = CompileOptions(targets=("cpu:portable",), quantize="int8")
    compile_model(ModelDir.open(shakespeare_dir), tmp_path / "m.ingot", options, progress=progress)
    for stage in ("quantize", "pack", "golden"):
        unknown, *fractions = told[stage]
        assert unknown is None and fractions[-1] == 1
        assert fractions == sorted(set(fractions)) and len(fractions) > 5, stage
        assert 0 <= fractions[0] < 0.1 < 0.85 < fractions[-2] < 1
    assert told["export"] == [None, 1]


def test_a_share_counts_every_parameter_once_when_the_next_begins():
    told = []
    clock = Clock(lambda *event: told.append(event[2]))
    with clock.stage_over("pack", "", {"a": 1, "b": 3}) as began:
        for name in ("a", "a", "unknown", "b", "a"):
            began(name)
    assert told == [None, 0, 0.25, 1]
    with clock.stage_over("pack", "", {}) as began:
        began("a")
