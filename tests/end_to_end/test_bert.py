"""BERT's layout, from a plain module to a plan, against transformers: norms after each part."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from ingot.compiler.export import export
from ingot.compiler.interpret import interpret, plan_weights
from ingot.compiler.lower import lower
from ingot.compiler.program_graphs import graph_of, last_hidden_state
from ingot.models import registry
from ingot.models.model_dir import ModelDir
from ingot.passes import runner
from tests.compiler.plans import LIMITS, MODEL
from tests.end_to_end.test_encoder import ENCODE, TEXTS, inputs, passes


class Bert(nn.Module):
    """A plain module of the parts of a BertModel; its head only ends the graph."""

    def __init__(self, theirs: transformers.BertModel) -> None:
        super().__init__()
        self.embeddings, self.layers = theirs.embeddings, theirs.encoder.layer
        self.lm_head = nn.Linear(theirs.config.hidden_size, 7, bias=False)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        e = self.embeddings
        x = e.LayerNorm(e.word_embeddings(input_ids) + e.position_embeddings(positions))
        for layer in self.layers:
            x = after(layer, x)
        return self.lm_head(x)


def after(layer: nn.Module, x: Tensor) -> Tensor:
    mine, out = layer.attention.self, layer.attention.output
    split = (*x.shape[:2], mine.num_attention_heads, mine.attention_head_size)
    heads = (p(x).view(split).transpose(1, 2) for p in (mine.query, mine.key, mine.value))
    mixed = scaled_dot_product_attention(*heads, scale=mine.attention_head_size**-0.5)
    x = out.LayerNorm(x + out.dense(mixed.transpose(1, 2).reshape(x.shape)))
    up = gelu(layer.intermediate.dense(x))
    return layer.output.LayerNorm(x + layer.output.dense(up))


def theirs() -> transformers.BertModel:
    config = transformers.BertConfig(
        vocab_size=2048, hidden_size=60, num_hidden_layers=2, num_attention_heads=5,
        intermediate_size=92, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.BertModel(config, add_pooling_layer=False).eval()


def test_the_plan_computes_bert() -> None:
    torch.manual_seed(0)
    judge = theirs()
    for parameter in judge.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    with torch.no_grad():
        wanted = torch.cat([judge(torch.tensor([t])).last_hidden_state[0] for t in TEXTS])
    table = judge.embeddings
    # Texts are of token type 0, whose row is added at every position.
    table.position_embeddings.weight.data += table.token_type_embeddings.weight.data[0]
    with torch.device("meta"):
        plain = Bert(theirs())
    exported = export(plain, registry.load_config(ModelDir.open(MODEL)))
    gm = graph_of(exported, ENCODE, last_hidden_state(exported).name)
    runner.run(gm, passes(torch.float32), None)
    plan = lower(gm, LIMITS)
    tensors = Bert(judge).state_dict()
    got = interpret(plan, plan_weights(tensors.__getitem__), inputs(), {})[-1]["hidden"]
    assert ((got - wanted).norm() / wanted.norm()).item() < 2e-5
