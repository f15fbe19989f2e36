"""The figures of `--stats`, from pieces that come at known moments."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ingot.artifact.reader import Artifact
from ingot.cli import run_stats
from ingot.cli.other_work import ProcessorTimes
from ingot.cli.run_stats import RunStats
from ingot.runtime.output import TextDelta
from tests.cli.sample_artifact import write_sample


def deltas(*counts):
    return (TextDelta(text="", token_ids=[1] * count) for count in counts)


@pytest.fixture
def figures(monkeypatch, tmp_path):
    """Of pieces with so many tokens each; the first comes after 2 s, each later one after 0.5 s."""
    artifact = Artifact.open(write_sample(tmp_path / "sample.ingot"))
    monkeypatch.setattr(run_stats, "read_bandwidth", lambda artifact, nbytes: 1e9)

    def figures(*counts):
        moments = iter([10.0, *(12.0 + 0.5 * i for i in range(len(counts)))])
        kernels = iter([7.0, 7.5])
        clock = SimpleNamespace(perf_counter=lambda: next(moments))
        monkeypatch.setattr(run_stats, "time", clock)
        stats = RunStats(num_prompt_tokens=8)
        seen = [len(d.token_ids) for d in stats.watch(deltas(*counts), lambda: next(kernels))]
        assert seen == list(counts)
        return stats.figures(artifact, load_seconds=1.0)

    return figures


def test_the_first_token_is_prefill_and_the_others_are_decode(figures):
    of = figures(1, 1, 1, 1, 1)
    assert (of.ttft_seconds, of.num_tokens) == (2.0, 5)
    assert of.prefill_tokens_per_second == 8 / 2.0
    assert of.decode_tokens_per_second == 4 / 2.0


def test_pieces_without_tokens_only_take_time(figures):
    of = figures(0, 1, 1, 0)
    assert of.ttft_seconds == 2.5
    assert of.decode_tokens_per_second == 1 / 1.0


@pytest.mark.parametrize("counts", [(), (0,), (1,), (2,)])
def test_a_speed_needs_two_moments(figures, counts):
    assert figures(*counts).decode_tokens_per_second is None


@pytest.mark.parametrize(
    ("share", "told"), [(None, False), (0.0, False), (0.24, False), (0.25, True), (0.9, True)]
)
def test_a_busy_host_is_told_beside_the_speed(figures, monkeypatch, share, told):
    monkeypatch.setattr(run_stats.ProcessorTimes, "share_of_others", lambda self, since: share)
    of = figures(1, 1, 1)
    assert of.share_of_others == share
    lines = [line for line in of.text().splitlines() if line.startswith("busy host")]
    assert len(lines) == told
    if told:
        assert f"other work had {100 * share:.0f} % of the processors' time" in lines[0]


def test_the_share_of_kernels_stands_beside_the_speed(figures):
    of = figures(1, 1, 1)
    assert of.kernel_share == 0.5 / 1.0
    assert "kernels      50 % of that time" in of.text()


@pytest.mark.parametrize("counts", [(), (1,)])
def test_no_speed_no_share(figures, counts):
    of = figures(*counts)
    assert of.kernel_share is None and "kernels" not in of.text()


def cut(counts):
    yield from deltas(*counts)
    raise KeyboardInterrupt


@pytest.mark.parametrize("whole", [True, False])
def test_other_work_counts_until_the_answer_has_ended(monkeypatch, tmp_path, whole):
    """Neither what the host does until the figures are asked for, nor their own measuring."""
    artifact = Artifact.open(write_sample(tmp_path / "sample.ingot"))
    times = ProcessorTimes(busy=0.0, total=0.0, own=0.0)
    stats = RunStats(num_prompt_tokens=8, began=times)
    monkeypatch.setattr(ProcessorTimes, "now", lambda: times)
    monkeypatch.setattr(run_stats, "read_bandwidth", lambda artifact, nbytes: 1e9)
    with nullcontext() if whole else pytest.raises(KeyboardInterrupt):
        for _ in stats.watch(deltas(1, 1) if whole else cut([1, 1]), lambda: 0.0):
            times = replace(times, busy=times.busy + 1.0, total=times.total + 2.0)
    times = replace(times, total=times.total + 100.0)
    assert stats.figures(artifact, load_seconds=1.0).share_of_others == 0.5
