"""What people read about an artifact, a model and a check: every figure beside its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ingot.artifact.golden import Tolerance
from ingot.artifact.golden_error import GoldenDifference
from ingot.artifact.manifest import GroupEntry, ProgramEntry
from ingot.artifact.plan import Buffer, Group, MemoryPlan, Plan, Slot
from ingot.cli import compile, explain, verify
from ingot.cli.inspect import inspect
from ingot.cli.inspect.inspected import Inspected
from ingot.cli.inspect.page import artifact_page
from ingot.cli.inspect.view import (
    ArtifactView,
    KernelView,
    kernel_counts,
    kernel_views,
    live_bytes,
    read_artifact,
)
from ingot.compiler.explain import Explanation, Reason
from ingot.compiler.needs import CacheNeed, Way
from ingot.compiler.options import Report
from ingot.errors import UsageError
from ingot.runtime.verify import Mismatch, Verification
from tests.cli.sample_artifact import F32, sample_manifest, sample_plan, write_sample


@pytest.fixture
def view(tmp_path: Path) -> ArtifactView:
    """The sample with a second target: more code, other groups, and one kernel for the last two."""
    seen = read_artifact(write_sample(tmp_path / "sample.ingot"))
    (first,) = seen.manifest.targets
    groups = (
        GroupEntry(name="group_x", allowed=4, formed=1, reasons=(("even", 2), ("odd", 1))),
        GroupEntry(name="group_y", allowed=0, formed=0, reasons=()),
    )
    code = "weights/cpu-float32.safetensors"  # some larger file
    step = ProgramEntry(plan=first.main.plan, kernels=code, groups=groups)
    second = replace(first, name="cpu:x86-64-v3", programs={"step": step})
    manifest = replace(seen.manifest, targets=(first, second))
    programs = seen.programs | {second.name: {"step": grouped()}}
    return replace(seen, manifest=manifest, programs=programs)


def slot(name: str, offset: int, nbytes: int, first: int, last: int) -> Slot:
    return Slot(name=name, offset=offset, nbytes=nbytes, first_use=first, last_use=last)


def grouped() -> Plan:
    """The sample, whose norm and product are one kernel; the product reads half of the norm."""
    plan = sample_plan()
    half = Buffer(name="half", format=F32, shape=("N", 4), kind="view", base="%1<b>", row_stride=8)
    buffers = tuple(replace(b, kind="inner") if b.name == "%1<b>" else b for b in plan.buffers)
    lookup, norm, product = plan.instructions
    product = replace(product, inputs={"x": "half", "weight": "embed.weight"}, attrs={"cap": 2.0})
    return replace(
        plan,
        buffers=(*buffers, half),
        instructions=(lookup, norm, product),
        groups=(Group(kernel="both", first=1, count=2),),
        memory=MemoryPlan(arena_bytes=4096, slots=(slot("%0", 0, 1024, 0, 1),)),
    )


def shown(view: ArtifactView, target: str) -> Inspected:
    return Inspected(view=view, target=target)


def test_a_summary_names_every_figure(view: ArtifactView) -> None:
    text = inspect.summary(shown(view, "cpu:portable"))
    assert text.startswith(f"{view.path}   format 3.5, written by ingot 0.1.0\n")
    assert "128 B a token; 8.19 KB for 64 tokens" in text
    for part in (
        "  model       sample (SampleForCausalLM)\n  parameters  392 in 1 layers\n"
        "  vocabulary  48 tokens\n  sequence    at most 64 tokens\n"
        "  step        at most 32 tokens of 4 sequences\n"
        "  numerics    float32; goldens within 0.002\n",
        "Files\n  targets  1.24 KB\n  weights  1.79 KB\n",
        "  weights   1.79 KB, mapped from the file and shared by processes\n"
        "  arena     2.05 KB for the temporaries of a step\n",
        "  decode   a token reads 1.60 KB of weights; 768 operations\n"
        "  prefill  64 tokens take 49.2K operations\n",
        "  target         weights         code  kernels    arena\n"
        "  cpu:portable   cpu-float32      7 B        3  2.05 KB\n"
        "  cpu:x86-64-v3  cpu-float32  1.79 KB        2  4.10 KB\n",
        "  canonicalize         5         -  exact\n  fuse_rms_norm        1         1  exact\n",
        "Groups\n  for cpu:portable\n  group    formed  allowed\n  group_x       1        2\n"
        "  group_x: 1 not formed, odd\n\n"
        "  for cpu:x86-64-v3\n  group    formed  allowed\n  group_x       1        4\n"
        "  group_x: 2 not formed, even\n  group_x: 1 not formed, odd\n\n",
        "Plan of step for cpu:portable\n  count  kernel\n      1  embedding\n      1  rms_norm\n",
    ):
        assert part in text
    assert (
        "Plan of step for cpu:x86-64-v3\n  count  kernel\n      1  embedding\n      1  both\n"
        in (inspect.summary(shown(view, "cpu:x86-64-v3")))
    )


def test_the_first_target_is_shown_unless_one_is_named(view: ArtifactView) -> None:
    assert inspect._target(view, None) == "cpu:portable"
    assert inspect._target(view, "cpu:x86-64-v3") == "cpu:x86-64-v3"
    with pytest.raises(UsageError, match="no target 'x'") as caught:
        inspect._target(view, "x")
    assert caught.value.hint == "It has: cpu:portable, cpu:x86-64-v3."


def test_quantized_weights_are_told(view: ArtifactView) -> None:
    numerics = replace(view.manifest.numerics, quantization="int4-g32", dtype="bfloat16")
    told = replace(view, manifest=replace(view.manifest, numerics=numerics))
    assert "numerics    bfloat16, int4-g32; goldens" in inspect.summary(shown(told, "cpu:portable"))
    assert compile.stored(numerics) == "int4-g32"
    assert compile.stored(view.manifest.numerics) == "float32"


def test_a_kernel_shows_what_passes_in_and_out() -> None:
    assert kernel_views(grouped()) == [
        KernelView(
            name="embedding", ops=("embedding",), origin="embed",
            inputs=("tokens", "embed.weight"), outputs=("%0",), attrs="",
        ),
        KernelView(
            name="both", ops=("rms_norm", "linear"), origin="head",
            inputs=("%0", "norm.weight", "embed.weight"), outputs=("logits",),
            attrs="eps=1e-06 cap=2.0",
        ),
    ]  # fmt: skip


def test_kernels_are_counted_and_the_most_frequent_is_first() -> None:
    plan = sample_plan()
    first, second, third = plan.instructions
    plan = replace(plan, instructions=(first, second, third, third, second, third))
    assert list(kernel_counts(plan).items()) == [("linear", 3), ("rms_norm", 2), ("embedding", 1)]


def test_bytes_are_in_use_from_the_first_kernel_to_the_last() -> None:
    plan = sample_plan()
    slots = (slot("a", 0, 5, 0, 1), slot("b", 5, 70, 1, 1), slot("c", 0, 600, 2, 9))
    assert live_bytes(replace(plan, memory=replace(plan.memory, slots=slots))) == [5, 75, 600]


def test_the_page_has_the_same_figures(view: ArtifactView) -> None:
    page = artifact_page(shown(view, "cpu:portable"))
    for number, what in (
        ("392", "parameters, 1 layers"),
        ("1.79 KB", "weights in float32"),
        ("2.05 KB", "arena of a step"),
        ("128 B", "KV cache a token in ; 8.19 KB a full sequence"),
        ("64", "tokens in a sequence at most"),
        ("4", "sequences at once at most"),
    ):
        assert f'<div class="card"><b>{number}</b><span>{what}</span></div>' in page
    assert page.index("<code>weights</code>") < page.index("<code>targets</code>")
    assert 'class="c1" x="1" y="1024" width="2" height="1024"' in page
    assert "%1&lt;b&gt; of rms_norm: 1.02 KB at 1024, kernels 1 to 2" in page
    assert "at a context of 64" in page and "Plan of cpu:portable" in page
    assert '<b class="op">both</b>' in artifact_page(shown(view, "cpu:x86-64-v3"))


def cache(dtype: str, total: int, *, fits: bool | None = True) -> CacheNeed:
    most = None if fits is None else 4096
    return CacheNeed(
        dtype=dtype, options=(), bytes_per_token=2048, cache_bytes=2_048_000, total_bytes=total,
        fits=fits, largest_context=most and 96, largest_seats=most and 3,
    )  # fmt: skip


def known_explanation(*, fits: bool | None) -> Explanation:
    caches = (cache("bfloat16", 14_000_000, fits=fits), cache("int8", 12_000_000))
    return Explanation(
        supported=True, architecture="A", family="f", features=("one", "two"),
        num_parameters=5_246_976, active_parameters=5_246_976, dtype="bfloat16, as asked",
        target="cpu:t", context=100, seats=2,
        memory_bytes=None if fits is None else 10**9, compile_options=("--max-num-seqs", "70"),
        ways=(
            Way(name="bfloat16", options=(), default=True, weight_bytes=10_500_000, caches=caches),
            Way(name="int4", options=(), refused="too wide", hint="Give more."),
        ),
    )  # fmt: skip


FACTS = (
    "  architecture  A\n  family        f\n  parameters    5.25M\n"
    "  compiled as   bfloat16, as asked"
)
NEEDS = "Needs on cpu:t, with a KV cache for 2 sequences of 100 tokens. "


def test_an_explanation_has_what_is_known() -> None:
    text = explain.summary("it's m", known_explanation(fits=True), "v1")
    assert text.endswith("compile 'it'\"'\"'s m' --revision v1 --max-num-seqs 70")
    assert text.split("\n\n")[:-1] == [
        "it's m: supported",
        FACTS,
        "  - one\n  - two",
        f"{NEEDS}{explain.TOTAL} 1.00 GB are given.\n"
        "  stored as           weights    total  fits  int8 cache  fits\n"
        "  bfloat16 (default)  10.5 MB  14.0 MB  yes      12.0 MB  yes\n"
        "  KV cache in bfloat16  2.05 KB a token, 2.05 MB for all\n"
        "  KV cache in int8      2.05 KB a token, 2.05 MB for all\n"
        "  not int4              too wide\n"
        "                        Give more.",
    ]


def test_an_explanation_says_what_fits_instead() -> None:
    text = explain.summary("m", known_explanation(fits=False), whose="free on this host")
    *_, needs, instead, _ = text.split("\n\n")
    assert "1.00 GB are free on this host." in needs and "14.0 MB  no " in needs
    assert instead == (
        "What fits: the longest context of 2 sequences, and the most sequences of 100 tokens\n"
        "  stored as  context  sequences  int8 cache: context  sequences\n"
        "  bfloat16        96          3                   96          3"
    )


def test_an_explanation_on_a_host_that_tells_no_memory_speaks_of_none() -> None:
    *_, needs, _ = explain.summary("m", known_explanation(fits=None)).split("\n\n")
    assert "fits" not in needs and needs.startswith(f"{NEEDS}{explain.TOTAL}\n")


def test_an_explanation_names_every_reason() -> None:
    reasons = (
        Reason(about="model", found="why", hint="first\nsecond"),
        Reason(about="tokenizer", found="none", hint=""),
    )
    unknown = Explanation(
        supported=False, architecture="", reasons=reasons, nearest="N", differing=("x", "y"),
        absent=("z",),
    )  # fmt: skip
    assert explain.summary("m", unknown).split("\n\n") == [
        "m: not supported",
        "  model      why\n             first\n             second\n  tokenizer  none",
        "  architecture  none named\n  nearest       N\n  differing     x, y\n  absent        z\n"
        "  Equal keys would not make it one: what a model computes is in its code.",
    ]
    same = explain.summary("m", replace(unknown, differing=(), absent=()))
    assert "differing     none of its keys\n" in same and "absent" not in same


def test_a_verification_has_what_was_checked(view: ArtifactView) -> None:
    checked = SimpleNamespace(
        path="m.ingot", manifest=view.manifest, target=view.manifest.targets[1]
    )
    tie = Mismatch("prefill", 0, 3, 7, 8, 1e-4, True)
    ways = {
        "prefill": GoldenDifference(1e-7, 1e-6, 2e-9),
        "tokens": GoldenDifference(2e-7, 2e-6, 1e-9),
    }
    allowed = Tolerance(1e-3, 1.5e-3, 2e-3, 1e-6)
    found = Verification(2, 9, "bfloat16", allowed, ways, (tie, tie), True)
    assert verify.summary(checked, found).splitlines() == [
        "m.ingot: verified on this host as cpu:x86-64-v3",
        "  files          3 hashes match",
        "  golden         2 prompts, 9 positions, bfloat16",
        "  mean error     2.0e-07, 1.5e-03 allowed",
        "  largest error  2.0e-06, 2.0e-03 allowed",
        "  divergence     2.0e-09 nats, 1.0e-06 allowed",
        "  near ties      2",
        "  ways           prefill, tokens: the same bits",
    ]
    assert "near ties      none" in verify.summary(checked, replace(found, mismatches=()))


def test_a_report_names_the_slowest_stages() -> None:
    stages = {"read": 1.0, "export": 5.0, "pack": 3.0, "golden": 0.5, "build": 9.0}
    report = Report(
        artifact=Path("out.ingot"), manifest=sample_manifest(), seconds=18.5,
        stage_seconds=stages, dtype_reason="because", bytes_total=12_345_678,
        weight_bytes=10_000_000, golden_error=None,
    )  # fmt: skip
    assert compile.summary(report).splitlines()[:7] == [
        "out.ingot",
        "  model         sample (SampleForCausalLM)",
        "  targets       cpu:portable",
        "  dtype         because",
        "  size          12.3 MB, of which weights 10.0 MB in float32",
        "  time          18.5 s, most of it build 9.0 s, export 5.0 s, pack 3.0 s, read 1.0 s",
        "  golden error  not measured: this host has none of the targets, or too little free "
        "memory (allowed: 0.002)",
    ]
    assert (
        compile.golden_error(0.0, sample_manifest())
        == "0.0e+00 in the mean of log-probabilities (allowed: 0.002)"
    )
