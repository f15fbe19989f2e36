"""The formats in which families of models write calls of tools, as a table.

A row says what stands around calls, what form their heads and their arguments have, and what in a
chat template tells of it. `sections.py` reads any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ingot.runtime.answers.values import JSON, Literals, Notation, Tagged


@dataclass(frozen=True, slots=True)
class Head:
    """A name that stands outside of the arguments.

    Attributes:
        write: what is written before and after it, when a call is asked for.
        begin: what stands before it.
        ends: any of these ends it.
        until: the text up to one of these is passed; without them, arguments follow at once.
        prefix: what names may begin with, such as that of a namespace.
        count: what stands between the name and a number. All of it is the id of the call then,
            which templates of its family print again.
    """

    write: tuple[str, str]
    ends: tuple[str, ...]
    arguments: Notation = JSON
    begin: str = ""
    until: tuple[str, ...] = ()
    prefix: str = ""
    count: str = ""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A format.

    Attributes:
        families: who writes it; `checked`: what the row was checked against.
        example: two calls, or one where there can be only one.
        marks: a chat template that writes it has one of these, and none of `others`.
        opens: any of these begins calls, wherever it stands.
        bare: calls may begin with one of these characters, as the whole answer.
        listed: calls may stand in brackets, with commas between them.
        between: what else may stand between two calls.
        before, after: what stands around each call.
        ends: what may follow the last.
        head: the form of a call with its name outside of its arguments.
        object: the names of a call and of its arguments, where it is an object of JSON.
        by_head: a call that is asked for has its name outside, though an object is read as well.
        counted: what such an object begins with: the name of a number that its family gives it.
        special: its marks are special tokens, which must be left in the text.
        thought: the way of reasoning whose messages calls stand in, where they stand in messages.
        short_ids: its templates take ids of nine letters and digits alone.
        begin, middle, end: what is written around calls and between them, when they are asked for;
            without `middle` there is only one.
    """

    name: str
    families: str
    checked: str
    example: str
    marks: tuple[str, ...]
    others: tuple[str, ...] = ()
    opens: tuple[str, ...] = ()
    bare: str = ""
    listed: bool = False
    between: str = ""
    before: str = ""
    after: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    head: Head | None = None
    object: tuple[str, str] | None = None
    by_head: bool = False
    counted: str = ""
    special: bool = False
    thought: str = ""
    short_ids: bool = False
    begin: str = ""
    middle: str = ""
    end: str = ""

    @property
    def asked(self) -> Notation:
        """The notation of the arguments of a call that is asked for."""
        return self.head.arguments if self.head and not self.asks_object else JSON

    @property
    def asks_object(self) -> bool:
        """True if a call that is asked for is an object of JSON."""
        return self.object is not None and not self.by_head

    def tags(self) -> Iterator[str]:
        """All that a text of this format must keep to be read."""
        yield from (*self.opens, self.before, *self.after, *self.ends)
        if self.head:
            head = self.head
            yield from (head.begin, *head.ends, *head.until, *head.arguments.marks)


NAME, TOOL_NAME = ("name", "arguments"), ("tool_name", "parameters")
_PARAMETER = Tagged(
    key=("<parameter=", ">"),
    value=("", "</parameter>"),
    closes=("</function>", "</tool_call>"),
    lines=True,
)
_MISTRAL = Head(
    write=("", "[ARGS]"),
    ends=("[CALL_ID]", "[ARGS]", "{"),
    until=("[ARGS]", "{"),
)

