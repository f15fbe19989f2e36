"""A `kernels.json` that is wrong is refused, by name and fault, before any of it is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingot.artifact.launches import (
    BuiltLaunches,
    LaunchArgument,
    Launches,
    decode_built,
    encode_built,
)
from ingot.artifact.reader import Artifact
from ingot.artifact.writer import ArtifactWriter
from ingot.errors import ArtifactError, IncompatibleHostError
from ingot.runtime.devices.cuda.check import check_built, sizes_at_most
from ingot.runtime.devices.cuda.executor import CudaExecutor
from tests.support.tiny_models import save_random
from tests.targets.cuda.failing import IdleDriver
from tests.targets.cuda.simulation import FLAGS, compile_sketch

FILE = "targets/cuda-sm_90/kernels.json"
Edit = Callable[[Launches], Launches]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("cuda")
    model_dir = save_random("llama", folder / "model", tokenizer=True)
    path = compile_sketch(
        model_dir, folder / "a.ingot", dtype="bfloat16", max_model_len=64, max_num_seqs=4,
        max_num_batched_tokens=32,
    )  # fmt: skip
    return Artifact.open(path, flags=FLAGS)


@pytest.fixture(scope="module")
def built(artifact: Artifact) -> BuiltLaunches:
    return decode_built(artifact.read(FILE))


def check(artifact: Artifact, built: BuiltLaunches) -> None:
    """As an executor does before it asks for a device."""
    sha256 = artifact.manifest.files[artifact.target.main.plan].sha256
    check_built(built, FILE, artifact.plan, sha256, {"none.cubin"})


def rewritten(artifact: Artifact, out: Path, edits: dict[str, bytes | None]) -> Artifact:
    """A copy whose files say something else; None leaves one out."""
    with ArtifactWriter(out) as writer:
        for name in artifact.manifest.files:
            data = edits.get(name, artifact.read(name))
            if data is not None:
                writer.write(name, data)
        writer.commit(artifact.manifest)
    return Artifact.open(out, flags=FLAGS)


def test_one_that_is_right_is_taken(artifact: Artifact, built: BuiltLaunches) -> None:
    check(artifact, built)
    CudaExecutor(artifact, max_model_len=64, driver=IdleDriver()).close()


def test_kernels_of_another_plan_are_refused(
    artifact: Artifact, built: BuiltLaunches, tmp_path: Path
) -> None:
    other = replace(built, launches=replace(built.launches, plan="0" * 64))
    wrong = rewritten(artifact, tmp_path / "a.ingot", {FILE: encode_built(other)})
    with pytest.raises(ArtifactError, match=f"{FILE}: it was generated from another plan"):
        CudaExecutor(wrong, max_model_len=64, driver=IdleDriver())


def test_a_binary_that_is_missing_is_named(artifact: Artifact, tmp_path: Path) -> None:
    wrong = rewritten(artifact, tmp_path / "a.ingot", {"targets/cuda-sm_90/none.cubin": None})
    with pytest.raises(ArtifactError, match=f"{FILE}: the artifact has no none.cubin"):
        CudaExecutor(wrong, max_model_len=64, driver=IdleDriver())


class OldDriver(IdleDriver):
    """Of CUDA 12.4."""

    def cuda_version(self) -> int:
        return 12_040


@pytest.mark.parametrize(
    ("least", "needs", "wide"),
    [(12_080, "driver 570 or newer", False), (13_000, "driver 580 or newer", True)],
)
def test_a_driver_that_is_too_old_is_refused(
    artifact: Artifact, built: BuiltLaunches, least: int, needs: str, wide: bool
) -> None:
    """Before anything is copied; and one that is new enough is taken."""
    device = OldDriver()
    with pytest.raises(IncompatibleHostError, match=f"{needs}, and the .* CUDA 12.4") as caught:
        opened(artifact, replace(built, least_cuda=least), device)
    assert ("--cuda-reach wide" in caught.value.hint) is wide
    assert "allocate" not in device.calls and not device.open
    opened(artifact, replace(built, least_cuda=12_040), OldDriver())


def first_launch(**fields: Any) -> Edit:
    def edit(launches: Launches) -> Launches:
        first, *rest = launches.launches
        return replace(launches, launches=(replace(first, **fields), *rest))

    return edit


def first_variant(**fields: Any) -> Edit:
    def edit(launches: Launches) -> Launches:
        variant = replace(launches.launches[0].variants[0], **fields)
        return first_launch(variants=(variant,))(launches)

    return edit


def first_argument(**fields: Any) -> Edit:
    def edit(launches: Launches) -> Launches:
        number, argument = next(
            (i, each) for i, each in enumerate(launches.launches[0].arguments) if each.buffer
        )
        arguments = list(launches.launches[0].arguments)
        arguments[number] = replace(argument, **fields)
        return first_launch(arguments=tuple(arguments))(launches)

    return edit


def array(which: str, **fields: Any) -> Edit:
    def edit(launches: Launches) -> Launches:
        arrays = (replace(a, **fields) if a.name == which else a for a in launches.arrays)
        return replace(launches, arrays=tuple(arrays))

    return edit


def first_array(**fields: Any) -> Edit:
    return array("draw_rows", **fields)


WRONG: dict[str, tuple[Edit, str]] = {
    "kernel too high": (first_variant(kernel=10_000), "launch 0: kernel 10000 of"),
    "kernel below 0": (first_variant(kernel=-1), "launch 0: kernel -1 of"),
    "unknown size of a variant": (first_variant(size="Z", most=4), "launch 0: unknown size 'Z'"),
    "a size of drawing": (first_variant(size="D", most=4), "launch 0: unknown size 'D'"),
    "no arguments": (first_launch(arguments=()), "launch 0: 0 arguments for"),
    "unknown size of an argument": (
        first_launch(arguments=(LaunchArgument(size="Z"),)), "launch 0: unknown size 'Z'"
    ),
    "unknown buffer": (first_argument(buffer="nothing"), "array 0 of 'nothing'"),
    "another array": (first_argument(array=3), "array 3 of"),
    "array below 0": (first_argument(array=-1), "array -1 of"),
    "beyond the end": (first_argument(offset=1 << 40), "byte 1099511627776 of"),
    "before the beginning": (first_argument(offset=-16), "byte -16 of"),
    "between two multiples of 16": (first_argument(offset=8), "takes tokens at multiples of 16"),
    "no kernels": (lambda launches: replace(launches, kernels=()), "0 kernels and"),
    "no arrays": (lambda launches: replace(launches, arrays=()), "the arrays of drawing"),
    "an array of another dtype": (first_array(dtype="float64"), "the arrays of drawing"),
    "an array of another shape": (first_array(shape=(3,)), "has the shape"),
    "an array of no shape": (first_array(shape=()), "draw_rows has the shape []"),
    "lists of other lengths": (
        array("scored_logits", shape=(8, 20)), "scored_logits has the shape [8, 20]"
    ),
    "no room for the likeliest": (
        array("scored_tokens", shape=(8, 1)), "scored_tokens has the shape [8, 1]"
    ),
    "scores of no shape": (array("score_asked", shape=()), "score_asked has the shape []"),
    "an empty array": (first_array(shape=(0,)), "'draw_rows' has the shape"),
    "an array in place of a buffer": (first_array(name="tokens"), "a second buffer is called"),
    "no workspace": (lambda launches: replace(launches, workspace_bytes=-1), "a workspace of -1"),
}  # fmt: skip


def test_a_driver_that_can_never_be_is_a_fault(artifact: Artifact, built: BuiltLaunches) -> None:
    with pytest.raises(ArtifactError, match="binaries for drivers of CUDA 100"):
        opened(artifact, replace(built, least_cuda=100_000))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told(artifact: Artifact, built: BuiltLaunches, name: str) -> None:
    edit, said = WRONG[name]
    wrong = replace(built, launches=edit(built.launches))
    with pytest.raises(ArtifactError, match=r"kernels\.json: ") as raised:
        opened(artifact, wrong)
    assert said in str(raised.value)


def test_a_pointer_may_lie_anywhere_if_its_kernel_says_so(
    artifact: Artifact, built: BuiltLaunches
) -> None:
    launches = first_argument(offset=8)(built.launches)
    numbers = {variant.kernel for variant in launches.launches[0].variants}
    kernels = [
        replace(spec, unaligned=tuple(name for name, kind in spec.arguments if kind[0] == "*"))
        if number in numbers else spec
        for number, spec in enumerate(launches.kernels)
    ]  # fmt: skip
    opened(artifact, replace(built, launches=replace(launches, kernels=tuple(kernels))))


def opened(artifact: Artifact, built: BuiltLaunches, driver: IdleDriver | None = None) -> None:
    """Opens the artifact as if it had that file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ingot.runtime.devices.cuda.program.decode_built", lambda *_, **__: built)
        CudaExecutor(artifact, max_model_len=64, driver=driver or IdleDriver()).close()


