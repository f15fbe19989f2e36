"""Layout of weights in an ONNX file, and the operators that compute with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

Make = Callable[[], Tensor]


class Weight(nn.Module):
    """A weight of the model: parameters on the meta device, each with the function that makes it.

    `makes` has those functions by the parameters' names; `wide` says that products with it are in
    float32 whatever others are in.
    """

    wide = False

    def __init__(self) -> None:
        super().__init__()
        self.makes: dict[str, Make] = {}

    def add(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, make: Make) -> None:
        """Declares a parameter of that shape and dtype."""
        empty = torch.empty(shape, dtype=dtype)
        self.register_parameter(name, nn.Parameter(empty, requires_grad=False))
        self.makes[name] = make

    def numbers(self) -> Tensor:
        """All of it as float32."""
        raise NotImplementedError

    def product(self, x: Tensor) -> Tensor:
        """x [..., I] times this matrix [O, I] -> [..., O] in the dtype of x."""
        raise NotImplementedError

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of this matrix [O, I]: ids [...] -> [..., I], float32."""
        raise NotImplementedError


class Vector(Weight):
    """A vector or a constant, in float32."""

    value: Tensor

    def __init__(self, shape: tuple[int, ...], make: Make) -> None:
        super().__init__()
        self.add("value", shape, torch.float32, lambda: make().float())

    def numbers(self) -> Tensor:
        return self.value


class OnnxMatrix(Weight):
    """Numbers in a dtype, [O, I], or turned to [I, O] where nothing looks rows up."""

    value: Tensor

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, make: Make, *, turned: bool
    ) -> None:
        super().__init__()
        self.turned = turned
        stored = shape[::-1] if turned else shape

        def read() -> Tensor:
            matrix = make()
            return torch.empty(stored, dtype=dtype).copy_(matrix.t() if turned else matrix)

        self.add("value", stored, dtype, read)

    def numbers(self) -> Tensor:
        return (self.value.t() if self.turned else self.value).float()

    def product(self, x: Tensor) -> Tensor:
        matrix = self.value.to(x.dtype)
        return torch.matmul(x, matrix if self.turned else matrix.t())

    def rows(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.value).float()


class Weights(nn.Module):
    """The weights of a model by its own names."""

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        super().__init__()
        self.entries = nn.ModuleDict({_key(name): weight for name, weight in weights.items()})

    def get(self, name: str) -> Weight:
        return self.entries[_key(name)]  # type: ignore[return-value]

    def makes(self) -> dict[str, tuple[str, Make]]:
        """For every parameter, by its name in this module, its name in the file and its maker."""
        found = {}
        for key, weight in self.entries.items():
            for name, make in weight.makes.items():  # type: ignore[operator, union-attr]
                own = key.replace("/", ".")
                called = own if name == "value" else f"{own}.{name}"
                found[f"entries.{key}.{name}"] = (called, make)
        return found


def _key(name: str) -> str:
    return name.replace(".", "/")  # no part of a module's path has a dot
