"""The float32 reference and the goldens made from it, against `transformers`."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ingot.artifact.formats import Storage
from ingot.artifact.golden import Golden, GoldenModel
from ingot.compiler import reference
from ingot.compiler.export import export
from ingot.compiler.golden import TOP, ReferencePrompt, golden_outputs, golden_prompts
from ingot.compiler.quantization.search import quantize_rows
from ingot.compiler.reference import ReadParameter, reference_logits
from ingot.errors import CompileError
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.model_dir import ModelDir
from ingot.ops.scaled import Scaled

MODEL = Path(__file__).parents[2] / "golden" / "models" / "shakespeare"
PROMPTS = [[1, 2, 3], [7], [(i * 37) % 2048 for i in range(40)]]
FIRST = [1, 0, 30]


OF = GoldenModel("m", "A", 2048, 6, 1)


def outputs(graph: torch.fx.GraphModule, read: ReadParameter, prompts: list[list[int]]) -> Golden:
    """The goldens of prompts that were given, and no number format."""
    return golden_outputs(graph, read, [ReferencePrompt(p, given=len(p)) for p in prompts], OF, {})


@pytest.fixture(scope="module")
def graph() -> torch.fx.GraphModule:
    config = registry.load_config(ModelDir.open(MODEL))
    return export(registry.build(config, max_model_len=1024), config)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    config = registry.load_config(ModelDir.open(MODEL))
    return Checkpoint.open(ModelDir.open(MODEL), config, registry.build(config, max_model_len=1024))


@pytest.fixture(scope="module")
def judged() -> list[torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(
        MODEL, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        return [model(torch.tensor([tokens])).logits[0] for tokens in PROMPTS]


@pytest.mark.parametrize("rows_at_once", [100, reference.ROWS_AT_ONCE])
def test_reference_equals_transformers(
    graph: torch.fx.GraphModule,
    checkpoint: Checkpoint,
    judged: list[torch.Tensor],
    rows_at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference, "ROWS_AT_ONCE", rows_at_once)
    got = reference_logits(graph, checkpoint.read, PROMPTS)
    for ours, theirs in zip(got, judged, strict=True):
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


def test_integers_compute_what_their_numbers_do(
    graph: torch.fx.GraphModule, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They become numbers some rows at a time; the last rows are fewer."""
    monkeypatch.setattr(reference, "ROWS_AT_ONCE", 100)
    form = Storage(4, 32).of(32)

    def stored(name: str) -> Scaled | torch.Tensor:
        value = checkpoint.read(name)
        is_matrix = value.ndim == 2 and value.shape[1] % 32 == 0
        return quantize_rows(value, form) if is_matrix else value

    def numbers(name: str) -> torch.Tensor:
        value = stored(name)
        return value.dequantize() if isinstance(value, Scaled) else value

    got, expected = (reference_logits(graph, read, PROMPTS) for read in (stored, numbers))
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


def test_a_wrong_weight_shows(
    graph: torch.fx.GraphModule, checkpoint: Checkpoint, judged: list[torch.Tensor]
) -> None:
    def read(name: str) -> torch.Tensor:
        tensor = checkpoint.read(name)
        return tensor * 1.01 if name == "model.layers.2.mlp.up_proj.weight" else tensor

    got = reference_logits(graph, read, PROMPTS[2:])
    assert (got[0] - judged[2]).norm() > 1e-4 * judged[2].norm()


def test_goldens_are_the_judges_log_probabilities(
    graph: torch.fx.GraphModule, checkpoint: Checkpoint, judged: list[torch.Tensor]
) -> None:
    golden = outputs(graph, checkpoint.read, PROMPTS)
    for prompt, tokens, logits in zip(golden.prompts, PROMPTS, judged, strict=True):
        assert prompt.tokens == tokens
        logprobs = torch.log_softmax(logits.double(), -1)
        assert prompt.first == min(1, len(tokens) - 1)
        for i, position in enumerate(prompt.scored, prompt.first):
            ids, values = zip(*position.top, strict=True)
            assert len(ids) == TOP
            assert list(ids[:1]) == logprobs[i].topk(1).indices.tolist()
            torch.testing.assert_close(
                torch.tensor(values, dtype=torch.float64),
                logprobs[i, list(ids)],
                atol=2e-5,
                rtol=0,
            )
            if i + 1 < len(tokens):
                following = float(logprobs[i, tokens[i + 1]])
                assert math.isclose(position.next, following, abs_tol=2e-5)
            else:
                assert position.next is None
            assert math.isclose(position.margin, values[0] - values[1], abs_tol=2e-6)


def test_log_probabilities_have_six_digits_and_the_likeliest_come_first(graph, checkpoint) -> None:
    golden = outputs(graph, checkpoint.read, PROMPTS[:1])
    for position in golden.prompts[0].scored:
        found = [logprob for _, logprob in position.top]
        assert found == sorted(found, reverse=True) == [round(value, 6) for value in found]
        assert any(value != round(value, 5) for value in found)


def test_outputs_that_are_not_finite_are_refused(
    graph: torch.fx.GraphModule, checkpoint: Checkpoint
) -> None:
    def read(name: str) -> torch.Tensor:
        tensor = checkpoint.read(name).float()
        return torch.full_like(tensor, 3.4e38) if name == "model.norm.weight" else tensor

    with pytest.raises(CompileError, match="outputs of the float32 reference are not finite"):
        outputs(graph, read, PROMPTS[:1])