FORMATS = (
    ToolFormat(
        name="harmony",
        families="gpt-oss",
        checked="github.com/openai/harmony docs/format.md",
        example="<|channel|>commentary to=functions.add <|constrain|>json<|message|>"
        '{"a": 1}<|call|>',
        marks=("<|channel|>",),
        head=Head(
            write=(
                "<|channel|>commentary to=functions.",
                " <|constrain|>json<|message|>",
            ),
            ends=("<|message|>",),
            prefix="functions.",
        ),
        special=True,
        thought="harmony",
    ),
    ToolFormat(
        name="gemma4",
        families="Gemma 4",
        checked="llama.cpp models/templates/google-gemma-4-31B-it-interleaved.jinja",
        example='<|tool_call>call:add{a:1,b:<|"|>x<|"|>}<tool_call|>'
        "<|tool_call>call:look_up{}<tool_call|>",
        marks=("<|tool_call>",),
        opens=("<|tool_call>",),
        ends=("<tool_call|>", "<|tool_response>"),
        head=Head(
            write=("call:", "{"),
            begin="call:",
            ends=("{",),
            until=("{",),
            arguments=Literals(assign=":", closing="}", quote='<|"|>', comma=","),
        ),
        special=True,
        begin="<|tool_call>",
        middle="<tool_call|><|tool_call>",
        end="<tool_call|>",
    ),
    ToolFormat(
        name="functiongemma",
        families="FunctionGemma",
        checked="ai.google.dev/gemma/docs/functiongemma/formatting-and-best-practices",
        example="<start_function_call>call:add{a:1,b:<escape>x<escape>}<end_function_call>"
        "<start_function_call>call:look_up{}<end_function_call>",
        marks=("<start_function_call>",),
        opens=("<start_function_call>",),
        ends=("<end_function_call>", "<start_function_response>"),
        head=Head(
            write=("call:", "{"),
            begin="call:",
            ends=("{",),
            until=("{",),
            arguments=Literals(assign=":", closing="}", quote="<escape>", comma=","),
        ),
        special=True,
        begin="<start_function_call>",
        middle="<end_function_call><start_function_call>",
        end="<end_function_call>",
    ),
    ToolFormat(
        name="deepseek_v31",
        families="DeepSeek V3.1",
        checked="llama.cpp models/templates/deepseek-ai-DeepSeek-V3.1.jinja",
        example='<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}'
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>look_up<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        marks=("<｜tool▁calls▁begin｜>",),
        others=("```json",),
        opens=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        before="<｜tool▁call▁begin｜>",
        after=("<｜tool▁call▁end｜>",),
        ends=("<｜tool▁calls▁end｜>",),
        head=Head(
            write=("", "<｜tool▁sep｜>"),
            ends=("<｜tool▁sep｜>",),
            until=("<｜tool▁sep｜>",),
        ),
        special=True,
        begin="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
        middle="<｜tool▁call▁end｜><｜tool▁call▁begin｜>",
        end="<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    ToolFormat(
        name="deepseek_v3",
        families="DeepSeek V3, DeepSeek R1",
        checked="vLLM examples/tool_chat_template_deepseekv3.jinja",
        example="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n"
        '```json\n{"a": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>'
        "look_up\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        marks=("<｜tool▁calls▁begin｜>",),
        opens=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        before="<｜tool▁call▁begin｜>",
        after=("```", "<｜tool▁call▁end｜>"),
        ends=("<｜tool▁calls▁end｜>",),
        head=Head(
            write=("function<｜tool▁sep｜>", "\n```json\n"),
            begin="function<｜tool▁sep｜>",
            ends=("\n", "```json"),
            until=("```json",),
        ),
        special=True,
        begin="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
        middle="\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>",
        end="\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    ToolFormat(
        name="deepseek_v32",
        families="DeepSeek V3.2",
        checked="llama.cpp models/templates/DeepSeek-V3.2.jinja",
        example='<｜DSML｜function_calls>\n<｜DSML｜invoke name="add">\n'
        '<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="look_up">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        marks=("｜DSML｜",),
        opens=("<｜DSML｜function_calls>",),
        ends=("</｜DSML｜function_calls>",),
        head=Head(
            write=('<｜DSML｜invoke name="', '">\n'),
            begin='<｜DSML｜invoke name="',
            ends=('">',),
            until=('">',),
            arguments=Tagged(
                key=('<｜DSML｜parameter name="', '">'),
                value=("", "</｜DSML｜parameter>"),
                closes=("</｜DSML｜invoke>",),
                told='" string="',
            ),
        ),
        begin="<｜DSML｜function_calls>\n",
        middle="\n",
        end="\n</｜DSML｜function_calls>",
    ),
    ToolFormat(
        name="kimi_k2",
        families="Kimi K2, K2 Thinking, K2.5",
        checked="llama.cpp models/templates/moonshotai-Kimi-K2-Thinking.jinja",
        example="<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0"
        '<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_call_begin|>'
        "functions.look_up:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        marks=("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
        opens=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        before="<|tool_call_begin|>",
        after=("<|tool_call_end|>",),
        ends=("<|tool_calls_section_end|>",),
        head=Head(
            write=("functions.", "<|tool_call_argument_begin|>"),
            ends=(":", "<|tool_call_argument_begin|>"),
            until=("<|tool_call_argument_begin|>",),
            prefix="functions.",
            count=":",
        ),
        special=True,
        begin="<|tool_calls_section_begin|><|tool_call_begin|>",
        middle="<|tool_call_end|><|tool_call_begin|>",
        end="<|tool_call_end|><|tool_calls_section_end|>",
    ),
    ToolFormat(
        name="minimax_m2",
        families="MiniMax M2",
        checked="llama.cpp models/templates/unsloth-MiniMax-M2.jinja",
        example='<minimax:tool_call>\n<invoke name="add">\n<parameter name="a">1</parameter>\n'
        '</invoke>\n<invoke name="look_up">\n</invoke>\n</minimax:tool_call>',
        marks=("<minimax:tool_call>",),
        opens=("<minimax:tool_call>",),
        ends=("</minimax:tool_call>",),
        head=Head(
            write=('<invoke name="', '">\n'),
            begin='<invoke name="',
            ends=('">',),
            until=('">',),
            arguments=Tagged(
                key=('<parameter name="', '">'),
                value=("", "</parameter>"),
                closes=("</invoke>",),
            ),
        ),
        begin="<minimax:tool_call>\n",
        middle="\n",
        end="\n</minimax:tool_call>",
    ),
    ToolFormat(
        name="seed_oss",
        families="Seed-OSS",
        checked="llama.cpp models/templates/ByteDance-Seed-OSS.jinja",
        example="<seed:tool_call>\n<function=add>\n<parameter=a>1</parameter>\n</function>\n"
        "</seed:tool_call>\n<seed:tool_call>\n<function=look_up>\n</function>\n</seed:tool_call>",
        marks=("<seed:tool_call>",),
        opens=("<seed:tool_call>",),
        ends=("</seed:tool_call>",),
        head=Head(
            write=("<function=", ">\n"),
            begin="<function=",
            ends=(">",),
            until=(">",),
            arguments=Tagged(
                key=("<parameter=", ">"), value=("", "</parameter>"), closes=("</function>",)
            ),
        ),
        begin="<seed:tool_call>\n",
        middle="\n</seed:tool_call>\n<seed:tool_call>\n",
        end="\n</seed:tool_call>",
    ),
    ToolFormat(
        name="command_r7b",
        families="Command R7B, Command A",
        checked="llama.cpp models/templates/CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja",
        example='<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "add", '
        '"parameters": {"a": 1}},\n    {"tool_call_id": "1", "tool_name": "look_up", '
        '"parameters": {}}\n]<|END_ACTION|>',
        marks=("<|START_ACTION|>",),
        opens=("<|START_ACTION|>",),
        listed=True,
        ends=("<|END_ACTION|>",),
        object=TOOL_NAME,
        counted="tool_call_id",
        special=True,
        begin="<|START_ACTION|>[\n    ",
        middle=",\n    ",
        end="\n]<|END_ACTION|>",
    ),
    ToolFormat(
        name="command_r",
        families="Command R, Command R+",
        checked="vLLM examples/command_r_tool_chat_template.jinja",
        example='Action:\n```json\n[\n    {\n        "tool_name": "add",\n        "parameters": '
        '{"a": 1}\n    },\n    {"tool_name": "look_up", "parameters": {}}\n]```',
        marks=("followed by a json-formatted list of actions", "Action:\\n```json"),
        opens=("Action: ```json", "Action:\n```json", "Action:```json"),
        listed=True,
        ends=("```",),
        object=TOOL_NAME,
        begin="Action: ```json\n[\n    ",
        middle=",\n    ",
        end="\n]```",
    ),
    ToolFormat(
        name="mistral_v11",
        families="Mistral Small 3.2, Magistral, Devstral, Ministral 3 and what else has tokenizers "
        "from v11 on",
        checked="github.com/mistralai/mistral-common tests/data/chat_templates (v11 to v15) and "
        "src/mistral_common/tokens/tokenizers/instruct.py",
        example='[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]look_up[CALL_ID]abcdefghi[ARGS]{}',
        marks=("[ARGS]",),
        opens=("[TOOL_CALLS]",),
        head=_MISTRAL,
        special=True,
        short_ids=True,
        begin="[TOOL_CALLS]",
        middle="[TOOL_CALLS]",
    ),
    ToolFormat(
        name="mistral",
        families="Mistral, Mixtral and Ministral with tokenizers up to v7",
        checked="github.com/mistralai/mistral-common tests/data/chat_templates (v2 to v7); "
        "vLLM examples/tool_chat_template_mistral3.jinja",
        example='[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, '
        '{"name": "look_up", "arguments": {}}]',
        marks=("[TOOL_CALLS]",),
        opens=("[TOOL_CALLS]",),
        listed=True,
        head=_MISTRAL,
        object=NAME,
        special=True,
        short_ids=True,
        begin="[TOOL_CALLS] [",
        middle=", ",
        end="]",
    ),
    ToolFormat(
        name="lfm2",
        families="LFM2, LFM2.5",
        checked="llama.cpp models/templates/LFM2.5-8B-A1B.jinja; LiquidAI's model cards",
        example='<|tool_call_start|>[add(a=1, b="x"), look_up()]<|tool_call_end|>',
        marks=("<|tool_call_start|>", "<|tool_list_start|>"),
        opens=("<|tool_call_start|>",),
        listed=True,
        ends=("<|tool_call_end|>",),
        head=Head(
            write=("", "("), ends=("(",), until=("(",), arguments=Literals(assign="=", closing=")")
        ),
        object=NAME,
        by_head=True,
        special=True,
        begin="<|tool_call_start|>[",
        middle=", ",
        end="]<|tool_call_end|>",
    ),
    ToolFormat(
        name="phi4_mini",
        families="Phi-4-mini",
        checked="llama.cpp models/templates/llama-cpp-microsoft-Phi-4-mini-instruct.jinja; "
        "vLLM examples/tool_chat_template_phi4_mini.jinja",
        example='<|tool_call|>[{"name": "add", "arguments": {"a": 1}}, '
        '{"name": "look_up", "arguments": {}}]<|/tool_call|>',
        marks=("<|/tool_call|>", "<|/tool|>", "functools["),
        opens=("<|tool_call|>", "functools"),
        listed=True,
        ends=("<|/tool_call|>",),
        object=NAME,
        special=True,
        begin="<|tool_call|>[",
        middle=", ",
        end="]<|/tool_call|>",
    ),
    ToolFormat(
        name="granite",
        families="Granite 3",
        checked="the chat template of ibm-granite/granite-vision-3.1-2b-preview; "
        "vLLM's documentation of granite_tool_parser",
        example='<|tool_call|>[{"name": "add", "arguments": {"a": 1}}, '
        '{"name": "look_up", "arguments": {}}]',
        marks=("<|tool_call|>",),
        opens=("<|tool_call|>", "<tool_call>"),
        listed=True,
        ends=("</tool_call>",),
        object=NAME,
        special=True,
        begin="<|tool_call|>[",
        middle=", ",
        end="]",
    ),
    ToolFormat(
        name="nemotron",
        families="Nemotron Nano 2, Llama Nemotron",
        checked="llama.cpp models/templates/NVIDIA-Nemotron-Nano-v2.jinja",
        example='<TOOLCALL>[{"name": "add", "arguments": {"a": 1}}, '
        '{"name": "look_up", "arguments": {}}]</TOOLCALL>',
        marks=("<TOOLCALL>",),
        opens=("<TOOLCALL>",),
        listed=True,
        ends=("</TOOLCALL>",),
        object=NAME,
        begin="<TOOLCALL>[",
        middle=", ",
        end="]</TOOLCALL>",
    ),
    ToolFormat(
        name="hunyuan",
        families="Hunyuan A13B",
        checked="vLLM examples/tool_chat_template_hunyuan_a13b.jinja",
        example='<tool_calls>[{"name": "add", "arguments": {"a": 1}}, '
        '{"name": "look_up", "arguments": {}}]</tool_calls>',
        marks=("<tool_calls>[",),
        opens=("<tool_calls>",),
        listed=True,
        ends=("</tool_calls>",),
        object=NAME,
        begin="<tool_calls>[",
        middle=", ",
        end="]</tool_calls>",
    ),
    ToolFormat(
        name="minimax_m1",
        families="MiniMax M1",
        checked="vLLM examples/tool_chat_template_minimax_m1.jinja",
        example='<tool_calls>\n{"name": "add", "arguments": {"a": 1}}\n'
        '{"name": "look_up", "arguments": {}}\n</tool_calls>',
        marks=("<tool_calls>",),
        opens=("<tool_calls>",),
        ends=("</tool_calls>",),
        object=NAME,
        begin="<tool_calls>\n",
        middle="\n",
        end="\n</tool_calls>",
    ),
    ToolFormat(
        name="glm45",
        families="GLM-4.5, GLM-4.6",
        checked="llama.cpp models/templates/GLM-4.6.jinja",
        example="<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n"
        "<tool_call>look_up\n</tool_call>",
        marks=("<arg_key>",),
        opens=("<tool_call>",),
        head=Head(
            write=("", "\n"),
            ends=("\n", "<arg_key>", "</tool_call>"),
            arguments=Tagged(
                key=("<arg_key>", "</arg_key>"),
                value=("<arg_value>", "</arg_value>"),
                closes=("</tool_call>",),
            ),
        ),
        begin="<tool_call>",
        middle="\n<tool_call>",
    ),
    ToolFormat(
        name="qwen3_coder",
        families="Qwen3-Coder, Qwen3.5, Nemotron 3",
        checked="vLLM examples/tool_chat_template_qwen3coder.jinja",
        example="<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=look_up>\n</function>\n</tool_call>",
        marks=("<function=",),
        opens=("<tool_call>", "<function="),
        ends=("</tool_call>",),
        head=Head(
            write=("<function=", ">\n"),
            begin="<function=",
            ends=(">",),
            until=(">",),
            arguments=_PARAMETER,
        ),
        begin="<tool_call>\n",
        middle="\n</tool_call>\n<tool_call>\n",
        end="\n</tool_call>",
    ),
    ToolFormat(
        name="hermes",
        families="Hermes, Qwen2.5, Qwen3, Granite 4, ERNIE 4.5, SmolLM3",
        checked="vLLM examples/tool_chat_template_hermes.jinja; Ollama's template of "
        "granite4:tiny-h",
        example='<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "look_up", "arguments": {}}\n</tool_call>',
        marks=("<tool_call>",),
        opens=("<tool_call>",),
        listed=True,
        ends=("</tool_call>",),
        object=NAME,
        begin="<tool_call>\n",
        middle="\n</tool_call>\n<tool_call>\n",
        end="\n</tool_call>",
    ),
    ToolFormat(
        name="pythonic",
        families="Llama 3.2, Llama 4, Gemma 3 and ToolACE with lists of Python",
        checked="vLLM examples/tool_chat_template_llama4_pythonic.jinja",
        example='[add(a=1, b="x"), look_up()]',
        marks=("[func_name1(",),
        opens=("<|python_start|>",),
        bare="[{",
        listed=True,
        between=";",
        ends=("<|python_end|>",),
        head=Head(
            write=("", "("), ends=("(",), until=("(",), arguments=Literals(assign="=", closing=")")
        ),
        object=("name", "parameters"),
        by_head=True,
        special=True,
        begin="[",
        middle=", ",
        end="]",
    ),
    ToolFormat(
        name="llama4",
        families="Llama 4",
        checked="vLLM examples/tool_chat_template_llama4_json.jinja",
        example='{"name": "add", "parameters": {"a": 1}}; {"name": "look_up", "parameters": {}}',
        marks=("<|python_start|>", "<|header_start|>"),
        opens=("<|python_start|>",),
        bare="[{",
        listed=True,
        between=";",
        ends=("<|python_end|>",),
        head=Head(
            write=("", "("), ends=("(",), until=("(",), arguments=Literals(assign="=", closing=")")
        ),
        object=("name", "parameters"),
        special=True,
        middle="; ",
    ),
    ToolFormat(
        name="llama3",
        families="Llama 3.1, 3.2 and 3.3",
        checked="vLLM examples/tool_chat_template_llama3.1_json.jinja",
        example='{"name": "add", "parameters": {"a": 1}}; {"name": "look_up", "parameters": {}}',
        marks=("<|python_tag|>", '{"name": function name, "parameters":'),
        opens=("<|python_tag|>",),
        bare="{",
        between=";",
        object=("name", "parameters"),
        special=True,
        middle="; ",
    ),
    ToolFormat(
        name="xlam",
        families="xLAM, and others that write a plain list",
        checked="vLLM examples/tool_chat_template_xlam_qwen.jinja",
        example='[{"name": "add", "arguments": {"a": 1}}, {"name": "look_up", "arguments": {}}]',
        marks=("xLAM", "calls in a single JSON array"),
        bare="[{",
        listed=True,
        object=NAME,
        begin="[",
        middle=", ",
        end="]",
    ),
)
BY_NAME = {each.name: each for each in FORMATS}


def format_of(template: str) -> ToolFormat | None:
    """The format that a chat template writes calls in; None for one that is not known here."""
    for each in FORMATS:
        if any(mark in template for mark in each.marks) and not any(
            other in template for other in each.others
        ):
            return each
    return None
