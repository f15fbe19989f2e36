"""Attention, masks and experts of `transformers`' modules, as they are called while traced.

Its modules look up by name the function that attends and the one that makes masks. Under `NAME` they
find those of this file. A mask is then no tensor but the window that it stands for, so none is left
in the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import ingot.ops
from ingot.errors import UnsupportedModelError

NAME = "ingot"
# What callers hand over for kernels that batch, train or cache, or that a mask says, too.
IGNORED = frozenset(
    "dropout sliding_window position_ids output_attentions output_hidden_states use_cache "
    "cache_position return_dict cu_seq_lens_q cu_seq_lens_k max_length_q max_length_k "
    "deterministic head_mask layer_head_mask num_items_in_batch".split()
)
FAR = 1 << 17  # a window that is as long as this would pass for none


def register() -> None:
    """Enters the functions of this file into the tables of `transformers`."""
    from transformers import AttentionInterface
    from transformers.integrations.moe import ExpertsInterface
    from transformers.masking_utils import AttentionMaskInterface

    assert ingot.ops.OPS, "the ops must be known to PyTorch"
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask_of)
    ExpertsInterface.register(NAME, refuse_experts)


@dataclass(frozen=True, eq=False)
class CausalMask:
    """What a query sees: itself and what is before it, at most `window` tokens; 0 is all.

    Code that computes attention by itself adds masks to scores. There it becomes the tensor.
    """

    window: int
    num_tokens: Any
    device: torch.device

    @property
    def tensor(self) -> Tensor:
        """[1, 1, T, T] float32: 0 where a key is seen, the least number elsewhere."""
        at = torch.arange(self.num_tokens, device=self.device)
        query, key = at[:, None], at[None, :]
        seen = key <= query
        if self.window:
            seen = seen & (key > query - self.window)
        hidden = torch.finfo(torch.float32).min
        return torch.where(seen, 0.0, hidden)[None, None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)

    def __getitem__(self, index: Any) -> Tensor:
        return self.tensor[index]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map(
            lambda each: each.tensor if isinstance(each, cls) else each, (args, kwargs or {})
        )
        return func(*args, **kwargs)


def mask_of(
    *, q_length: Any, mask_function: Callable[..., Tensor], device: torch.device, **_: Any
) -> CausalMask:
    """The mask that a function of (batch, head, query, key) says."""
    with ThreadPoolExecutor(1) as another:  # which traces nothing, so that tensors have values
        window = another.submit(window_of, mask_function).result()
    return CausalMask(window, q_length, device)


def window_of(mask_function: Callable[..., Tensor]) -> int:
    """How many tokens a query sees, 0 for all before it.

    Raises UnsupportedModelError for a mask that is anything else.
    """
    keys, first = torch.arange(FAR), torch.tensor(0)
    seen: dict[int, Tensor] = {}
    try:
        for query in (0, 1, 2, 3, 1000, FAR // 2, FAR - 2):
            rows = mask_function(first, first, torch.tensor(query), keys)
            seen[query] = rows.expand(FAR)
    except RuntimeError:  # it reads a tensor of the model
        seen = {}
    count = int(seen[FAR - 2].sum()) if seen else 0
    window = 0 if count == FAR - 1 else count
    if not seen or not all(
        torch.equal(row, (keys <= query) & ((keys > query - window) if window else (keys >= 0)))
        for query, row in seen.items()
    ):
        raise UnsupportedModelError(
            "the model's mask is neither causal nor a window over the tokens before a query",
            hint="no op stands for attention with another mask",
        )
    return window


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: CausalMask | Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """q [1, Hq, N, D], k and v [1, Hk, N, D] -> [1, N, Hq, D].

    Raises Refused for what the op cannot say.
    """
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    strange = [n for n, x in others.items() if not (n in IGNORED or x is None or x is False)]
    if strange:
        refuse(module, f"attention with {', '.join(sorted(strange))}")
    if isinstance(attention_mask, Tensor) or (attention_mask is None and not causal):
        refuse(module, "attention that is not causal")
    if query.shape[-1] != value.shape[-1]:
        refuse(
            module, f"attention with keys of {query.shape[-1]} and values of {value.shape[-1]}"
        )
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    attended = torch.ops.ingot.attention(
        q,
        k,
        v,
        float(query.shape[-1] ** -0.5 if scaling is None else scaling),
        attention_mask.window if isinstance(attention_mask, CausalMask) else 0,
        float(softcap or 0.0),
        s_aux,
    )
    return attended, None


def refuse_experts(module: nn.Module, *_: Any, **__: Any) -> NoReturn:
    """Experts, which no op stands for."""
    refuse(module, "experts")


class Refused(Exception):
    """Something that no op stands for: what, and the module that computes it."""

    def __init__(self, module: nn.Module, what: str) -> None:
        super().__init__(what)
        self.module, self.what = module, what


def refuse(module: nn.Module, what: str) -> NoReturn:
    raise Refused(module, what)
