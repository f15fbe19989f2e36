"""Arguments of verbs as data."""

from __future__ import annotations

from argparse import _ActionsContainer
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple

from ingot.cli.numbers import human_int


class Argument:
    """An argument of a verb.

    Args:
        spelling: its names and what stands for its value, such as `-o --output FILE`. An option
            without a value or choices is True where it is given.
        options: others of argparse's `add_argument`.
    """

    def __init__(
        self, spelling: str, help: str, type: Callable[[str], Any] = str, **options: Any
    ) -> None:
        first, *rest = spelling.split()
        self.names = [first, *(word for word in rest if word.startswith("-"))]
        values = rest[len(self.names) - 1 :]
        self.options: dict[str, Any] = {"help": help, **options}
        if values:
            self.options |= {"metavar": values[0], "type": type}
        elif not {"choices", "action"} & options.keys():
            self.options["action"] = "store_true"


class ArgumentGroup(NamedTuple):
    """Arguments that the help shows under a title of their own."""

    title: str
    description: str
    arguments: tuple[Argument, ...]


Arguments = tuple[Argument | ArgumentGroup, ...]

MODEL = Argument(
    "model ARTIFACT|MODEL_DIR|NAME",
    "an artifact; a model directory, a GGUF file, or a model on the hub such as Qwen/Qwen3-0.6B or "
    "OWNER/REPO:Q8_0, is compiled once into a cache",
)
SOURCE = Argument(
    "model MODEL_DIR|NAME",
    "folder with config.json, *.safetensors and tokenizer.json; a GGUF file; or a model on the hub "
    "such as Qwen/Qwen3-0.6B or OWNER/REPO:Q8_0, where Q8_0 tells which of its GGUF files",
)
DEVICE = Argument(
    "--device NAME",
    "cpu, cuda or cuda:1; a model directory is compiled for it (default: a GPU that the artifact "
    "has a target for, or else the CPU)",
    default="auto",
)
SPECULATIVE = Argument(
    "--speculative METHOD",
    "ngram: guess tokens by what followed the last ones before, where that pays (default: off)",
    choices=("ngram",),
)
NUM_SPECULATIVE_TOKENS = Argument(
    "--num-speculative-tokens N", "the most tokens of a guess (default: 5)", human_int
)
REVISION = Argument("--revision REV", "branch, tag or commit of a model on the hub (default: main)")
COMMON = (
    Argument("--json", "print the result as JSON"),
    Argument("--debug", "on an error, write its traceback to a log file"),
)


def add_arguments(parser: _ActionsContainer, arguments: Iterable[Argument | ArgumentGroup]) -> None:
    """Declares the arguments to a parser."""
    for each in arguments:
        if isinstance(each, ArgumentGroup):
            add_arguments(parser.add_argument_group(each.title, each.description), each.arguments)
        else:
            parser.add_argument(*each.names, **each.options)


def verb_joined(words: Sequence[str], verbs: Container[str]) -> list[str]:
    """A command line whose verb is one word, also where the verb is two, such as `bench serve`."""
    joined = list(words)
    at = next((i for i, word in enumerate(words) if not word.startswith("-")), len(joined))
    if " ".join(joined[at : at + 2]) in verbs:
        joined[at : at + 2] = [" ".join(joined[at : at + 2])]
    return joined
