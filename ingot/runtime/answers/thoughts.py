"""The tags in which families of models reason, and those around what follows, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Channels:
    """Messages with headers, of which some are reasoning, some calls, and the others text.

    Attributes:
        start: begins a message; `role`: what stands between it and the rest of its header.
        channel: begins the name of its channel; `thinks`: the names of those that reason.
        to: stands before the receiver of a message; `tools`: before the name of a tool there.
        message: ends the header; `ends`: any of these ends the message.
    """

    start: str
    role: str
    channel: str
    thinks: tuple[str, ...]
    to: str
    tools: str
    message: str
    ends: tuple[str, ...]

    @property
    def begins(self) -> tuple[str, ...]:
        """What a header may begin with."""
        role, channel, to = self.role, self.channel, self.to
        return (self.start, channel, f" {to}", to, f"{role}{channel}", f"{role} {to}")


@dataclass(frozen=True, slots=True)
class Thought:
    """A way to mark reasoning.

    Attributes:
        families: who does so; `checked`: what the row was checked against.
        begin, end: what stands around it.
        closing: how a server ends it, where it has become too long.
        again: it may come again later in an answer. Its tags are special tokens, which no text has.
        channels: messages that an answer consists of.
        marks: a chat template that knows it has one of these; by default `end`.
        lead: what an answer that is no call begins with behind `turn`, where its form is asked for.
    """

    name: str
    families: str
    checked: str
    begin: str
    end: str
    closing: str
    again: bool = False
    channels: Channels | None = None
    marks: tuple[str, ...] = ()
    turn: str = ""
    lead: str = ""

    def tags(self) -> Iterator[str]:
        """All that a text must keep to be read."""
        yield from (self.begin, self.end)
        if self.channels:
            yield from (self.channels.start, self.channels.message, *self.channels.ends)


@dataclass(frozen=True, slots=True)
class Shell:
    """Tags around an answer, which are no part of it.

    Attributes:
        marks: a chat template that knows them has one of these, and none of `others`.
    """

    families: str
    checked: str
    begin: str
    end: str
    marks: tuple[str, ...]
    others: tuple[str, ...] = ()


THOUGHTS = (
    Thought(
        name="harmony",
        families="gpt-oss",
        checked="github.com/openai/harmony docs/format.md",
        begin="<|channel|>analysis<|message|>",
        end="<|end|>",
        closing="<|end|><|start|>assistant<|channel|>final<|message|>",
        channels=Channels(
            start="<|start|>",
            role="assistant",
            channel="<|channel|>",
            thinks=("analysis",),
            to="to=",
            tools="functions.",
            message="<|message|>",
            ends=("<|end|>", "<|call|>", "<|return|>"),
        ),
        marks=("<|channel|>analysis", "<|channel|>"),
        turn="<|start|>assistant",
        lead="<|channel|>final<|message|>",
    ),
    Thought(
        name="gemma4",
        families="Gemma 4",
        checked="ai.google.dev/gemma/docs/core/prompt-formatting-gemma4",
        begin="<|channel>thought\n",
        end="<channel|>",
        closing="<channel|>",
        again=True,
    ),
    Thought(
        name="cohere",
        families="Command R7B, Command A",
        checked="llama.cpp models/templates/CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja",
        begin="<|START_THINKING|>",
        end="<|END_THINKING|>",
        closing="<|END_THINKING|>",
        again=True,
    ),
    Thought(
        name="mistral",
        families="Magistral, Ministral 3",
        checked="github.com/mistralai/mistral-common tests/data/chat_templates/v13_think.jinja",
        begin="[THINK]",
        end="[/THINK]",
        closing="[/THINK]",
    ),
    Thought(
        name="seed",
        families="Seed-OSS",
        checked="llama.cpp models/templates/ByteDance-Seed-OSS.jinja",
        begin="<seed:think>",
        end="</seed:think>",
        closing="</seed:think>",
    ),
    Thought(
        name="think",
        families="Qwen3, DeepSeek R1 and V3.1, GLM, Kimi K2 Thinking, MiniMax, Nemotron, Hunyuan, "
        "ERNIE, LFM2.5, SmolLM3",
        checked="llama.cpp models/templates: GLM-4.6, moonshotai-Kimi-K2-Thinking, "
        "deepseek-ai-DeepSeek-V3.1, unsloth-MiniMax-M2, NVIDIA-Nemotron-Nano-v2, LFM2.5-8B-A1B",
        begin="<think>",
        end="</think>",
        closing="\n</think>\n\n",  # as templates write it
    ),
)

SHELLS = (
    Shell(
        families="Command R7B, Command A",
        checked="llama.cpp models/templates/CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja",
        begin="<|START_RESPONSE|>",
        end="<|END_RESPONSE|>",
        marks=("<|START_RESPONSE|>",),
    ),
    Shell(
        families="Hunyuan A13B",
        checked="the description of vLLM's hunyuan_a13b_reasoning_parser",
        begin="<answer>",
        end="</answer>",
        marks=("<answer>", "<tool_calls>["),
    ),
    Shell(
        families="ERNIE 4.5",
        checked="the description of vLLM's ernie45_reasoning_parser",
        begin="<response>",
        end="</response>",
        marks=("<response>",),
        others=("<minimax:tool_call>",),  # results of tools stand in this tag
    ),
)


def thought_of(template: str) -> Thought | None:
    """How a chat template marks reasoning; None where it does not."""
    for each in THOUGHTS:
        if any(mark in template for mark in each.marks or (each.end,)):
            return each
    return None


def shell_of(template: str) -> Shell | None:
    """The tags that a chat template writes around an answer, if any."""
    for each in SHELLS:
        if any(mark in template for mark in each.marks) and not any(
            other in template for other in each.others
        ):
            return each
    return None
