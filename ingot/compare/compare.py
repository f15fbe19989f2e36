"""Holds one side against another, prompt by prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ingot.compare.forms import OF_VECTORS, Task
from ingot.compare.measure import Measures, Tally
from ingot.compare.pair import Pair
from ingot.compare.prompts import ComparedPrompt, max_len
from ingot.compare.sides import Side
from ingot.compiler.options import Progress, silent
from ingot.errors import IncompatibleHostError, RequestError, UsageError
from ingot.runtime.arrays import Float32
from ingot.runtime.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyDifference:
    """The first token that the two sides would choose differently after the same text.

    `index`: its place among the tokens after the prompt. `chosen`: what each side chooses, and
    `texts` how that reads; empty where there is no tokenizer. `margins`: by how much the logit of
    each side's choice exceeds that of the other's.
    """

    where: str
    index: int
    chosen: tuple[int, int]
    texts: tuple[str, str]
    margins: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResult:
    """The result of one prompt. `num_greedy`: tokens after it that both sides choose alike."""

    where: str
    num_tokens: int
    num_greedy: int
    measures: Measures
    difference: GreedyDifference | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The error of a side against its reference, over all prompts and by prompt.

    `names` and `whats` are those of the sides, and `task` what both do. `same_files`: both are
    artifacts, of the same bytes; where this host cannot run them, there are no prompts.
    """

    names: tuple[str, str]
    whats: tuple[str, str]
    measures: Measures
    prompts: tuple[PromptResult, ...]
    same_files: bool = False
    task: Task = "generate"

    @property
    def worst(self) -> list[PromptResult]:
        """The prompts, those that differ most first: by divergence, and vectors by their error."""
        if self.task in OF_VECTORS:
            return sorted(self.prompts, key=lambda each: -each.measures.relative_error)
        return sorted(self.prompts, key=lambda each: -each.measures.mean_kl)

    @property
    def difference(self) -> GreedyDifference | None:
        """The earliest of the differences of all prompts."""
        found = [prompt.difference for prompt in self.prompts if prompt.difference]
        return min(found, key=lambda each: each.index, default=None)


def compare(
    side: Side,
    reference: Side,
    prompts: Sequence[ComparedPrompt],
    *,
    num_greedy: int = 0,
    progress: Progress = silent,
) -> Comparison:
    """Holds a side against a reference.

    Of whole texts what each becomes is compared. Otherwise a side writes on after each prompt,
    until `num_greedy` tokens can be compared; the one to which that is cheaper. Then both score the
    same text. Up to the first token that differs it is the text of both, so that it does not matter
    who wrote it.

    Raises what the sides raise.
    """
    total, results = Tally(), []
    num_greedy = num_greedy if side.task == "generate" else 0
    for number, prompt in enumerate(prompts):
        progress("compare", prompt.where, number / len(prompts))
        results.append(_prompt_result(side, reference, prompt, num_greedy, total))
    progress("compare", f"{len(prompts)} prompts", 1.0)
    return Comparison(
        names=(side.name, reference.name),
        whats=(side.what, reference.what),
        measures=total.measures(),
        prompts=tuple(results),
        task=side.task,
    )


def compare_pair(
    pair: Pair,
    source: Callable[[Sequence[Side]], list[ComparedPrompt]],
    *,
    num_greedy: int = 0,
    progress: Progress = silent,
) -> Comparison:
    """Opens a pair and compares it on the prompts that `source` makes for the two.

    Artifacts of the same files are identical even where this host cannot run them.

    Raises what opening them raises, and what `source` and the sides raise.
    """
    progress("open", " and ".join(pair.names), None)
    same = pair.same_files()
    try:
        with pair.opened() as sides:
            prompts = source(sides)
            found = compare(*sides, prompts, num_greedy=num_greedy, progress=progress)
    except IncompatibleHostError:
        if not same:
            raise
        whats = ("artifact", "artifact")
        found = Comparison(names=pair.names, whats=whats, measures=Tally().measures(), prompts=())
    return replace(found, same_files=same)


def _prompt_result(
    side: Side, reference: Side, prompt: ComparedPrompt, num_greedy: int, total: Tally
) -> PromptResult:
    text = _continued(side, reference, prompt, num_greedy - 1)
    got, wanted = side.logits(text), reference.logits(text)
    if got.shape != wanted.shape:
        raise UsageError(
            f"{side.name} gives {got.shape[1]} numbers, and {reference.name} {wanted.shape[1]}",
            hint="Only models whose results have one size can be compared.",
        )
    tally = Tally()
    tally.add(got, wanted)
    total.merge(tally)
    alike, chosen = _greedy(got, wanted, text, prompt) if num_greedy else (0, None)
    difference = None
    if chosen:
        row = len(prompt.tokens) - 1 + alike
        rows = got[row], wanted[row]
        difference = _difference((side, reference), rows, chosen, where=prompt.where, index=alike)
    return PromptResult(
        where=prompt.where,
        num_tokens=len(prompt.tokens),
        num_greedy=alike,
        measures=tally.measures(),
        difference=difference,
    )


def _continued(side: Side, reference: Side, prompt: ComparedPrompt, count: int) -> list[int]:
    """The prompt with the tokens after it, which end where the model ends the text."""
    sides = (side, reference)
    if count <= 0:
        return [*prompt.tokens]
    longest = max_len(sides)
    if longest is not None:
        count = min(count, longest - len(prompt.tokens))
    writer = min(sides, key=lambda each: each.token_cost)
    text = [*prompt.tokens]
    for token in writer.greedy(prompt.tokens, max(count, 0)):
        if token in (*side.eos_token_ids, *reference.eos_token_ids):
            break
        text.append(token)
    return text


def _greedy(
    got: Float32, reference: Float32, text: Sequence[int], prompt: ComparedPrompt
) -> tuple[int, tuple[int, int] | None]:
    """Counts tokens after the prompt that both choose alike; and the first that differ, if any."""
    start = len(prompt.tokens) - 1
    for index, (ours, theirs) in enumerate(zip(got[start:], reference[start:], strict=True)):
        chosen = int(ours.argmax()), int(theirs.argmax())
        if chosen[0] != chosen[1]:
            return index, chosen
        # A near tie that whoever wrote the text broke in another way: the rest is not greedy.
        if text[start + 1 + index : start + 2 + index] not in ([], [chosen[0]]):
            return index + 1, None
    return len(text) - start, None


def _difference(
    sides: tuple[Side, Side], rows: tuple[Float32, Float32], chosen: tuple[int, int], **place: Any
) -> GreedyDifference:
    """Compares the tokens that the logits [V] of both sides choose."""
    (ours, theirs), (one, other) = rows, chosen
    tokenizer = sides[0].tokenizer or sides[1].tokenizer
    return GreedyDifference(
        chosen=chosen,
        texts=(_text(tokenizer, one), _text(tokenizer, other)),
        margins=(float(ours[one] - ours[other]), float(theirs[other] - theirs[one])),
        **place,
    )


def _text(tokenizer: Tokenizer | None, token: int) -> str:
    try:
        return tokenizer.decode([token], skip_special_tokens=False) if tokenizer else ""
    except RequestError:  # an id that only the model has
        return ""
