"""A program beside the step, on the simulated device: over the same weights and pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from ingot import SamplingParams
from ingot.artifact.launches import BuiltLaunches, decode_launches
from ingot.artifact.plan import Plan
from ingot.artifact.reader import Artifact
from ingot.errors import ArtifactError, ResourceError, UsageError
from ingot.runtime.devices.cuda.check import check_built
from ingot.targets.cuda.simulated import SimulatedDriver
from tests.support.core import core
from tests.support.tiny_models import save_random
from tests.targets.cuda.simulation import FLAGS, compile_sketch, simulated

OPTIONS = {"max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 32}
PROMPTS = [[5, 9, 200, 9] * 5, [17], [250, 3, 8]]
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
BOTH = ("step", "hidden")
FOLDER = "targets/cuda-sm_90"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    save_random("qwen3", folder / "model", tokenizer=True)
    return compile_sketch(
        folder / "model", folder / "a.ingot", dtype="float32", programs=BOTH, **OPTIONS
    )


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize(
    ("family", "dtype", "most"),
    core(("qwen3", "float32", 1e-5), further=[("gpt2", "bfloat16", 3e-2)]),
)
def test_vectors_are_of_the_hidden_states_of_transformers(
    tmp_path: Path, family: str, dtype: str, most: float
) -> None:
    model_dir = save_random(family, tmp_path / "model", tokenizer=True)
    path = compile_sketch(model_dir, tmp_path / "a.ingot", dtype=dtype, programs=BOTH, **OPTIONS)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.no_grad(), simulated(path) as llm:
        for ids, found in zip(PROMPTS, llm.embed(PROMPTS, normalize=False), strict=True):
            expected = theirs.base_model(torch.tensor([ids])).last_hidden_state[0, -1].numpy()
            got = np.array(found.outputs.embedding)
            assert np.linalg.norm(got - expected) / np.linalg.norm(expected) < most


def test_requests_before_and_after_are_as_they_were(artifact: Path) -> None:
    def tokens() -> list[list[int]]:
        return [each.outputs[0].token_ids for each in llm.generate(PROMPTS, GREEDY)]

    with simulated(artifact) as llm:
        before, found = tokens(), llm.embed(PROMPTS)
        assert tokens() == before and llm.embed(PROMPTS) == found
        assert llm.embed(PROMPTS[1])[0].outputs == found[1].outputs


def test_it_has_launches_of_its_own_that_draw_nothing(artifact: Path) -> None:
    launches = {
        name: decode_launches((artifact / folder / "source" / "launches.json").read_bytes())
        for name, folder in (
            ("step", "targets/cuda-sm_90"),
            ("hidden", "targets/cuda-sm_90/hidden"),
        )
    }
    assert launches["step"].draws and launches["step"].arrays
    assert not launches["hidden"].draws and not launches["hidden"].arrays
    assert len(launches["hidden"].launches) == len(launches["step"].launches) - 2  # feed, head


def test_launches_that_draw_without_logits_are_refused(artifact: Path) -> None:
    opened = Artifact.open(artifact, flags=FLAGS)
    plans: dict[str, Plan] = {name: opened.plan_of(opened.target, name) for name in BOTH}
    step, hidden = (
        decode_launches((artifact / folder / "source/launches.json").read_bytes())
        for folder in (FOLDER, f"{FOLDER}/hidden")
    )
    drawing = replace(hidden, kernels=(), launches=(), draws=step.draws, arrays=step.arrays)
    for launches, says in (
        (drawing, "it draws, and the plan gives no logits"),
        (hidden, "binaries"),
    ):
        built = BuiltLaunches(launches=launches, binaries=())
        with pytest.raises(ArtifactError, match=says):
            check_built(built, "kernels.json", plans["hidden"], hidden.plan, ())


def test_a_device_without_room_for_it_says_so_and_goes_on(artifact: Path) -> None:
    """The memory that is left when the step has taken its own is too little."""

    class Tight(SimulatedDriver):
        left: Callable[[int], bool] = staticmethod(lambda nbytes: True)

        def allocate(self, nbytes: int) -> int:
            if not type(self).left(nbytes):
                raise ResourceError("the GPU is full")
            return super().allocate(nbytes)

    with simulated(artifact, driver=Tight) as llm:
        before = [each.outputs for each in llm.generate(PROMPTS, GREEDY)]
        Tight.left = staticmethod(lambda nbytes: False)
        for _ in range(2):
            with pytest.raises(ResourceError, match="full"):
                llm.embed(PROMPTS)
        assert [each.outputs for each in llm.generate(PROMPTS, GREEDY)] == before
        Tight.left = staticmethod(lambda nbytes: True)
        assert len(llm.embed(PROMPTS)) == len(PROMPTS)


def test_an_artifact_without_it_is_refused(tmp_path: Path) -> None:
    model_dir = save_random("qwen3", tmp_path / "model", tokenizer=True)
    path = compile_sketch(model_dir, tmp_path / "a.ingot", dtype="float32", **OPTIONS)
    with simulated(path) as llm, pytest.raises(UsageError, match="without the program hidden"):
        llm.embed(PROMPTS)
