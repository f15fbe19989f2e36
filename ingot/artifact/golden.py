"""Golden outputs as data: what the float32 reference says, and how far a number format may be off.

The same file lies in every artifact and is written by `ingot golden record`. It is JSON with one
line a position, so that a change of it can be read. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import msgspec

from ingot.artifact.decoding import decode_json
from ingot.artifact.manifest import Manifest, ModelInfo, Numerics
from ingot.errors import GoldenError

GOLDEN = "golden/golden.json"  # in an artifact
GOLDEN_FORMAT = 2  # a reader refuses others
INT8_CACHE = "+int8-cache"
LONGEST_NAME = 200
Kind = TypeVar("Kind")


class GoldenModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model that goldens are of. Its name is for people: a folder may be renamed."""

    name: str
    architecture: str
    vocab_size: int
    num_layers: int
    num_parameters: int


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest errors that a number format may show against the reference.

    Attributes:
        noise: the mean |error| of a log-probability that the format's own rounding makes.
        mean: the mean |error| that is allowed, over all positions.
        largest: the largest |error| that is allowed.
        kl: the mean divergence from the reference that is allowed, in nats; see `GoldenDifference`.
    """

    noise: float
    mean: float
    largest: float
    kl: float

    def __add__(self, other: Tolerance) -> Tolerance:
        """Combines two roundings: errors add up at most, and so do roots of divergences."""
        return Tolerance(
            self.noise + other.noise,
            self.mean + other.mean,
            self.largest + other.largest,
            (self.kl**0.5 + other.kl**0.5) ** 2,
        )


class Combines(Protocol):
    """Errors of two roundings, which add up."""

    def __add__(self, other: Self, /) -> Self: ...


Allowed = TypeVar("Allowed", bound=Combines)


class GoldenPosition(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A token of a prompt, and what the reference says after it.

    Attributes:
        token: at this position.
        top: the likeliest next tokens with their log-probabilities, likeliest first; none where
            the position is not scored.
        next: the log-probability of the prompt's next token; None at its end, and where the
            position is not scored.
        margin: by how much the likeliest token is likelier than the second.
        piece: the token as text, for people; "" where the goldens have no text.
    """

    token: int
    top: list[tuple[int, float]] = []
    next: float | None = None
    margin: float = 0.0
    piece: str = ""