def refusal(artifact: Artifact, built: BuiltLaunches) -> ArtifactError | None:
    """Why it is refused."""
    try:
        opened(artifact, built)
    except ArtifactError as error:
        return error
    return None


ODD = st.one_of(
    st.sampled_from([-(1 << 63), -1, 0, 1, 3, 1 << 20, 1 << 31, (1 << 63) - 1]),
    st.sampled_from(["", "Z", "N", "workspace", "logits", "tokens", "../x", "\0"]),
    st.sampled_from([[], {}, None, True]),
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something could be replaced in nested lists and dicts, constants of kernels apart."""
    items: Any = ()
    if isinstance(value, dict):
        items = [(key, each) for key, each in value.items() if key != "constants"]
    elif isinstance(value, list):
        items = list(enumerate(value[:3]))
    found = [(*at, key) for key, _ in items]
    return found + [place for key, each in items for place in places(each, (*at, key))]


@settings(
    derandomize=True, max_examples=300, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(data=st.data())
def test_whatever_is_changed_is_refused_by_name_or_harmless(
    artifact: Artifact, data: st.DataObject
) -> None:
    """No mistake in the file ends in another error than one that names it."""
    tree = msgspec.json.decode(artifact.read(FILE))
    for _ in range(data.draw(st.integers(1, 2))):
        *path, last = data.draw(st.sampled_from(places(tree)))
        inner = tree
        for key in path:
            inner = inner[key]
        inner[last] = data.draw(ODD)
    try:
        changed = msgspec.convert(tree, BuiltLaunches)
    except msgspec.ValidationError:
        return  # `decode_built` refuses it
    error = refusal(artifact, changed)
    assert error is None or "kernels.json" in error.found


def test_the_largest_sizes_are_those_of_the_limits(artifact: Artifact) -> None:
    found = sizes_at_most(artifact.plan.limits)
    assert found == {"N": 32, "S": 4, "R": 4, "P": 4, "Q": 32, "C": 64, "D": 4, "E": 4, "L": 8}