def test_prompts_cross_every_boundary() -> None:
    text = range(100, 150)
    prompts = golden_prompts(text, page_size=16, max_model_len=4096, windows=(0, 64, 32))
    assert [len(prompt.tokens) for prompt in prompts] == [2, 5, 16, 35, 81]  # beyond the window
    assert prompts[4].tokens[:3] == [100, 101, 102]
    assert prompts[4].tokens[50] == 100  # the text starts over
    assert [prompt.scored_from for prompt in prompts] == [1, 1, 1, 1, 48]  # around its border


def test_every_prompt_begins_as_the_tokenizer_begins_texts() -> None:
    text = range(100, 150)
    prompts = golden_prompts(text, [7, 8], page_size=16, max_model_len=4096, windows=(64,))
    assert all(prompt.tokens[:3] in ([7, 8], [7, 8, 100]) for prompt in prompts)
    assert [len(prompt.tokens) for prompt in prompts] == [2, 5, 16, 35, 81]


def test_prompts_fit_short_models_and_skip_huge_windows() -> None:
    short = golden_prompts([1, 2], page_size=16, max_model_len=10, windows=(0, 10))
    assert [len(prompt.tokens) for prompt in short] == [2, 5, *[10] * 5]
    single = golden_prompts([1, 2], page_size=16, max_model_len=1, windows=(0,))
    assert {(len(prompt.tokens), prompt.scored_from) for prompt in single} == {(1, 0)}
    huge = golden_prompts([1], page_size=16, max_model_len=9999, windows=(4096,))
    assert max(len(prompt.tokens) for prompt in huge) == 35


@pytest.mark.parametrize(("window", "longest"), [(1023, 1040), (1024, 1041), (1025, 35)])
def test_windows_are_exercised_up_to_a_thousand_tokens(window: int, longest: int) -> None:
    prompts = golden_prompts([1], page_size=16, max_model_len=9999, windows=(0, window))
    assert max(len(prompt.tokens) for prompt in prompts) == longest


def test_only_wanted_logits_are_computed_and_by_parts_they_are_the_same(
    graph: torch.fx.GraphModule, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "TOKENS_AT_ONCE", 300)
    whole = reference_logits(graph, checkpoint.read, PROMPTS)
    wanted = torch.cat([rows[first:] for rows, first in zip(whole, FIRST, strict=True)])
    (once,) = reference.Interpreter(graph, checkpoint.read, PROMPTS, FIRST).run()
    parts = [*reference.Interpreter(graph, checkpoint.read, PROMPTS, FIRST).logits_by_parts()]
    assert [part[0].shape[-1] for part in parts] == [300] * 6 + [248]
    for found in (once, torch.cat([part[0] for part in parts], -1)):
        torch.testing.assert_close(found[0], wanted)


def test_a_graph_runs_by_single_calls_whatever_its_parts_are() -> None:
    """Biases, constants of integers, and tensors that are made on the way; a tiny vocabulary."""

    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(5, 4)
            self.head = torch.nn.Linear(4, 5)
            self.register_buffer("shift", torch.zeros(1, dtype=torch.int64))

        def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            made = torch.ones(1, 1, 4, device=input_ids.device)
            x = self.table(input_ids) + made * (positions + self.shift)[..., None]
            return self.head(x.relu())

    torch.manual_seed(0)
    model = Odd()
    tensors = dict(model.named_parameters()) | {"shift": torch.tensor([3])}
    with torch.device("meta"):
        gm = export(Odd(), registry.load_config(ModelDir.open(MODEL)))
    model.shift.fill_(3)
    prompts = [[1, 4, 0], [2]]
    with torch.inference_mode():
        expected = [model(torch.tensor([p]), torch.arange(len(p))[None])[0] for p in prompts]
        got = reference_logits(gm, lambda name: tensors[name].detach(), prompts)
        golden = outputs(gm, lambda name: tensors[name].detach(), prompts)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert len(golden.prompts[1].positions[0].top) == 5


def test_values_are_let_go_and_narrow_weights_are_widened(graph, checkpoint, judged) -> None:
    def read(name: str) -> torch.Tensor:
        tensor = checkpoint.read(name)
        return tensor.bfloat16() if tensor.dim() == 2 else tensor

    wide = reference_logits(graph, lambda name: read(name).float(), PROMPTS[:1])
    run = reference.Interpreter(graph, read, PROMPTS[:1])
    (got,) = run.run()
    assert torch.equal(got[0], wide[0]) and got.dtype == torch.float32
    (result,) = graph.graph.output_node().all_input_nodes
    kept = [value for node in run.values if node is not result for value in run.values[node]]
    assert result in run.values and not any(isinstance(value, torch.Tensor) for value in kept)


def test_one_of_several_outputs_that_is_not_finite_is_refused(graph, checkpoint) -> None:
    def read(name: str) -> torch.Tensor:
        tensor = checkpoint.read(name).float()
        if name == "model.embed_tokens.weight":
            tensor = tensor.clone()
            tensor[7] = torch.inf
        return tensor

    with pytest.raises(CompileError):
        outputs(graph, read, [[7], [1]])
