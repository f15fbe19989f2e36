"""What keeps a module from being exported is named, with its place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from ingot.compiler.export import export
from ingot.compiler.export_fault import fault_of
from ingot.errors import ExportError

TABLE_ROWS = 100


class Part(nn.Module):
    """What every module here has; one that takes any number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(TABLE_ROWS, 4))

    def forward(self, ids: Tensor) -> Tensor:
        return self.table[ids]


class Loop(Part):
    def forward(self, ids: Tensor) -> Tensor:
        total = self.table[ids[:, 0]]
        for at in range(1, ids.shape[1]):
            total = total + self.table[ids[:, at]]
        return super().forward(ids) + total[:, None]


class Cut(Part):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + self.table[: ids.shape[1]]


class Even(Part):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).view(1, -1, 2, 4).flatten(1, 2)


class Values(Part):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids * 2 if ids.sum() > 0 else ids)


class Broken(Part):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + {}["no such key"]


class Whole(nn.Module):
    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part = part

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        return self.part(input_ids)


def module_with(part: type[Part]) -> nn.Module:
    with torch.device("meta"):
        return Whole(part()).eval()


@pytest.mark.parametrize(
    "part, words",
    [
        (Loop, "the code of part depends on the number of tokens: for at in range(1, "),
        (Cut, f"aten.slice.Tensor at part, as it is traced, takes at most {TABLE_ROWS} tokens"),
        (Even, "aten.view at part, as it is traced, fixes the number of tokens"),
        (Values, "the code of part depends on values of tensors: return super().forward(ids * 2 "),
        (Broken, "KeyError: 'no such key', at part: return super().forward(ids) + {}"),
    ],
)
def test_the_error_names_what_and_where(part, words):
    with pytest.raises(ExportError) as caught:
        export(module_with(part), SimpleNamespace(architecture="My"))
    assert caught.value.found.startswith(f"My cannot be exported: {words}")
    assert "\n" not in caught.value.found and "TORCH_LOGS" not in str(caught.value)


def test_a_module_for_every_number_of_tokens_has_no_fault():
    assert fault_of(module_with(Part), 8) == ""
