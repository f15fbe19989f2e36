"""What `inspect` shows of the kernels of a GPU, and predicts of what reads memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ingot.artifact import occupancy
from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.codec import encode_plan
from ingot.artifact.launches import (
    Binary,
    BuiltLaunches,
    Extent,
    KernelSpec,
    Launch,
    LaunchArgument,
    Launches,
    Variant,
    WeightTiles,
    decode_built,
    encode_built,
)
from ingot.artifact.manifest import ProgramEntry, TargetEntry
from ingot.artifact.select import CUDA_ABI
from ingot.artifact.writer import ArtifactWriter
from ingot.cli.inspect.gpu import GpuKernels, gpu_kernels, matrix_of
from ingot.cli.main import main
from tests.cli.sample_artifact import sample_manifest, sample_plan, weights_file

FOLDER = "targets/cuda-sm_90"
ARGUMENTS = (("x", "*fp32"), ("w", "*fp32"), ("rows", "i32"))
CONSTANTS = {
    "TILE_ROWS": 16, "TILE_OUTPUTS": 16, "TILE_COLUMNS": 8, "BITS": 32, "DEPTH": 8,
    "WIDTH": 48,
}  # fmt: skip
ONE = Extent()
WEIGHTS = WeightTiles(nbytes=512, count=1)


def kernel(number: int) -> tuple[KernelSpec, Binary]:
    """A product for few rows, one for many, and a norm."""
    name, constants = (
        ("product.multiply", CONSTANTS),
        ("product.multiply", CONSTANTS | {"TILE_ROWS": 128}),
        ("norm.rms_norm", {"COLUMNS": 8}),
    )[number]
    spec = KernelSpec(function=name, arguments=ARGUMENTS, constants=constants, num_warps=4)
    binary = Binary(
        file=f"cubins/{number}.cubin", entry=name, parameters=(),
        shared_bytes=12_288 * (number + 1), registers=40 + number, spilled_bytes=8 * number,
    )  # fmt: skip
    return spec, binary


def built() -> BuiltLaunches:
    """The embedding is no kernel of its own here; the norm runs twice."""
    specs, binaries = zip(*map(kernel, range(3)), strict=True)
    weight = LaunchArgument(buffer="embed.weight")
    tiles = (Extent(size="N", per=16), Extent(times=3), ONE)
    few = Variant(kernel=0, grid=tiles, size="N", most=16, weights=WEIGHTS)
    norm = Launch(group=1, arguments=(weight,) * 3, variants=(Variant(kernel=2, grid=(ONE,) * 3),))
    product = Launch(
        group=2,
        arguments=(weight,) * 3,
        variants=(few, Variant(kernel=1, grid=tiles, weights=WEIGHTS)),
    )
    never = replace(norm, variants=(replace(norm.variants[0], size="N", most=0),))
    return BuiltLaunches(
        launches=Launches(kernels=specs, launches=(norm, never, product), draws=(norm,)),
        binaries=binaries,
        built_with={"triton": "3.9.0"},
        least_cuda=12_080,
    )


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, for a CPU and then for a GPU."""
    manifest = sample_manifest()
    (cpu,) = manifest.targets
    step = ProgramEntry(plan=f"{FOLDER}/plan.json", kernels=f"{FOLDER}/kernels.json")
    gpu = TargetEntry(
        name="cuda:sm_90",
        requires=("sm_90",),
        layout=cpu.layout,
        abi=CUDA_ABI,
        programs={"step": step},
    )
    path = tmp_path_factory.mktemp("gpu") / "sample.ingot"
    with ArtifactWriter(path) as writer:
        for each in (cpu.main, step):
            writer.write(each.plan, encode_plan(sample_plan()))
        writer.write(cpu.main.kernels, b"no code")
        writer.write(step.kernels, encode_built(built()))
        writer.write("weights/cpu-float32.safetensors", weights_file())
        writer.commit(replace(manifest, targets=(cpu, gpu)))
    return path


@pytest.fixture(scope="module")
def shown() -> GpuKernels:
    return gpu_kernels(sample_plan(), built(), "sm_90")


def test_a_line_for_each_binary(shown: GpuKernels) -> None:
    assert [kernel.cells for kernel in shown.kernels] == [
        ("product.multiply", "48 x 8", "N <= 16", "16 x 16 x 8", 4, 40, "0 B", "12.3 KB", 1),
        ("product.multiply", "48 x 8", "N > 16", "16 x 128 x 8", 4, 41, "8 B", "24.6 KB", 1),
        ("norm.rms_norm", "", "", "", 4, 42, "16 B", "36.9 KB", 3),
    ]


def test_a_kernel_for_two_classes_of_steps_is_one_launch() -> None:
    """The binary for many rows is that for 64 rows, too."""
    found = built()
    *others, product = found.launches.launches
    few, many = product.variants
    middle = replace(many, size="N", most=64)
    product = replace(product, variants=(few, middle, many))
    launches = replace(found.launches, launches=(*others, product))
    kernels = gpu_kernels(sample_plan(), replace(found, launches=launches), "sm_90").kernels
    assert [(k.steps, k.launches) for k in kernels] == [("N <= 16", 1), ("N > 16", 1), ("", 3)]


def test_a_grid_without_programs_is_no_launch() -> None:
    """So a kernel is for steps of many rows alone."""
    found = built()
    *others, product = found.launches.launches
    few, many = product.variants
    nothing = replace(few, kernel=many.kernel, grid=(Extent(times=0), ONE, ONE))
    launches = replace(
        found.launches, launches=(*others, replace(product, variants=(nothing, many)))
    )
    shown = gpu_kernels(sample_plan(), replace(found, launches=launches), "sm_90")
    assert [(k.steps, k.launches) for k in shown.kernels[:2]] == [("", 0), ("N > 16", 1)]
    assert (shown.launches, shown.reads) == (1, ())


