"""`ingot run`: generate text from a prompt, or chat."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from ingot.cli.arguments import MODEL, REVISION, Argument, Arguments, Group
from ingot.cli.numbers import human_int
from ingot.cli.output import print_json
from ingot.errors import UsageError

if TYPE_CHECKING:
    from ingot.cli.run_stats import RunStats
    from ingot.runtime.llm import LLM
    from ingot.runtime.params import SamplingParams

NAME = "run"
SUMMARY = "generate text from a prompt, stdin or a chat"
ARGUMENTS: Arguments = (
    MODEL,
    REVISION,
    Argument(
        "prompt PROMPT", "the text to continue (default: what is piped into stdin)", nargs="?"
    ),
    Argument(
        "--chat", "send PROMPT as a message in the model's chat template; without PROMPT, converse"
    ),
    Argument(
        "--max-model-len N",
        "longest sequence to make room for (default: the artifact's limit)",
        human_int,
    ),
    Argument("--max-tokens N", "most tokens to generate (default: 256)", human_int, default=256),
    Group(
        "sampling",
        "Defaults come from the model's generation_config.json; without it, greedy.",
        (
            Argument("--temperature T", "0 takes the likeliest token", float),
            Argument("--top-k K", "draw from the K likeliest tokens", int),
            Argument(
                "--top-p P",
                "draw from the likeliest tokens that together have probability P",
                float,
            ),
            Argument("--seed N", "draw the same tokens every time", int),
        ),
    ),
    Argument("--stats", "print the time to the first token and the speed beside its limit"),
)


def main(args: argparse.Namespace) -> int:
    """Generates text and streams it to stdout. Completes PROMPT, or what is piped into stdin. With
    --chat and neither of them, it holds a conversation, which Ctrl-D ends."""
    from ingot.cache import resolve
    from ingot.hub import model_path
    from ingot.runtime.llm import LLM

    converse = args.chat and args.prompt is None and sys.stdin.isatty()
    prompt = "" if converse else _prompt(args)
    # A model on the hub is downloaded and a directory compiled, unless they are cached.
    artifact = resolve(model_path(args.model, args.revision))
    began = time.perf_counter()
    with LLM(artifact, max_model_len=args.max_model_len) as llm:
        loaded = time.perf_counter() - began
        params = _params(args, llm)
        if converse:
            return _converse(llm, params)
        text = prompt if not args.chat else [{"role": "user", "content": prompt}]
        result, stats = _complete(llm, text, params, show=not args.json)
        figures = stats.figures(llm.artifact, loaded) if args.stats else None
    if args.json:
        print_json(result | ({"stats": figures} if figures else {}))
    elif figures:
        print(f"\n{figures.text()}", file=sys.stderr)
    return 0


def _prompt(args: argparse.Namespace) -> str:
    """The prompt from the command line or stdin. Raises UsageError where there is none."""
    if args.prompt not in (None, "-"):
        return str(args.prompt)
    if args.prompt is None and sys.stdin.isatty():
        raise UsageError("no prompt", hint='Give one: ingot run MODEL "text", or pipe one in.')
    piped = sys.stdin.read()
    # One newline at the end is the shell's, not the user's.
    piped = piped[:-1] if piped.endswith("\n") else piped
    if not piped:
        raise UsageError("the prompt is empty", hint="Pipe some text in, or give it as PROMPT.")
    return piped


def _params(args: argparse.Namespace, llm: LLM) -> SamplingParams:
    from ingot.cli.sampling_defaults import sampling_defaults
    from ingot.runtime.params import SamplingParams

    values = sampling_defaults(llm.artifact)
    given = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "seed")}
    values.update({name: value for name, value in given.items() if value is not None})
    return SamplingParams(max_tokens=args.max_tokens, **values)


def _complete(
    llm: LLM, prompt: str | list[dict[str, str]], params: SamplingParams, *, show: bool
) -> tuple[dict[str, Any], RunStats]:
    """Generates a completion; if `show`, writes its text to stdout as it comes."""
    from ingot.cli.run_stats import RunStats

    tokens = _tokens(llm, prompt)
    stats = RunStats(num_prompt_tokens=len(tokens))
    text, token_ids, finish_reason = [], [], None
    for delta in stats.watch(llm.stream({"prompt_token_ids": tokens}, params)):
        text.append(delta.text)
        token_ids += delta.token_ids
        finish_reason = delta.finish_reason
        if show:
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    if show:
        print()
    result = {
        "text": "".join(text),
        "token_ids": token_ids,
        "finish_reason": finish_reason,
        "prompt_token_ids": tokens,
    }
    return result, stats


def _tokens(llm: LLM, prompt: str | list[dict[str, str]]) -> list[int]:
    """Tokens of a text, or of a conversation in the model's chat template."""
    tokenizer = llm.get_tokenizer()
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    # The template has written the special tokens itself.
    return tokenizer.encode(tokenizer.apply_chat_template(prompt), add_special_tokens=False)


def _converse(llm: LLM, params: SamplingParams) -> int:
    """A conversation: a line in, an answer out, until the end of input."""
    print("Ctrl-D ends the conversation, Ctrl-C an answer.", file=sys.stderr)
    messages: list[dict[str, str]] = []
    while True:
        try:
            line = input("> ")
        except EOFError:
            print(file=sys.stderr)
            return 0
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line})
        try:
            answer, _ = _complete(llm, messages, params, show=True)
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": answer["text"]})
