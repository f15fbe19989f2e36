"""All forms of a model agree in pairs: artifact, ONNX, plain module, and `transformers`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest

from ingot.compare.compare import compare
from ingot.compare.prompts import ComparedPrompt
from ingot.compare.sides import Side, open_side
from ingot.errors import ExportError
from ingot.models import registry
from ingot.onnx import export_onnx
from ingot.onnx.output import MODEL, PLAIN
from tests.end_to_end.support import (
    LIMITS,
    QUANTIZED_LIMITS,
    Compile,
    Compiled,
    random_tokens,
)
from tests.support import dense_models as dense
from tests.support.core import core
from tests.support.text_models import KINDS
from tests.support.tiny_models import CASES, STATES, architecture_of, save_random

# How `ingot compare` calls each form of a model: by its directory, its artifact, and its export.
# Whatever is added here is held against all others, for every family that has it.
FORMS: dict[str, Callable[[Path, Path, Callable[[], Path]], str]] = {
    "artifact": lambda model_dir, artifact, onnx: str(artifact),
    "module": lambda model_dir, artifact, onnx: str(model_dir),
    "transformers": lambda model_dir, artifact, onnx: f"hf:{model_dir}",
    "onnx": lambda model_dir, artifact, onnx: str(onnx() / MODEL),
    "plain onnx": lambda model_dir, artifact, onnx: str(onnx() / PLAIN),
}
STORED = ("artifact", "onnx", "plain onnx")  # the forms that have integers if any has
LONGEST, GREEDY = 312, 8
# One token, beyond a page, and beyond every window.
PROMPTS = [ComparedPrompt(f"{n} tokens", tuple(random_tokens(n))) for n in (1, 17, 300)]
# Families with experts have no form in ONNX.
EXPERTS = (
    *("mixtral", "qwen2moe", "qwen3moe", "olmoe", "granitemoe", "gptoss", "glm4moe", "minimax"),
    *("ernie4moe", "hunyuanmoe", "deepseek_v2_experts", "deepseek_v3_experts"),
    "qwen3moe_unnormalised",
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
    *(("llama", "int8"), ("gemma2", "int4")),
]
# Of experts one whose picks weigh little: rounding moves scores that are nearly equal past one
# another, and a token with another pick is far off (see test_picks.py).
IN_INTEGERS = ("llama", "gpt2", "cohere_qk_norm", "deepseek_v3", "qwen3moe_unnormalised", "gemma2")


def compiles(name: str, number_format: str) -> list[Compile]:
    if number_format in LIMITS:
        return [Compile(name, number_format, LONGEST)]
    return [Compile(name, "float32", LONGEST, quantize=number_format)]


def forms(name: str) -> list[str]:
    """Those that a case has."""
    return [form for form in FORMS if name not in EXPERTS or "onnx" not in form]


def exported(case: Compile, model_dir: Path, out: Path) -> Path:
    """The model as ONNX, exported once."""
    if not out.exists():
        group = "" if case.quantize == "none" else case.group_size
        options = {"quantize": case.quantize, "group_size": group}
        export_onnx(model_dir, out, max_model_len=case.max_model_len, **options)
    return out


@contextmanager
def opened(
    names: Sequence[str], case: Compile, made: tuple[Path, Path], empty: Path
) -> Iterator[dict[str, Side]]:
    """A side for each form of those names, until the end of the block."""
    model_dir, artifact = made
    with ExitStack() as stack:
        sides = {}
        for form in names:
            onnx = partial(exported, case, model_dir, empty / "onnx")
            sides[form] = open_side(FORMS[form](model_dir, artifact, onnx), max_model_len=LONGEST)
            stack.callback(sides[form].close)
        yield sides


def limit_of(one: str, other: str, case: Compile) -> float:
    """The tolerance of docs/design.md: only artifacts compute in their dtype, and round what they
    multiply integers with. That alone parts forms that have the same integers."""
    if case.quantize != "none":
        if (one in STORED) != (other in STORED):
            return QUANTIZED_LIMITS[case.quantize]
        if "artifact" in (one, other):
            return QUANTIZED_LIMITS["int8"]
    return LIMITS[case.dtype if "artifact" in (one, other) else "float32"]


def test_every_family_has_a_case() -> None:
    of_texts = [f"{kind.model}Model" for kind in KINDS.values()]
    names = [*map(architecture_of, (*USUAL, *STATES)), *of_texts]
    found = [registry.find_family({"architectures": [name]}) for name in names]
    # `transformers` has no RWKV-7: see test_rwkv.py.
    assert {family.name for family in found} | {"rwkv7"} == set(registry.families())


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize(
    "cases",
    core(
        further=[compiles(*case) for case in SPREAD],
        slow=[
            *(compiles(name, dtype) for name in USUAL for dtype in LIMITS),
            *(compiles(name, integers) for name in IN_INTEGERS for integers in QUANTIZED_LIMITS),
        ],
    ),
    ids=lambda cases: "-".join((cases[0].name, cases[0].dtype, cases[0].quantize)),
)
def test_all_forms_of_a_model_agree(
    cases: list[Compile], compiled: Compiled, tmp_path: Path
) -> None:
    (case,) = cases
    names = forms(case.name)
    with opened(names, case, compiled(case), tmp_path) as sides:
        for one, other in combinations(names, 2):
            found = compare(sides[one], sides[other], PROMPTS, num_greedy=GREEDY)
            limit = limit_of(one, other, case)
            assert found.measures.relative_error <= limit, (one, other)
            # Where nothing is rounded to 16 bits, only a tie could be broken otherwise.
            assert limit != LIMITS["float32"] or found.difference is None, (one, other)


@pytest.mark.cases(thorough=3)
@pytest.mark.parametrize("name", core("mixtral", further=EXPERTS))
def test_experts_have_no_form_in_onnx_and_the_error_names_the_op(name: str, tmp_path: Path) -> None:
    save_random(name, tmp_path / "model", tokenizer=True)
    with pytest.raises(ExportError) as caught:
        export_onnx(tmp_path / "model", tmp_path / "onnx", max_model_len=64)
    op = "ingot.experts.default, which ONNX has no operator for"
    assert caught.value.found == f"{architecture_of(name)} calls {op}"
    assert caught.value.exit_code == 2 and "ingot compile" in caught.value.hint
    assert not (tmp_path / "onnx").exists()


@pytest.mark.slow
def test_another_model_is_told_apart(compiled: Compiled, tmp_path: Path) -> None:
    """Negative control: a model that differs in one option meets no tolerance."""
    case = Compile("mistral_full", "float32", LONGEST)
    _, artifact = compiled(Compile("mistral", "float32", LONGEST))
    other, _ = compiled(case)
    with opened(list(FORMS), case, (other, artifact), tmp_path) as sides:
        found = {
            form: compare(sides["artifact"], side, PROMPTS).measures.relative_error
            for form, side in sides.items()
        }
    assert found.pop("artifact") == 0
    assert min(found.values()) > LIMITS["bfloat16"]
