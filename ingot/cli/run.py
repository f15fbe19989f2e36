"""`ingot run`: generate text from a prompt, or hold a conversation."""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot.cli.arguments import (
    DEVICE,
    MODEL,
    NUM_SPECULATIVE_TOKENS,
    REVISION,
    SPECULATIVE,
    Argument,
    ArgumentGroup,
    Arguments,
)
from ingot.cli.chat.options import MAX_TOKENS, OF_TEMPLATES, SAMPLING, STOP
from ingot.cli.numbers import human_int
from ingot.cli.output import print_json
from ingot.cli.template_options import CHAT_TEMPLATE, check_name, given_template
from ingot.errors import RequestError, UsageError

if TYPE_CHECKING:
    from ingot.cli.chat.answer import ShownAnswer
    from ingot.cli.chat.options import Options
    from ingot.runtime.llm import LLM
    from ingot.runtime.tokenizer import Tokenizer

ARGUMENTS: Arguments = (
    MODEL,
    REVISION,
    Argument(
        "prompt PROMPT",
        "a message, or a text to continue if the model has no chat template (default: what is "
        "piped into stdin; on a terminal, a conversation)",
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
    ArgumentGroup(
        "chat",
        "PROMPT goes through the model's chat template, if it has one.",
        (
            Argument("--raw", "continue PROMPT as it is, without a chat template"),
            Argument("--chat", "without PROMPT, each line of stdin is a message"),
            Argument("--system TEXT", "the system message"),
            CHAT_TEMPLATE,
            *OF_TEMPLATES,
        ),
    ),
    SAMPLING,
)
OF_CHATS = (
    "chat", "system", "chat_template", "think", "max_thinking_tokens", "chat_template_kwargs",
)  # fmt: skip


def main(args: argparse.Namespace) -> int:
    """Generates text and streams it to stdout. Answers PROMPT, or what is piped into stdin; a
    model without a chat template continues it. Without either it holds a conversation, in which
    /help lists what can be entered."""
    from ingot.artifact.reader import Artifact
    from ingot.artifact.tree import is_artifact
    from ingot.cli.chat.local import LocalPartner
    from ingot.cli.chat.loop import converse
    from ingot.compiled import resolve
    from ingot.compiler.choose_targets import for_device
    from ingot.hub.names import model_path
    from ingot.runtime.config import EngineConfig
    from ingot.runtime.llm import LLM

    _check_raw(args)
    args.chat_template = given_template(args.chat_template)
    converses = args.prompt is None and (args.chat or sys.stdin.isatty())
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
        chats = _chats(llm, args, converses)
        room = llm.max_model_len // 4 if converses else llm.max_model_len
        options = _options(llm, args, max_tokens=max(room, 1) if chats else 256)
        if not converses:
            return _answer(llm, prompt, args, options, load_seconds=load_seconds, chats=chats)
        return converse(LocalPartner(llm, load_seconds, args.chat_template), args, options)


def _check_raw(args: argparse.Namespace) -> None:
    """Raises UsageError for --raw with what only a chat has, or with nothing to continue."""
    given = _of_chats(args)
    if args.raw and given:
        raise UsageError(
            f"--raw is given with --{given[0].replace('_', '-')}",
            hint="With --raw there is no chat template, and so nothing else of a chat.",
        )
    if args.raw and args.prompt is None and sys.stdin.isatty():
        raise UsageError(
            "--raw is given without a text to continue",
            hint='Give one: ingot run MODEL --raw "text", or pipe one in.',
        )


def _of_chats(args: argparse.Namespace) -> list[str]:
    """What was given that only a chat has."""
    values = {name: getattr(args, name) for name in OF_CHATS}
    return [name for name, value in values.items() if value is not None and value is not False]


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


def _chats(llm: LLM, args: argparse.Namespace, converses: bool) -> bool:
    """Tells whether the prompt goes through a template. Raises UsageError if it should, and the
    model has none, or one that takes no system message."""
    if args.raw:
        return False
    tokenizer = llm.get_tokenizer()
    check_name(args.chat_template, tokenizer)
    if args.chat_template is not None or tokenizer.has_chat_template:
        if args.system:
            tokenizer.check_system(args.chat_template)
        return True
    if converses or _of_chats(args):
        raise UsageError(
            "the model has no chat template, so it can only continue a text",
            hint='Give one: ingot run MODEL "text", or pipe one in. '
            "Or give a template: --chat-template FILE.",
        )
    return False


def _options(llm: LLM, args: argparse.Namespace, *, max_tokens: int) -> Options:
    """The user's options over the model's. Raises UsageError, also where thinking is to be switched
    and the template has no switch, and ArtifactError for defaults that are out of range."""
    from ingot.cli.chat.options import Options
    from ingot.runtime.generation_config import read_generation_config

    llm.get_chat_sampling_params()  # raises where the model's own are out of range
    # An answer is never empty: its first token is none that ends it.
    own = {**read_generation_config(llm.artifact).defaults, "min_tokens": 1}
    switch = partial(_switched, llm.get_tokenizer(), args.chat_template)
    return Options.of(args, {**own, "max_tokens": max_tokens}, switch)


def _switched(
    tokenizer: Tokenizer, template: str | None, thinks: bool | None, most: int | None
) -> dict[str, bool]:
    """Variables by which the model thinks, or does not. Raises RequestError where the template
    cannot keep it from that, and where `most` tokens are to bound what no template marks."""
    from ingot.runtime.answers import tokenizer_style

    if most is not None:
        tokenizer_style(tokenizer, template).check_bound(most)
    return tokenizer.thinking_switch(thinks, template)


def _answer(
    llm: LLM,
    prompt: str,
    args: argparse.Namespace,
    options: Options,
    *,
    load_seconds: float,
    chats: bool,
) -> int:
    """Answers or continues one prompt."""
    from ingot.cli.chat.answer import ShownAnswer
    from ingot.cli.chat.display import stdout_display
    from ingot.runtime.answers import tokenizer_style

    parts = _prompt_parts(llm, prompt, args, options, chats)
    style = tokenizer_style(llm.get_tokenizer(), args.chat_template) if chats else None
    answer = ShownAnswer(parts, style, options.max_thinking_tokens)
    answer.write(llm, options.params, stdout_display(options.think, silent=args.json))
    figures = answer.stats.figures(llm.artifact, load_seconds) if args.stats else None
    if args.json:
        print_json(answer.result() | ({"stats": figures} if figures else {}))
    elif figures:
        print(f"\n{figures.text()}", file=sys.stderr)
    if chats and (remark := _remark(answer, llm.max_model_len)):
        print(f"({remark}.)", file=sys.stderr)
    return 0


def _remark(answer: ShownAnswer, max_model_len: int) -> str:
    """Remark on an answer that is not whole."""
    from ingot.cli.chat.chat import cut

    if answer.finish_reason == "length":
        is_full = answer.num_tokens >= max_model_len
        return f"{cut(answer)}; {'the context is full' if is_full else 'see --max-tokens'}"
    return "" if answer.text.strip() else "The answer is empty"


def _prompt_parts(
    llm: LLM, prompt: str, args: argparse.Namespace, options: Options, chats: bool
) -> dict[str, Any]:
    """The prompt as tokens; of a chat, with its text."""
    from ingot.cli.chat.conversation import Conversation

    if not chats:
        return {"prompt_token_ids": llm.get_tokenizer().encode(prompt)}
    messages = Conversation(args.system or "").with_message(prompt)
    try:
        return llm.chat_prompt(
            messages,
            chat_template=args.chat_template,
            chat_template_kwargs=options.template_variables,
        )
    except RequestError as error:  # perhaps a template that cannot be used at all
        hint = error.hint or "--raw continues the text without a chat template."
        raise RequestError(error.found, hint=hint) from error