class GoldenPrompt(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A sequence of tokens, with what the reference says from some position on.

    Attributes:
        positions: in order. Those that are scored come last.
        text: what the given tokens were encoded from; None where they were given as tokens.
        given: so many tokens were given, and the reference chose the others.
        sampled: whether it drew them; otherwise it took the likeliest.
    """

    positions: list[GoldenPosition]
    given: int
    sampled: bool = False
    text: str | None = None

    @property
    def tokens(self) -> list[int]:
        return [position.token for position in self.positions]

    @property
    def given_tokens(self) -> list[int]:
        return self.tokens[: self.given]

    @property
    def first(self) -> int:
        """The first position that is scored."""
        return next(i for i, position in enumerate(self.positions) if position.top)

    @property
    def scored(self) -> list[GoldenPosition]:
        return self.positions[self.first :]


class Golden(msgspec.Struct, forbid_unknown_fields=True):
    """A file of golden outputs; `tolerances` has the number formats by name, see `format_name`."""

    format: int
    model: GoldenModel
    tolerances: dict[str, Tolerance]
    prompts: list[GoldenPrompt]


def model_of(info: ModelInfo) -> GoldenModel:
    """The facts of a model by which goldens recognise it."""
    return GoldenModel(
        info.name, info.architecture, info.vocab_size, info.num_layers, info.num_parameters
    )


def format_name(numerics: Numerics, *, int8_cache: bool) -> str:
    """The name of the number format of an artifact: `bfloat16`, `int8-g128`, `int4-g32+int8-cache`.

    Of several storages it is the coarsest, which the noise of all others is below.
    """
    labels = numerics.quantization.partition(", ")[0].split(" + ")
    base = numerics.dtype if labels == ["none"] else min(labels, key=_fineness)
    return base + (INT8_CACHE if int8_cache else "")


def _fineness(label: str) -> tuple[int, int]:
    """Fewer bits are coarser, and so are wider groups."""
    kind, group, *_ = label.split("-")
    return int(kind.removeprefix("int")), -(1 << 62 if group == "channel" else int(group[1:]))


def encode_golden(golden: Golden) -> bytes:
    """The file: a line for each number format and position."""
    head = f' "format": {golden.format},\n "model": {_line(golden.model)},\n "tolerances": {{\n'
    rows = (f"  {_line(name)}: {_line(each)}" for name, each in golden.tolerances.items())
    prompts = ",\n".join(map(_prompt, golden.prompts))
    text = f'{{\n{head}{_joined(rows)} }},\n "prompts": [\n{prompts}\n ]\n}}\n'
    return text.encode()


def _prompt(prompt: GoldenPrompt) -> str:
    head = _line(msgspec.structs.replace(prompt, positions=[]))
    positions = _joined(f"   {_line(each)}" for each in prompt.positions)
    # The fields of a struct stand in the order of its declaration.
    rest = head.removeprefix('{"positions": [], ')
    return f'  {{"positions": [\n{positions}   ], {rest}'


def _joined(rows: Iterable[str]) -> str:
    return ",\n".join(rows) + "\n"


def _line(value: Any) -> str:
    """JSON on one line, with a space after each colon and comma, as people write it."""
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def decode_golden(data: bytes, where: str) -> Golden:
    """The content of a file, which messages call `where`.

    Raises:
        GoldenError: it is none, is cut off, is of another version, or contradicts itself.
    """
    golden = decode_format(data, Golden, GOLDEN_FORMAT, where)
    if fault := _fault(golden):
        raise malformed(where, fault)
    return golden


def decode_format(data: bytes, kind: type[Kind], wanted: int, where: str) -> Kind:
    """The content of a file of that format. Raises GoldenError."""
    _check_format(data, wanted, where)
    try:
        return decode_json(data, kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise malformed(where, str(error)) from error


def _check_format(data: bytes, wanted: int, where: str) -> None:
    class Head(msgspec.Struct):
        format: int

    try:
        found = msgspec.json.decode(data, type=Head).format
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise malformed(where, str(error)) from error
    if found != wanted:
        newer = "Update ingot, or record" if found > wanted else "Record"
        raise GoldenError(
            f"{where} has goldens of format {found}, and this ingot reads format {wanted}",
            hint=f"{newer} them again with this version: ingot golden record MODEL_DIR -o FILE",
        )


def malformed(where: str, fault: str) -> GoldenError:
    return GoldenError(
        f"{where} is no file of goldens: {fault}",
        hint="It is damaged or cut off, or something else. Fetch it again, or record it: "
        "ingot golden record MODEL_DIR -o FILE",
    )


def _fault(golden: Golden) -> str:
    """Describes a contradiction; empty if there is none."""
    if not golden.prompts:
        return "it has no prompt"
    if not golden.tolerances:
        return "it has no number format"
    for index, prompt in enumerate(golden.prompts):
        count = len(prompt.positions)
        if not 1 <= prompt.given <= count:
            return f"prompt {index} has {count} tokens, of which {prompt.given} were given"
        if not any(each.top for each in prompt.positions):
            return f"prompt {index} has no position that is scored"
        if not all(each.top for each in prompt.scored):
            return f"prompt {index} has a position without likeliest tokens after one with them"
        if any(each.next is None for each in prompt.scored[:-1]):
            return f"prompt {index} has a position without the log-probability of its next token"
    positions = [each for prompt in golden.prompts for each in prompt.positions]
    tokens = [each.token for each in positions]
    tokens += [token for each in positions for token, _ in each.top]
    if not all(0 <= token < golden.model.vocab_size for token in tokens):
        return f"a token is beyond the vocabulary of {golden.model.vocab_size}"
    return ""


def check_model(found: GoldenModel, manifest: Manifest, where: str) -> None:
    """Raises GoldenError for goldens of another model than an artifact's, whatever its name."""
    own = model_of(manifest.model)
    differ = [
        f"{field} is {getattr(found, field)} there and {getattr(own, field)} here"
        for field in GoldenModel.__struct_fields__
        if field != "name" and getattr(found, field) != getattr(own, field)
    ]
    if differ:
        raise GoldenError(
            f"{where} has goldens of another model, {found.name:.{LONGEST_NAME}}: "
            + "; ".join(differ),
            hint=f"Record goldens of {own.name}: ingot golden record MODEL_DIR -o FILE",
        )


def tolerance_of(tolerances: Mapping[str, Allowed], name: str, where: str) -> Allowed:
    """Looks up the tolerance of a number format. Raises GoldenError if none was recorded."""
    if name in tolerances:
        return tolerances[name]
    base, cached = name.removesuffix(INT8_CACHE), f"bfloat16{INT8_CACHE}"
    if name != base and base in tolerances and cached in tolerances:
        return tolerances[base] + tolerances[cached]
    raise GoldenError(
        f"{where} has no tolerance for {name}, the number format of this artifact",
        hint=f"It has {', '.join(tolerances)}. Record goldens with --formats {name}.",
    )
