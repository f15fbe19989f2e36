"""What the references mean, by hand: they are what kernels are held against."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers.models.gpt_oss import modeling_gpt_oss

from ingot.ops import OPS, linear
from ingot.ops.scaled import Scaled, round_to_int8
from ingot.ops.steps import step_inputs
from tests.ops.sample_inputs import SAMPLES


def call(name: str, *args: object, **kwargs: object) -> Tensor:
    return OPS[name].reference(*args, **kwargs)


def close(got: Tensor, expected: Tensor) -> bool:
    return torch.allclose(got, expected, rtol=1e-5, atol=1e-6)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("eps", [0.1, 1e-6])
@pytest.mark.parametrize("size", [1.0, 1e-4, 0.0])
def test_an_rms_norm_adds_epsilon_to_the_mean_square(eps, size):
    x, weight = size * normal(1, 2, 6), normal(6, seed=1)
    for offset in (0.0, 1.0, -0.25):
        rows = [
            [v / math.sqrt(sum(u * u for u in row) / 6 + eps) for v in row] for row in x[0].tolist()
        ]
        expected = torch.tensor([rows]) * (weight + offset)
        assert close(call("rms_norm", x, weight, eps, offset), expected)


@pytest.mark.parametrize("eps", [0.1, 1e-6])
def test_a_layer_norm_adds_epsilon_to_the_variance(eps):
    x, weight, bias = 0.2 * normal(1, 3, 6) + 5, normal(6, seed=1), normal(6, seed=2)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight
    assert torch.allclose(call("layer_norm", x, weight, bias, eps), expected + bias, atol=1e-4)
    assert torch.allclose(call("layer_norm", x, weight, None, eps), expected, atol=1e-4)


def test_a_rotation_turns_halves_or_neighbours_and_leaves_the_rest():
    positions, frequencies = torch.tensor([[0, 3]]), torch.tensor([0.5, 0.1])
    table = call("rope_table", positions, frequencies, 2.0)
    angles = torch.tensor([1.5, 0.3])
    assert close(table[0, 1], 2.0 * torch.cat((angles.cos(), angles.sin())))
    plain = call("rope_table", positions, frequencies)
    x = normal(1, 2, 1, 6)
    for interleaved, pairs in ((False, ((0, 2), (1, 3))), (True, ((0, 1), (2, 3)))):
        turned = call("rope", x, plain, interleaved)
        assert close(turned[0, 0], x[0, 0])  # position 0
        a = x[0, 1, 0].tolist()
        for (i, j), angle in zip(pairs, (1.5, 0.3), strict=True):
            assert float(turned[0, 1, 0, i]) == pytest.approx(
                a[i] * math.cos(angle) - a[j] * math.sin(angle), abs=1e-5
            )
            assert float(turned[0, 1, 0, j]) == pytest.approx(
                a[j] * math.cos(angle) + a[i] * math.sin(angle), abs=1e-5
            )
        assert close(turned[..., 4:], x[..., 4:])


def attended(
    q: Tensor, k: Tensor, v: Tensor, window: int = 0, softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention in loops and in float64: [1, N, H, D]."""
    out = torch.zeros_like(q)
    group = q.shape[2] // k.shape[2]
    q, k, v = q.double(), k.double(), v.double()
    for i in range(q.shape[1]):
        for h in range(q.shape[2]):
            seen = [j for j in range(i + 1) if not window or i - j < window]
            scores = torch.stack([q[0, i, h] @ k[0, j, h // group] * 0.3 for j in seen])
            if softcap:
                scores = softcap * (scores / softcap).tanh()
            weights = scores.exp()
            total = weights.sum() + (0 if sinks is None else sinks[h].double().exp())
            rows = torch.stack([v[0, j, h // group] for j in seen])
            out[0, i, h] = weights / total @ rows
    return out


SINKS = torch.tensor([-3.0, 0.5, 0.0, 4.0])  # of four heads


@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (1, 0.0), (3, 0.0), (0, 0.5), (4, 2.0)])
@pytest.mark.parametrize("sinks", [None, SINKS], ids=["plain", "sinks"])
def test_attention_sees_what_its_window_holds(window, softcap, sinks):
    q, k, v = normal(1, 7, 4, 8), normal(1, 7, 2, 8, seed=1), normal(1, 7, 2, 8, seed=2)
    got = call("attention", q, k, v, 0.3, window, softcap, sinks)
    assert close(got, attended(q, k, v, window, softcap, sinks))


@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (1, 0.0), (3, 0.0), (4, 2.0)])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("sinks", [None, SINKS], ids=["plain", "sinks"])
def test_attention_over_pages_is_attention_over_sequences(window, softcap, scaled, sinks):
    """Two sequences; of the second, some tokens were written before."""
    lengths, contexts, pages = (5, 3), (0, 4), [[2, 0], [4, 1]]
    inputs = step_inputs([[0] * n for n in lengths], contexts, pages, 4)
    k, v = normal(1, 12, 2, 8, seed=1), normal(1, 12, 2, 8, seed=2)
    q = normal(1, 12, 4, 8)
    if scaled:  # numbers that int8 holds
        k, v = (round_to_int8(x, 8).dequantize() for x in (k, v))
    caches = [torch.full((5, 2, 4, 8), torch.nan) for _ in range(2)]
    if scaled:
        caches = [
            Scaled(torch.zeros(5, 2, 4, 8).char(), None, torch.full((5, 2, 4, 1), torch.nan))
            for _ in range(2)
        ]
    before = step_inputs([[0] * 4], [0], pages[1:], 4)["slots"]
    call("kv_write", k[:, 5:9], v[:, 5:9], *caches, before)
    rows = [0, 1, 2, 3, 4, 9, 10, 11]
    call("kv_write", k[:, rows], v[:, rows], *caches, inputs["slots"])
    tables = [inputs[name] for name in ("spans", "page_table")]
    got = call("paged_attention", q[:, rows], *caches, *tables, 0.3, window, softcap, sinks)
    first = attended(q[:, :5], k[:, :5], v[:, :5], window, softcap, sinks)
    second = attended(q[:, 5:], k[:, 5:], v[:, 5:], window, softcap, sinks)[:, 4:]
    assert torch.allclose(got, torch.cat((first, second), 1), rtol=1e-4, atol=1e-4)


def whole_sequence(k: Tensor, v: Tensor) -> list[Tensor]:
    """Caches, spans and a page table of one sequence with these keys and values in one page."""
    spans, table = torch.tensor([[0, k.shape[1], 0]]), torch.tensor([[0]])
    return [k.transpose(1, 2), v.transpose(1, 2), spans, table]


@pytest.mark.parametrize("window", [0, 3])
def test_sinks_are_those_of_gpt_oss(window):
    """As `transformers` writes its attention; without sinks results are others."""
    q, k, v = normal(1, 7, 4, 8), normal(1, 7, 2, 8, seed=1), normal(1, 7, 2, 8, seed=2)
    i, j = torch.arange(7)[:, None], torch.arange(7)[None]
    hidden = (j > i) | ((j <= i - window) if window else False)
    mask = torch.zeros(1, 1, 7, 7).masked_fill(hidden, -torch.inf)
    module = SimpleNamespace(sinks=SINKS, num_key_value_groups=2, training=False)
    swapped = (x.transpose(1, 2) for x in (q, k, v))
    expected, _ = modeling_gpt_oss.eager_attention_forward(module, *swapped, mask, 0.3)
    pages = whole_sequence(k, v)
    for op, given in (("attention", (q, k, v)), ("paged_attention", (q, *pages))):
        assert close(call(op, *given, 0.3, window, 0.0, SINKS), expected)
        assert not torch.allclose(call(op, *given, 0.3, window), expected, atol=1e-2)


def test_sinks_of_any_size_leave_finite_results():
    """A sink far above the scores takes all of the weight, and one far below takes none."""
    q, k, v = normal(1, 7, 4, 8), normal(1, 7, 2, 8, seed=1), normal(1, 7, 2, 8, seed=2)
    pages = whole_sequence(k, v)
    for op, given in (("attention", (q, k, v)), ("paged_attention", (q, *pages))):
        plain = call(op, *given, 0.3)
        for size in (90.0, 200.0, 1e30, 3e38):
            assert close(call(op, *given, 0.3, 0, 0.0, torch.full((4,), -size)), plain)
            assert close(call(op, *given, 0.3, 0, 0.0, torch.full((4,), size)), 0 * plain)


def test_a_slot_below_zero_is_not_written():
    cache = [torch.full((2, 1, 4, 3), 9.0) for _ in range(2)]
    call("kv_write", normal(1, 2, 1, 3), normal(1, 2, 1, 3), *cache, torch.tensor([-1, 6]))
    for each in cache:
        written = (each != 9.0).any(-1).nonzero().tolist()
        assert written == [[1, 0, 2]]


def test_int8_puts_the_largest_of_a_block_at_127():
    x = torch.tensor([[1.27, -0.635, 0.005, 0.0, 0.0, 0.0, 1e-31, 0.0]])
    got = round_to_int8(x, 4)
    assert got.values.tolist() == [[127, -64, 0, 0, 0, 0, 0, 0]]  # 0.5 goes to the even one
    assert close(got.scales, torch.tensor([[0.01, 0.0]]))
    assert got.block == 4


def test_products_of_integers_are_those_of_their_numbers():
    x, w = round_to_int8(normal(1, 3, 64), 32), round_to_int8(normal(5, 64, seed=1), 32)
    bias = normal(5, seed=2)
    expected = x.dequantize() @ w.dequantize().T
    assert torch.allclose(call("linear", x, w), expected, atol=1e-5)
    assert torch.allclose(call("linear", x, w, bias), expected + bias, atol=1e-5)
    wide = normal(1, 3, 64)
    assert torch.allclose(call("linear", wide, w), wide @ w.dequantize().T, atol=1e-5)


def test_multipliers_belong_to_groups_and_scales_to_blocks():
    values = torch.arange(-4, 4).char()[None]
    form = Scaled(values, torch.tensor([[1, -2, 3, 4]]).char(), torch.tensor([[0.5, 10.0]]))
    expected = [[-2.0, -1.5, 2.0, 1.0, 0.0, 30.0, 80.0, 120.0]]
    assert form.dequantize().tolist() == expected
    assert form[0:1].dequantize().tolist() == expected


def test_the_small_ones():
    x, y = normal(1, 2, 5), normal(1, 2, 5, seed=1)
    silu = x / (1 + (-x).exp())
    assert close(call("activation", x, "silu"), silu)
    assert close(call("gate", x, y, "silu"), silu * y)
    assert close(call("gate", x, y, "relu"), x.clamp(min=0) * y)
    gelu = x * 0.5 * (1 + (x / 2**0.5).erf())
    assert close(call("gate", x, y, "gelu"), gelu * y)
    inner = (2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)
    assert close(call("gate", x, y, "gelu_tanh"), 0.5 * x * (1 + inner.tanh()) * y)
    assert close(call("soft_cap", 9 * x, 2.5), 2.5 * (9 * x / 2.5).tanh())
    assert close(call("mul", x, -3.0), -3.0 * x) and close(call("add", x, y), y + x)
    assert call("cast", x, torch.bfloat16).dtype == torch.bfloat16
    assert torch.equal(call("select_rows", x, torch.tensor([1, 1, 0])), x[:, [1, 1, 0]])
    order = torch.randperm(x.shape[-1])
    moved = call("reorder", x, order.float())
    assert all(torch.equal(moved[..., i], x[..., order[i]]) for i in range(len(order)))


def narrowed(kwargs: dict) -> dict:
    return {k: v.bfloat16() if is_float(v) else v for k, v in kwargs.items() if k != "out_dtype"}


def is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


# have rules of their own
KEEPING = ("cast", "select_rows", "kv_write", "paged_attention", "segment_attention")


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - set(KEEPING)))
def test_narrow_arguments_count_as_the_wide_numbers_that_they_are(name):
    """References widen first and round last, to the dtype that is asked for, or not at all."""
    for kwargs in SAMPLES[name](torch.Generator().manual_seed(2)):
        narrow = narrowed(kwargs)
        wide = {k: v.float() if is_float(v) else v for k, v in narrow.items()}
        got = call(name, **copy.deepcopy(narrow))
        assert got.dtype == torch.float32
        assert torch.equal(got, call(name, **copy.deepcopy(wide)))
        fake = OPS[name].fake(OPS[name].bind(**narrow))
        assert (fake.shape, fake.dtype) == (got.shape, torch.float32)
        if "out_dtype" in OPS[name].signature.parameters:
            rounded = call(name, **copy.deepcopy(narrow), out_dtype=torch.bfloat16)
            assert torch.equal(rounded, got.bfloat16())


