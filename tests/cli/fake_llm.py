"""A model that is made up, for the command line around it. As a program, `ingot` with this model.

A token is a character. What the model says depends on the last message.
"""

from __future__ import annotations

import sys
from threading import Event
from types import SimpleNamespace
from typing import ClassVar

from ingot.errors import RequestError
from ingot.runtime.metrics import EngineCounters
from ingot.runtime.output import TextDelta
from ingot.runtime.params import SamplingParams

WAIT = ""  # says nothing more until it is interrupted
MAX_MODEL_LEN = 200
SAYS = {
    "wait": ("Once ", WAIT),
    "think": ("<th", "ink>\nWell", " now", "\n</thi", "nk>\n\n", "Yes."),
    "channels": (
        "<|chan",
        "nel|>analysis<|message|>Well now",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        "Yes.",
    ),
    "ponder": ("<think>\nWell", WAIT),
    "nothing": (),
    "fill": ("x" * MAX_MODEL_LEN,),
}


class FakeTokenizer:
    """Its template `quiet` has a switch for thinking, and its own has none."""

    chat_templates: ClassVar[dict[str, str]] = {
        "default": "{{ messages }}{# </think> #}",
        "quiet": "{{ q }}",
        "harmony": "{{ messages }}{# <|channel|>analysis #}",
    }
    tags: ClassVar[dict[str, int]] = {"<|channel|>": 0}
    hidden_tags = frozenset(tags)

    @property
    def has_chat_template(self):
        return "default" in self.chat_templates

    def template(self, given=None, *, with_tools=False):
        return self.chat_templates.get(given or "default", given)

    def check_system(self, given=None):
        if given == "quiet":
            raise RequestError("the chat template leaves out the system message")

    def thinking_switch(self, thinks, given=None):
        if thinks is False and given != "quiet":
            raise RequestError("the chat template has no switch for thinking")
        return {} if thinks is None or given != "quiet" else {"enable_thinking": thinks}

    def encode(self, text, add_special_tokens=True):
        return [ord(character) for character in text]


class FakeLLM:
    """What it was asked for is kept on the class."""

    opened: ClassVar[list[SimpleNamespace]] = []
    prompts: ClassVar[list[str]] = []
    params: ClassVar[list[SamplingParams]] = []
    templates: ClassVar[list[tuple]] = []  # of each prompt, with the variables
    fail: BaseException | None = None
    closed = 0
    prompt_end = ""  # what the chat template ends a prompt with

    def __init__(self, artifact, *, max_model_len=None, num_threads=None, config=None):
        FakeLLM.opened.append(SimpleNamespace(num_threads=num_threads, config=config))
        self.artifact = artifact
        self.max_model_len = max_model_len or MAX_MODEL_LEN

    def __enter__(self):
        return self

    def __exit__(self, *error):
        FakeLLM.closed += 1

    def get_tokenizer(self):
        return FakeTokenizer()

    def counters(self):
        return EngineCounters()

    def get_chat_sampling_params(self):
        return SamplingParams()

    def chat_prompt(
        self, messages, *, chat_template=None, chat_template_kwargs=None, add_generation_prompt=True
    ):
        given = (chat_template, *(chat_template_kwargs or {}).items())
        FakeLLM.templates.append(given)
        text = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        text += self.prompt_end if add_generation_prompt else ""
        return {"prompt": text, "prompt_token_ids": self.get_tokenizer().encode(text)}

    def stream(self, prompt, params):
        text = "".join(map(chr, prompt["prompt_token_ids"]))
        FakeLLM.prompts.append(text)
        FakeLLM.params.append(params)
        last = text.rpartition(">")[2]
        pieces = (f"({text})",) if last == "prompt" else SAYS.get(last, ("Once ", "more"))
        room = min(self.max_model_len - len(text), params.max_tokens)
        for piece in pieces:
            if piece is WAIT:
                Event().wait()
            shown, room = piece[:room], room - len(piece[:room])
            yield TextDelta(text=shown, token_ids=[ord(character) for character in shown])
            if FakeLLM.fail:
                raise FakeLLM.fail
        yield TextDelta(text="", token_ids=[], finish_reason="stop" if room else "length")


def main() -> int:
    import ingot.cli.run_stats
    import ingot.runtime.llm
    from ingot.cli.main import main

    ingot.runtime.llm.LLM = FakeLLM
    ingot.cli.run_stats.read_bandwidth = lambda artifact, nbytes: 1e9
    return main()


if __name__ == "__main__":
    sys.exit(main())
