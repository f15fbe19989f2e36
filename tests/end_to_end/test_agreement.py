"""All forms of a model agree in pairs: artifact, ONNX, plain module, and `transformers`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path

import pytest

from ingot.compare.compare import compare
from ingot.compare.prompts import Prompt
from ingot.compare.sides import Side, open_side
from ingot.models import registry
from ingot.onnx import export_onnx
from tests.end_to_end.support import LIMITS, Compile, Compiled, random_tokens
from tests.support import dense_models as dense
from tests.support.core import core
from tests.support.tiny_models import CASES

# How `ingot compare` calls each form of a model: by its directory, its artifact, an empty folder.
# Whatever is added here is held against all others, for every family.
FORMS: dict[str, Callable[[Path, Path, Path], str]] = {
    "artifact": lambda model_dir, artifact, empty: str(artifact),
    "module": lambda model_dir, artifact, empty: str(model_dir),
    "transformers": lambda model_dir, artifact, empty: f"hf:{model_dir}",
    "onnx": lambda model_dir, artifact, empty: str(exported(model_dir, empty / "onnx")),
}
LONGEST, GREEDY = 312, 8
# One token, beyond a page, and beyond every window.
PROMPTS = [Prompt(f"{n} tokens", tuple(random_tokens(n))) for n in (1, 17, 300)]
FIRST = sorted({name.split("_")[0] for name in CASES})
FAMILIES = (*FIRST, *dense.USUAL)
WITH_EXPERTS = (
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granite_moe", "gpt_oss", "glm4_moe"),
    *("minimax_m2", "ernie4_5_moe", "hunyuan_moe", "deepseek_v2", "deepseek_v3"),
)
CASE = {
    (family, dtype): [Compile(family, dtype, LONGEST)] for family in FAMILIES for dtype in LIMITS
}


def exported(model_dir: Path, out: Path) -> Path:
    """The model with keys and values, as ONNX."""
    export_onnx(model_dir, out, max_model_len=LONGEST)
    return out / "model.onnx"


@contextmanager
def forms_of(model_dir: Path, artifact: Path, empty: Path) -> Iterator[dict[str, Side]]:
    """A side for each form, until the end of the block."""
    with ExitStack() as stack:
        sides = {}
        for form, name in FORMS.items():
            sides[form] = open_side(name(model_dir, artifact, empty), max_model_len=LONGEST)
            stack.callback(sides[form].close)
        yield sides


def limit_of(*forms: str, dtype: str) -> float:
    """The tolerance of docs/design.md: only artifacts compute in their dtype."""
    return LIMITS[dtype if "artifact" in forms else "float32"]


def test_every_family_has_a_case_or_experts():
    """Those with experts have no ONNX form; test_families.py holds them against transformers."""
    # The family glm4 builds glm, too.
    assert set(registry.families()) == {*FAMILIES, *WITH_EXPERTS} - {"glm"}


@pytest.mark.parametrize(
    "cases",
    core(further=[CASE["llama", "float32"], CASE["gemma2", "bfloat16"]], slow=CASE.values()),
    ids=lambda cases: f"{cases[0].name}-{cases[0].dtype}",
)
def test_all_forms_of_a_model_agree(
    cases: list[Compile], compiled: Compiled, tmp_path: Path
) -> None:
    (case,) = cases
    with forms_of(*compiled(case), tmp_path) as sides:
        for one, other in combinations(FORMS, 2):
            found = compare(sides[one], sides[other], PROMPTS, num_greedy=GREEDY)
            limit = limit_of(one, other, dtype=case.dtype)
            assert found.measures.relative_error <= limit, (one, other)
            # Where nothing is rounded to 16 bits, only a tie could be broken otherwise.
            assert limit != LIMITS["float32"] or found.difference is None, (one, other)


@pytest.mark.thorough
def test_another_model_is_told_apart(compiled: Compiled, tmp_path: Path) -> None:
    """Negative control: a model that differs in one option meets no tolerance."""
    _, artifact = compiled(Compile("mistral", "float32", LONGEST))
    other, _ = compiled(Compile("mistral_full", "float32", LONGEST))
    with forms_of(other, artifact, tmp_path) as sides:
        found = {
            form: compare(sides["artifact"], sides[form], PROMPTS).measures.relative_error
            for form in FORMS
        }
    assert found.pop("artifact") == 0
    assert min(found.values()) > LIMITS["bfloat16"]
