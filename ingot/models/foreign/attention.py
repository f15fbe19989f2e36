"""Attention, masks and experts of `transformers`' modules, as they are called while traced.

Its modules look up by name the function that attends and the one that makes masks. Under `NAME`
they find those of this file. A mask is then no tensor but the window that it stands for, so none is
left in the graph.
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

NAME = "ingot"
# What callers hand over for kernels that batch, train or cache, or that a mask says, too.
IGNORED = frozenset(
    "dropout sliding_window position_ids output_attentions output_hidden_states use_cache "
    "cache_position return_dict cu_seq_lens_q cu_seq_lens_k max_length_q max_length_k "
    "deterministic head_mask layer_head_mask num_items_in_batch".split()
)
OTHER_MASK = "attention with a mask that is neither causal nor a window"
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
class Mask:
    """Mask of a query: it sees itself and what is before it, at most `window` tokens, and as many
    behind it where it is not causal; 0 is all.

    None is anything else, which nobody may read. Code that computes attention by itself adds masks
    to scores. There it becomes the tensor.
    """

    window: int | None
    num_tokens: Any
    device: torch.device
    causal: bool = True

    @property
    def tensor(self) -> Tensor:
        """[1, 1, T, T] float32: 0 where a key is seen, the least number elsewhere. [1, 1, 1, 1]
        where all are seen.

        Raises Refused for a mask of another kind.
        """
        if self.window is None:
            raise RefusedCall(None, OTHER_MASK)
        if not self.causal and not self.window:
            return torch.zeros((1, 1, 1, 1), device=self.device)
        at = torch.arange(self.num_tokens, device=self.device)
        query, key = at[:, None], at[None, :]
        seen = is_seen(query, key, self.window, self.causal)
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
) -> Mask:
    """The mask that a function of (batch, head, query, key) says."""
    with ThreadPoolExecutor(1) as another:  # which traces nothing, so that tensors have values
        window, causal = another.submit(window_of, mask_function).result()
    return Mask(window, q_length, device, causal)


def window_of(mask_function: Callable[..., Tensor]) -> tuple[int | None, bool]:
    """Number of tokens that a query sees at most up to itself, 0 for all, and whether it sees none
    behind it; None where it sees anything else than such a mask."""
    keys, first = torch.arange(FAR), torch.tensor(0)
    seen: dict[int, Tensor] = {}
    try:
        for query in (0, 1, 2, 3, 1000, FAR // 2, FAR - 2):
            rows = mask_function(first, first, torch.tensor(query), keys)
            seen[query] = rows.expand(FAR)
        count, causal = int(seen[FAR - 2][:-1].sum()), not bool(seen[FAR - 2][-1])
    except RuntimeError:  # it reads a tensor of the model
        return None, True
    window = 0 if count == FAR - 1 else count
    same = [
        torch.equal(row, is_seen(torch.tensor(query), keys, window, causal))
        for query, row in seen.items()
    ]
    return (window if all(same) else None), causal


def is_seen(query: Tensor, key: Tensor, window: int, causal: bool) -> Tensor:
    """Which keys queries see, by their places."""
    seen = key <= query if causal else key == key
    if window:
        seen = seen & (key > query - window) & (key < query + window)
    return seen


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Mask | Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """q [1, Hq, N, D], k and v [1, Hk, N, D] -> [1, N, Hq, D].

    Raises Refused for what the op cannot say.
    """
    sinks, causal = others.pop("s_aux", None), others.pop("is_causal", None)
    causal = getattr(module, "is_causal", True) if causal is None else causal
    strange = [n for n, x in others.items() if not (n in IGNORED or x is None or x is False)]
    if strange:
        refuse(module, f"attention with {', '.join(sorted(strange))}")
    mask = Mask(0, None, query.device, causal) if attention_mask is None else attention_mask
    if not isinstance(mask, Mask) or mask.window is None:
        refuse(module, OTHER_MASK)
    if query.shape[-1] != value.shape[-1]:
        refuse(module, f"attention with keys of {query.shape[-1]} and values of {value.shape[-1]}")
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    scale = float(query.shape[-1] ** -0.5 if scaling is None else scaling)
    softcap = float(softcap or 0.0)
    attended = torch.ops.ingot.attention(
        q, k, v, scale, mask.window, softcap, sinks, causal=mask.causal
    )
    return attended, None


def refuse_experts(module: nn.Module, *_: Any, **__: Any) -> NoReturn:
    """Experts, which no op stands for."""
    refuse(module, "experts")


class RefusedCall(Exception):
    """Something that no op stands for: what, and the module that computes it, if it is known."""

    def __init__(self, module: nn.Module | None, what: str) -> None:
        super().__init__(what)
        self.module, self.what = module, what


def refuse(module: nn.Module, what: str) -> NoReturn:
    raise RefusedCall(module, what)
