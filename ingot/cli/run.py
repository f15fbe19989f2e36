"""`ingot run`: generate text from a prompt, or hold a conversation."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot.cli.answer_options import MAX_TOKENS, SAMPLING, STOP, THINK
from ingot.cli.arguments import (
    DEVICE,
    MODEL,
    NUM_SPECULATIVE_TOKENS,
    REVISION,
    SPECULATIVE,
    Argument,
    Arguments,
    Group,
)
from ingot.cli.numbers import human_int
from ingot.cli.output import print_json
from ingot.errors import UsageError

if TYPE_CHECKING:
    from ingot.cli.answer_options import Options
    from ingot.runtime.llm import LLM

ARGUMENTS: Arguments = (
    MODEL,
    REVISION,
    Argument(
        "prompt PROMPT",
        "the text to continue (default: what is piped into stdin; on a terminal, a conversation)",
        nargs="?",
    ),
    Argument(
        "--max-model-len N",
        "longest sequence to make room for (default: the artifact's limit)",
        human_int,
    ),
    MAX_TOKENS,
    STOP,
    DEVICE,
    Argument("--threads N", "default: one per processor that this process may use", human_int),
    SPECULATIVE,
    NUM_SPECULATIVE_TOKENS,
    Argument("--stats", "print the time to the first token and the speed beside its limit"),
    Group(
        "chat",
        "Messages go through the model's chat template.",
        (
            Argument("--chat", "PROMPT is a message; without it, so is each line of stdin"),
            Argument("--system TEXT", "the system message; implies --chat for PROMPT"),
            THINK,
        ),
    ),
    SAMPLING,
)


def main(args: argparse.Namespace) -> int:
    """Generates text and streams it to stdout. Completes PROMPT, or what is piped into stdin.
    Without either it holds a conversation, in which /help lists what can be entered."""
    from ingot.artifact.reader import Artifact
    from ingot.artifact.tree import is_artifact
    from ingot.cache import resolve
    from ingot.cli.answer import Answer
    from ingot.cli.chat.display import stdout_display
    from ingot.cli.chat.local import LocalPartner
    from ingot.cli.chat.loop import converse
    from ingot.compiler.choose_targets import for_device
    from ingot.hub import model_path
    from ingot.runtime.config import EngineConfig
    from ingot.runtime.llm import LLM

    converses = args.prompt is None and (args.chat or sys.stdin.isatty())
    chats = converses or args.chat or args.system is not None
    prompt = "" if converses else _prompt(args)
    config = EngineConfig(
        speculative=args.speculative, num_speculative_tokens=args.num_speculative_tokens
    )
    wanted = None if is_artifact(Path(args.model)) else for_device(args.device)
    # A model on the hub is downloaded and a directory compiled, unless they are cached.
    path = resolve(model_path(args.model, args.revision), wanted)
    began = time.perf_counter()
    artifact = Artifact.open(path, device=args.device)
    length, threads = args.max_model_len, args.threads
    with LLM(artifact, max_model_len=length, num_threads=threads, config=config) as llm:
        load_seconds = time.perf_counter() - began
        options = _options(llm, args, chats)
        if converses:
            return converse(LocalPartner(llm, load_seconds), args, options)
        answer = Answer(_prompt_parts(llm, prompt, args, chats), chats=chats)
        answer.write(llm, options.params, stdout_display(options.think, silent=args.json))
        figures = answer.stats.figures(llm.artifact, load_seconds) if args.stats else None
    if args.json:
        print_json(answer.result() | ({"stats": figures} if figures else {}))
    elif figures:
        print(f"\n{figures.text()}", file=sys.stderr)
    return 0


def _prompt(args: argparse.Namespace) -> str:
    """The prompt from the command line or stdin. Raises UsageError for an empty stdin."""
    if args.prompt not in (None, "-"):
        return str(args.prompt)
    piped = sys.stdin.read()
    # One newline at the end is the shell's, not the user's.
    piped = piped[:-1] if piped.endswith("\n") else piped
    if not piped:
        raise UsageError("the prompt is empty", hint="Pipe some text in, or give it as PROMPT.")
    return piped


def _options(llm: LLM, args: argparse.Namespace, chats: bool) -> Options:
    """The user's options over the model's. Raises UsageError for a model that cannot chat."""
    from ingot.cli.answer_options import Options
    from ingot.cli.sampling_defaults import sampling_defaults

    if chats and not llm.get_tokenizer().has_chat_template:
        raise UsageError(
            "the model has no chat template, so it can only continue a text",
            hint='Give one: ingot run MODEL "text", or pipe one in.',
        )
    max_tokens = max(llm.max_model_len // 4, 1) if chats else 256
    return Options.of(args, {"max_tokens": max_tokens, **sampling_defaults(llm.artifact)})


def _prompt_parts(llm: LLM, prompt: str, args: argparse.Namespace, chats: bool) -> dict[str, Any]:
    """The prompt as tokens; of a chat, with its text."""
    from ingot.cli.chat.conversation import Conversation

    if chats:
        return llm.chat_prompt(Conversation(args.system or "").with_message(prompt))
    return {"prompt_token_ids": llm.get_tokenizer().encode(prompt)}