def test_a_cast_is_a_copy():
    x = normal(1, 2, 5)
    for dtype in (torch.float32, torch.bfloat16):
        assert call("cast", x, dtype).data_ptr() != x.data_ptr()


def rounded_attention(q: Tensor, k: Tensor, v: Tensor, v_scales: Tensor | None) -> Tensor:
    """q [N, H, D] over k, v [N, H, D], in loops: each weight is rounded as q is."""
    out = torch.zeros(q.shape)
    for i in range(q.shape[0]):
        for h in range(q.shape[1]):
            x = torch.stack([q[i, h].float() @ k[j, h].float() for j in range(i + 1)]) * 0.3
            x = x / math.log(2)
            weights = (2.0**10 * torch.exp2(x - x.max().round())).to(q.dtype).float()
            scaled = weights if v_scales is None else weights * v_scales[: i + 1, h]
            out[i, h] = scaled.to(q.dtype).float() @ v[: i + 1, h].float() / weights.sum()
    return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scaled", [False, True])
def test_attention_over_pages_rounds_its_weights_as_its_queries(scaled, dtype):
    step = step_inputs([[0] * 9], [0], [[1, 2, 0]], 4)
    q, k, v = (3 * normal(1, 9, 2, 16, seed=i).to(dtype) for i in range(3))
    caches = [torch.zeros(3, 2, 4, 16).to(dtype) for _ in range(2)]
    values, scales = v[0], None
    if scaled:
        caches = [round_to_int8(c, 16) for c in caches]
        numbers = round_to_int8(v[0], 16)
        values, scales = numbers.values, numbers.scales[..., 0]
        k = round_to_int8(k, 16).dequantize()
    call("kv_write", k, v, *caches, step["slots"])
    got = call("paged_attention", q, *caches, step["spans"], step["page_table"], 0.3)
    expected = rounded_attention(q[0], k[0], values, scales)
    assert torch.allclose(got[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_are_rounded_to_int8_where_attention_is_told(dtype):
    """Each with a scale of its own, and to nothing else: weights keep the dtype of queries."""
    q, k, v = (normal(1, 9, 2, 16, seed=i).to(dtype) for i in range(3))
    q[0, :, 1] *= 1000  # heads have scales of their own
    pages = whole_sequence(k, v)
    rounded = round_to_int8(q, 16).dequantize()
    got = call("paged_attention", q, *pages, 0.01, rounds_queries=True)
    exact = call("paged_attention", q, *pages, 0.01)
    expected = call("paged_attention", rounded, *pages, 0.01)
    limit = 1e-6 if dtype == torch.float32 else 1e-2
    assert torch.allclose(got, expected, rtol=limit, atol=limit)
    assert not torch.allclose(exact, expected, rtol=1e-4, atol=1e-4)


def test_float32_holds_the_sums_that_are_left_to_it() -> None:
    assert linear.EXACT_IN_FLOAT32 * 127 * 127 <= 2**24
