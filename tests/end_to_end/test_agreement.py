"""All forms of a model agree in pairs: artifact, ONNX, plain module, and `transformers`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path

import pytest

from ingot.compare.compare import compare
from ingot.compare.prompts import Prompt
from ingot.compare.sides import Side, open_side
from ingot.errors import ExportError
from ingot.models import registry
from ingot.onnx import export_onnx
from ingot.onnx.output import CACHED, PLAIN
from tests.end_to_end.support import LIMITS, Compile, Compiled, random_tokens
from tests.support import dense_models as dense
from tests.support.core import core
from tests.support.tiny_models import CASES, architecture_of, save_random

# How `ingot compare` calls each form of a model: by its directory, its artifact, an empty folder.
# Whatever is added here is held against all others, for every family that has it.
FORMS: dict[str, Callable[[Path, Path, Path], str]] = {
    "artifact": lambda model_dir, artifact, empty: str(artifact),
    "module": lambda model_dir, artifact, empty: str(model_dir),
    "transformers": lambda model_dir, artifact, empty: f"hf:{model_dir}",
    "onnx": lambda model_dir, artifact, empty: str(exported(model_dir, empty) / CACHED),
    "plain onnx": lambda model_dir, artifact, empty: str(exported(model_dir, empty) / PLAIN),
}
LONGEST, GREEDY = 312, 8
# One token, beyond a page, and beyond every window.
PROMPTS = [Prompt(f"{n} tokens", tuple(random_tokens(n))) for n in (1, 17, 300)]
# Families with experts have no form in ONNX.
EXPERTS = (
    *("mixtral", "qwen2moe", "qwen3moe", "olmoe", "granitemoe", "gptoss", "glm4moe", "minimax"),
    *("ernie4moe", "hunyuanmoe", "deepseek_v2_experts", "deepseek_v3_experts"),
)
USUAL = (
    *sorted({name.split("_")[0] for name in CASES}),
    *dense.USUAL,
    *("deepseek_v2", "deepseek_v3"),  # latent attention alone
    *EXPERTS,
)
# One of each: layers of one kind, learned positions, parts side by side, latent attention, experts,
# and norms on both sides with soft caps.
SPREAD = [
    *(("llama", "float32"), ("gpt2", "float32"), ("cohere_qk_norm", "float32")),
    *(("deepseek_v3", "float32"), ("mixtral", "float32"), ("gemma2", "bfloat16")),
]


def compiles(name: str, dtype: str) -> list[Compile]:
    return [Compile(name, dtype, LONGEST)]


def forms(name: str) -> list[str]:
    """Those that a case has."""
    return [form for form in FORMS if name not in EXPERTS or "onnx" not in form]


def exported(model_dir: Path, out: Path) -> Path:
    """The model as ONNX, exported once."""
    folder = out / "onnx"
    if not folder.exists():
        export_onnx(model_dir, folder, max_model_len=LONGEST)
    return folder


@contextmanager
def opened(
    names: Sequence[str], model_dir: Path, artifact: Path, empty: Path
) -> Iterator[dict[str, Side]]:
    """A side for each form of those names, until the end of the block."""
    with ExitStack() as stack:
        sides = {}
        for form in names:
            name = FORMS[form](model_dir, artifact, empty)
            sides[form] = open_side(name, max_model_len=LONGEST)
            stack.callback(sides[form].close)
        yield sides


def limit_of(*forms: str, dtype: str) -> float:
    """The tolerance of docs/design.md: only artifacts compute in their dtype."""
    return LIMITS[dtype if "artifact" in forms else "float32"]


def test_every_family_has_a_case() -> None:
    found = [registry.find_family({"architectures": [architecture_of(name)]}) for name in USUAL]
    assert {family.name for family in found} == set(registry.families())


@pytest.mark.parametrize(
    "cases",
    core(
        further=[compiles(*case) for case in SPREAD],
        slow=[compiles(name, dtype) for name in USUAL for dtype in LIMITS],
    ),
    ids=lambda cases: f"{cases[0].name}-{cases[0].dtype}",
)
def test_all_forms_of_a_model_agree(
    cases: list[Compile], compiled: Compiled, tmp_path: Path
) -> None:
    (case,) = cases
    names = forms(case.name)
    with opened(names, *compiled(case), tmp_path) as sides:
        for one, other in combinations(names, 2):
            found = compare(sides[one], sides[other], PROMPTS, num_greedy=GREEDY)
            limit = limit_of(one, other, dtype=case.dtype)
            assert found.measures.relative_error <= limit, (one, other)
            # Where nothing is rounded to 16 bits, only a tie could be broken otherwise.
            assert limit != LIMITS["float32"] or found.difference is None, (one, other)


@pytest.mark.parametrize("name", core("mixtral", further=EXPERTS))
def test_experts_have_no_form_in_onnx_and_the_error_names_the_op(name: str, tmp_path: Path) -> None:
    save_random(name, tmp_path / "model", tokenizer=True)
    with pytest.raises(ExportError) as caught:
        export_onnx(tmp_path / "model", tmp_path / "onnx", max_model_len=64)
    op = "ingot.experts.default, which ONNX has no operator for"
    assert caught.value.found == f"{architecture_of(name)} calls {op}"
    assert caught.value.exit_code == 2 and "ingot compile" in caught.value.hint
    assert not (tmp_path / "onnx").exists()


@pytest.mark.thorough
def test_another_model_is_told_apart(compiled: Compiled, tmp_path: Path) -> None:
    """Negative control: a model that differs in one option meets no tolerance."""
    _, artifact = compiled(Compile("mistral", "float32", LONGEST))
    other, _ = compiled(Compile("mistral_full", "float32", LONGEST))
    with opened(list(FORMS), other, artifact, tmp_path) as sides:
        found = {
            form: compare(sides["artifact"], side, PROMPTS).measures.relative_error
            for form, side in sides.items()
        }
    assert found.pop("artifact") == 0
    assert min(found.values()) > LIMITS["bfloat16"]
