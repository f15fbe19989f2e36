"""Experts, as a config holds them: how a router picks some for a token, and what each computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ingot.errors import ContradictionError
from ingot.models.mlp_config import MlpConfig, MlpKind

Scoring = Literal["softmax", "sigmoid"]
# What a group is worth: its best expert, or its two best together.
GroupScore = Literal["max", "top2"]
# An activation, or that of gpt-oss, whose values are clamped; see the op `expert_gate`.
ExpertGate = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """A mixture of experts: a router gives each token to some of them, and their results are added.

    Attributes:
        experts: how many there are; picks: how many of them compute a token.
        size: inner size of an expert.
        gate: what an expert does between its products; limit: of a clamped one.
        kind: an expert is a gated or a plain MLP.
        latent: width of the rows that experts compute, between two products for all of them; 0:
            they compute those of the input. latent_bias: of these two products.
        bias: both products of every expert have biases.
        scoring: how logits become scores, from which the shares of the picked experts are made.
        correction_bias: a learned bias is added to the scores that experts are picked by.
        groups: of neighbouring experts; only the best `kept_groups` are picked from.
        group_score: what groups are compared by.
        normalise: shares are divided by their sum plus `eps`. Those of a softmax are then what a
            softmax over the logits of the picked experts gives.
        scale: what shares are multiplied by in the end.
        router_bias: logits have a bias.
        shared: an MLP that computes every token beside the experts.
        shared_gate: its result is multiplied with the sigmoid of a logit of its own.
    """

    experts: int
    picks: int
    size: int
    gate: ExpertGate
    limit: float = 0.0
    kind: MlpKind = "gated"
    latent: int = 0
    latent_bias: bool = False
    bias: bool = False
    scoring: Scoring = "softmax"
    correction_bias: bool = False
    groups: int = 1
    kept_groups: int = 1
    group_score: GroupScore = "max"
    normalise: bool = True
    eps: float = 0.0
    scale: float = 1.0
    router_bias: bool = False
    shared: MlpConfig | None = None
    shared_gate: bool = False

    def check(self) -> None:
        """Raises ContradictionError for groups that do not divide the experts, and for more picks
        than there are experts to pick from."""
        if self.experts % self.groups or self.kept_groups > self.groups:
            raise ContradictionError(
                f"{self.kept_groups} of {self.groups} equal groups cannot be taken of "
                f"{self.experts} experts",
                hint="correct the number of experts or those of groups in config.json",
            )
        in_group = self.experts // self.groups
        if self.picks > self.kept_groups * in_group:
            raise ContradictionError(
                f"{self.picks} experts cannot be picked of {self.kept_groups * in_group}",
                hint="correct the number of experts, of those a token is given to, or of groups "
                "in config.json",
            )
        if self.group_score == "top2" and self.groups > 1 and in_group < 2:
            raise ContradictionError(
                f"groups of one expert have no two best ones, by which {self.groups} groups are "
                "compared",
                hint="correct the number of experts or that of groups in config.json",
            )

    @property
    def records(self) -> tuple[tuple[int, int], ...]:
        """What is kept of a sequence as a whole; nothing."""
        return ()

    @property
    def temporary_width(self) -> int:
        """About how many values it makes of a token."""
        shared = self.shared.temporary_width if self.shared else 0
        return 2 * self.experts + self.picks * self.size + 2 * self.latent + shared

    @property
    def described(self) -> str:
        """Description in a few words."""
        shared = f", one of {self.shared.size} for all tokens" if self.shared else ""
        latent = f" on rows of {self.latent}" if self.latent else ""
        return f"{self.picks} of {self.experts} experts of {self.size}{latent} a token{shared}"

    @property
    def biased(self) -> tuple[str, ...]:
        """Its linears that have a bias."""
        named = {
            "experts": self.bias,
            "products around experts": self.latent_bias,
            "router": self.router_bias,
        }
        shared = self.shared.biased if self.shared else ()
        return (*(name for name, has_bias in named.items() if has_bias), *shared)