def test_a_stack_is_shown_with_its_picks() -> None:
    stack = {"PICKS": 8, "EXPERTS": 128, "HALF": 768, "DEPTH": 2048}
    assert matrix_of(replace(kernel(0)[0], constants=stack)) == "8 of 128: 1536 x 2048"


def test_launches_of_a_token_are_those_that_fit_it(shown: GpuKernels) -> None:
    assert shown.launches == 2
    assert (shown.card, shown.multiprocessors, shown.needed) == ("H200", 132, 29_090)


def test_a_product_has_what_its_grid_and_its_binary_allow(shown: GpuKernels) -> None:
    """Three programs are too few for 132 multiprocessors; each waits for one tile of 512 bytes."""
    (product,) = shown.reads
    architecture, (spec, binary) = ARCHITECTURES["sm_90"], kernel(0)
    assert occupancy.bytes_in_flight(binary, spec, architecture, WEIGHTS) == 12 * 512
    assert (product.programs, product.under_way) == (3, 3 * 512 // 132)
    assert (product.nbytes, product.launches) == (48 * 8 * 4, 1)
    assert product.bandwidth == occupancy.share_of_bandwidth(1536, 11, architecture) < 0.01
    assert product.cells[:3] == ("linear", "48 x 8 float32", "1.54 KB")


def test_a_full_grid_has_no_more_than_the_multiprocessors_hold() -> None:
    many = built()
    norm, never, product = many.launches.launches
    (few, rest), grid = product.variants, (Extent(times=10**6), ONE, ONE)
    product = replace(product, variants=(replace(few, grid=grid), rest))
    launches = replace(many.launches, launches=(norm, never, product))
    (found,) = gpu_kernels(sample_plan(), replace(many, launches=launches), "sm_90").reads
    assert (found.programs, found.under_way) == (10**6, 12 * 512)


def test_the_command_shows_the_first_gpu(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(sample), "--kernels"]) == 0
    out = capsys.readouterr().out
    for part in (
        "Kernels of cuda:sm_90, built by triton 3.9.0, for driver 570 or newer\n",
        "  product.multiply  48 x 8  N <= 16   16 x 16 x 8      4         40      0 B ",
        "What reads memory in a step of one token, predicted for H200\n",
        "  linear  48 x 8 float32  1.54 KB         3       11 B         0%         1\n",
        "A step of one token has 2 launches, 2.0 a layer",
        "1 of them read little,",
        "needs 29.1 KB under way",
    ):
        assert part in out
    assert main(["inspect", str(sample), "--kernels", "--target", "cuda:sm_90"]) == 0
    assert capsys.readouterr().out == out


def test_the_summary_says_what_shows_them_and_which_driver_they_need(
    sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(sample)]) == 0
    said = capsys.readouterr().out
    assert "--plan prints the kernels, --kernels the binaries of those of a GPU," in said
    line = next(line for line in said.splitlines() if line.startswith("  cuda:sm_90 "))
    assert line.endswith("driver 570 or newer")


def test_weights_are_copied_to_a_gpu_and_mapped_for_a_cpu(
    sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target, where in (("cuda:sm_90", "copied to the device"), ("cpu:portable", "mapped from")):
        assert main(["inspect", str(sample), "--target", target]) == 0
        lines = capsys.readouterr().out.splitlines()
        weights = next(line for line in lines if line.startswith("  weights ") and "KB, " in line)
        assert where in weights


def test_a_cpu_has_no_such_kernels(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(sample), "--kernels", "--target", "cpu:portable"]) == 2
    assert "the kernels of cpu:portable are one library" in capsys.readouterr().err


def test_json_has_the_same(
    sample: Path, shown: GpuKernels, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(sample), "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert plans["cpu:portable"]["gpu_kernels"] is None
    found = plans["cuda:sm_90"]["gpu_kernels"]
    assert found["kernels"][1]["registers"] == 41
    assert found["reads"][0]["bandwidth"] == shown.reads[0].bandwidth
    assert (found["card"], found["needed"]) == ("H200", shown.needed)
    assert found["driver"] == "driver 570 or newer"


def test_the_page_has_the_same(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target, expected in (("cuda:sm_90", True), ("cpu:portable", False)):
        page = tmp_path / "page.html"
        assert main(["inspect", str(sample), "--target", target, "--html", str(page)]) == 0
        text = page.read_text()
        assert ("Binaries of cuda:sm_90" in text) is expected
        row = (
            '<td data-name="matrix">48 x 8</td><td data-name="steps">N &lt;= 16</td>'
            '<td data-name="tile">16 x 16 x 8</td><td data-name="warps" class="n">4'
        )
        assert (row in text) is expected
        assert ('<td data-name="what">48 x 8 float32</td>' in text) is expected
        assert ("needs 29.1 KB under way" in text) is expected
        assert ("triton 3.9.0, for driver 570 or newer." in text) is expected
    capsys.readouterr()


def test_launches_of_an_earlier_ingot_do_not_state_their_weights() -> None:
    """Their products are shown as kernels whose shared memory is taken for tiles alone."""
    earlier = json.loads(encode_built(built()))
    for launch in earlier["launches"]["launches"]:
        for variant in launch["variants"]:
            del variant["weights"]
    read = decode_built(json.dumps(earlier).encode())
    (product,) = gpu_kernels(sample_plan(), read, "sm_90").reads
    assert product.programs == 3 and product.under_way > 3 * 512 // 132
