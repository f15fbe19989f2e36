"""What models of each family write, and the message that it is.

The texts follow the families' documentation and their chat templates. Arguments stand as the
objects that they are; as a text where they were handed out and then broke off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "number"}},
                "required": ["a"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {
                "type": "object",
                "$defs": {"Unit": {"enum": ["C", "F"]}},
                "properties": {
                    "q": {"type": "string"},
                    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "ok": {"type": "boolean"},
                    "deep": {"type": "object"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "unit": {"$ref": "#/$defs/Unit"},
                    "any": {},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "ping"}},
]


@dataclass(frozen=True)
class Said:
    """A message."""

    calls: tuple[tuple[str, Any], ...] = ()
    content: str = ""
    reasoning: str = ""


def said(*calls: tuple[str, Any], content: str = "", reasoning: str = "") -> Said:
    return Said(calls, content, reasoning)


def text(written: str) -> tuple[str, Said]:
    """An answer that is nothing but text."""
    return written, said(content=written)


def add(**arguments: Any) -> tuple[str, Any]:
    return "add", arguments


def look(**arguments: Any) -> tuple[str, Any]:
    return "look_up", arguments


PING = ("ping", {})
ALL = {
    "q": 'é🙂 "x" \\ </s>', "maybe": None, "ok": True,
    "deep": {"a": [1, {"b": None}], "c": {}}, "tags": ["x", ""], "unit": "F", "any": 2.5,
}  # fmt: skip
JSON = (
    '{"q": "é🙂 \\"x\\" \\\\ </s>", "maybe": null, "ok": true, "deep": {"a": [1, {"b": null}], '
    '"c": {}}, "tags": ["x", ""], "unit": "F", "any": 2.5}'
)
PYTHON = (
    "q='é🙂 \"x\" \\\\ </s>', maybe=None, ok=True, deep={'a': [1, {'b': None}], 'c': {}}, "
    "tags=['x', ''], unit=\"F\", any=2.5"
)
LONG = "x" * 300
ONE = '{"name": "add", "arguments": {"a": 1}}'
TWO = '{"name": "look_up", "arguments": {"q": "b"}}'
NONE = '{"name": "ping", "arguments": {}}'
DEEP = f'{{"name": "look_up", "arguments": {JSON}}}'
OTHER = '{"name": "unknown", "arguments": {}}'


def _hermes() -> list[tuple[str, Said]]:
    begin, end = "<tool_call>\n", "\n</tool_call>"
    return [
        text("Just text."),
        (f"{begin}{ONE}{end}", said(add(a=1))),
        (f"{begin}{ONE}{end}\n{begin}{TWO}{end}", said(add(a=1), look(q="b"))),
        (f"{begin}{DEEP}{end}", said(look(**ALL))),
        (f"{begin}{NONE}{end}", said(PING)),
        ("<tool_call>" + ONE + "</tool_call>", said(add(a=1))),
        (
            f"<think>\nHm.\n</think>\n\nI add.\n{begin}{ONE}{end}",
            said(add(a=1), content="I add.", reasoning="Hm."),
        ),
        (f"{begin}{ONE}{end}\nDone.", said(add(a=1), content="Done.")),
        (f"{begin}[{ONE}, {TWO}]{end}", said(add(a=1), look(q="b"))),
        (f"{begin}{ONE}", said(add(a=1))),
        (f"{begin}{ONE}\n</tool_c", said(add(a=1))),
        (f"{begin}{ONE}{end}\n<tool_c", said(add(a=1))),
        (f"{begin}{ONE}{end} 3 <", said(add(a=1), content="3 <")),
        text("Use the <tool_call> tag."),
        text(f"{begin}{OTHER}{end}"),
        text(f"{begin}{ONE[:-3]}"),
        text(f"{begin}{ONE[:-2]}"),
        text("<tool_call>\nadd(1)\n</tool_call>"),
        (
            f'{begin}{{"name": "look_up", "arguments": {{"q": "{LONG}',
            said(("look_up", f'{{"q": "{LONG}')),
        ),
        (
            f'{begin}{{"name": "look_up", "arguments": {{"q": "{LONG}", "any": tr',
            said(("look_up", f'{{"q": "{LONG}", "any": ')),
        ),
        (f'{begin}{{"name": "ping", "arguments": null}}{end}', said(PING)),
        (f'{begin}{{"name": "ping"}}{end}', said(PING)),
        ("<think>cut</thi", said(reasoning="cut")),
        ("<think>a <", said(reasoning="a <")),
    ]


def _ernie() -> list[tuple[str, Said]]:
    return [
        (
            "<think>\nHm.\n</think>\n\n<response>\nYes.\n</response>\n",
            said(content="Yes.", reasoning="Hm."),
        ),
        ("<think>\nHm.\n</think>\nYes.", said(content="Yes.", reasoning="Hm.")),
        (
            f"<think>\nHm.\n</think>\n\n<tool_call>\n{ONE}\n</tool_call>\n",
            said(add(a=1), reasoning="Hm."),
        ),
        ("<response>\nYes.\n</resp", said(content="Yes.")),
        ("<response>\nIs 3 <", said(content="Is 3 <")),
        text("It ends in </response>"),
        (
            f"<response>\nI add.\n</response>\n\n<tool_call>\n{ONE}\n</tool_call>",
            said(add(a=1), content="I add."),
        ),
        text("Say <response> first."),
    ]


def _coder() -> list[tuple[str, Said]]:
    def call(name: str, *arguments: tuple[str, str]) -> str:
        inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
        return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"

    begin = "<tool_call>\n<function=look_up>\n<parameter=q>\n"
    return [
        (call("add", ("a", "1")), said(add(a=1))),
        (call("add", ("a", "1"), ("b", "-2.5e3")), said(add(a=1, b=-2500.0))),
        (call("add", ("a", "one")), said(add(a="one"))),
        (call("ping"), said(PING)),
        (call("add", ("a", "1")) + "\n" + call("ping"), said(add(a=1), PING)),
        (
            call(
                "look_up",
                ("q", ALL["q"]),
                ("maybe", "null"),
                ("ok", "True"),
                ("deep", '{"a": [1, {"b": null}], "c": {}}'),
                ("tags", "['x', '']"),
                ("unit", "F"),
                ("any", "2.5"),
            ),
            said(look(**ALL)),
        ),
        (call("look_up", ("q", "12"), ("any", "12")), said(look(q="12", any=12))),
        (
            call("look_up", ("q", "null"), ("maybe", "nullable")),
            said(look(q="null", maybe="nullable")),
        ),
        (call("look_up", ("maybe", "None"), ("any", "None")), said(look(maybe=None, any="None"))),
        (call("look_up", ("q", "")), said(look(q=""))),
        (call("look_up", ("q", "one\ntwo\n")), said(look(q="one\ntwo\n"))),
        (
            call("look_up", ("q", "if (a < b) {\n  </div>\n}")),
            said(look(q="if (a < b) {\n  </div>\n}")),
        ),
        (
            "I.\n\n<function=look_up>\n<parameter=q>\nx\n</parameter>\n</function>\n</tool_call>",
            said(look(q="x"), content="I."),
        ),
        (
            "<think>\nHm.\n</think>\n\n" + call("add", ("a", "1")),
            said(add(a=1), reasoning="Hm."),
        ),
        (
            "<tool_call><function=add><parameter=a>1</parameter></function></tool_call>",
            said(add(a=1)),
        ),
        (
            "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</tool_call>",
            said(add(a=1)),
        ),
        (call("unknown"), said(content=call("unknown"))),
        (call("add", ("a", "1")) + "\nDone.", said(add(a=1), content="Done.")),
        text(f"{begin}short"),
        (f"{begin}{LONG}\n</param", said(("look_up", f'{{"q": "{LONG}'))),
        (f"{begin}{LONG}\n</parameter>\n</func", said(("look_up", f'{{"q": "{LONG}"'))),
        text("Write <function=NAME> first."),
        text("<tool_call>\n<function=add"),
        (f"{call('ping')}\n<tool_call>\n<fun", said(PING, content="<tool_call>\n")),
        (
            call("look_up", ("unit", '"F"'), ("deep", "not one")),
            said(look(unit='"F"', deep="not one")),
        ),
    ]


def _seed() -> list[tuple[str, Said]]:
    begin, end = "<seed:tool_call>\n<function=", "</function>\n</seed:tool_call>"
    return [
        (f"{begin}add>\n<parameter=a>1</parameter>\n{end}", said(add(a=1))),
        (f"{begin}ping>\n{end}", said(PING)),
        (
            "<seed:think>Hm.</seed:think>\nI look.\n"
            f"{begin}look_up>\n<parameter=q>\nb\n</parameter>\n<parameter=deep>{{'a': 'x'}}"
            f"</parameter>\n{end}",
            said(look(q="\nb\n", deep={"a": "x"}), content="I look.", reasoning="Hm."),
        ),
        (
            f"{begin}add>\n<parameter=a>1</parameter>\n{end}\n{begin}ping>\n{end}",
            said(add(a=1), PING),
        ),
        ("<seed:think>cut", said(reasoning="cut")),
        (
            "<seed:think>Hm.</seed:think>The <seed:tool_call> tag.",
            said(content="The <seed:tool_call> tag.", reasoning="Hm."),
        ),
        text(f"{begin}unknown>\n{end}"),
        text(f"{begin}add>\n<parameter=a>1</par"),
    ]


def _minimax_m2() -> list[tuple[str, Said]]:
    begin, end = "<minimax:tool_call>\n", "</minimax:tool_call>"
    one = '<invoke name="add">\n<parameter name="a">1</parameter>\n</invoke>\n'
    two = '<invoke name="look_up">\n<parameter name="q">b "c"</parameter>\n</invoke>\n'
    return [
        (f"{begin}{one}{end}", said(add(a=1))),
        (f"{begin}{one}{two}{end}", said(add(a=1), look(q='b "c"'))),
        (f'{begin}<invoke name="ping">\n</invoke>\n{end}', said(PING)),
        (
            f"<think>\nHm.\n</think>\n\nI add.\n{begin}{one}{end}",
            said(add(a=1), content="I add.", reasoning="Hm."),
        ),
        (
            f'{begin}<invoke name="look_up">\n<parameter name="tags">["x", ""]</parameter>\n'
            f'<parameter name="ok">false</parameter>\n</invoke>\n{end} Done.',
            said(look(tags=["x", ""], ok=False), content="Done."),
        ),
        (f"{begin}{one}</minimax", said(add(a=1))),
        (f"{begin}{one}<invoke na", said(add(a=1))),
        text("A <minimax:tool_call> begins."),
        (
            f'{begin}<invoke name="unknown">\n</invoke>\n{end}',
            said(content=f'{begin}<invoke name="unknown">\n</invoke>\n{end}'),
        ),
        (
            f'{begin}<invoke name="look_up">\n<parameter name="q">{LONG}</para',
            said(("look_up", f'{{"q": "{LONG}')),
        ),
        text("<response>It is text.</response>"),
    ]


def _glm() -> list[tuple[str, Said]]:
    def call(name: str, *arguments: tuple[str, str]) -> str:
        parts = [f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in arguments]
        return f"<tool_call>{name}\n{''.join(parts)}</tool_call>"

    return [
        (call("add", ("a", "1"), ("b", "2.5")), said(add(a=1, b=2.5))),
        (call("ping"), said(PING)),
        ("<tool_call>ping</tool_call>", said(PING)),
        (call("look_up", ("q", "é🙂"), ("ok", "true")), said(look(q="é🙂", ok=True))),
        (call("look_up", ("deep", '{"a": [null]}')), said(look(deep={"a": [None]}))),
        (
            call("look_up", ("q", " two\nlines "), ("unit", "C")),
            said(look(q=" two\nlines ", unit="C")),
        ),
        (
            f"\n<think>Hm.</think>\nI add.\n{call('add', ('a', '1'))}\n{call('ping')}",
            said(add(a=1), PING, content="I add.", reasoning="Hm."),
        ),
        (
            "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
            said(add(a=1)),
        ),
        (call("unknown", ("a", "1")), said(content=call("unknown", ("a", "1")))),
        (call("add", ("a", "1"))[:-9], said(content=call("add", ("a", "1"))[:-9])),
        (f"{call('ping')}\n<tool_", said(PING)),
        (
            f"<tool_call>look_up\n<arg_key>q</arg_key>\n<arg_value>{LONG}</arg_value>\n</tool",
            said(("look_up", f'{{"q": "{LONG}"')),
        ),
        text("Of <tool_call> and <arg_key>."),
    ]


def _llama3() -> list[tuple[str, Said]]:
    one = '{"name": "add", "parameters": {"a": 1}}'
    two = '{"name": "look_up", "parameters": {"q": "b"}}'
    return [
        (one, said(add(a=1))),
        (f"<|python_tag|>{one}", said(add(a=1))),
        (f"{one}; {two}", said(add(a=1), look(q="b"))),
        (f"<|python_tag|>{one};{two}", said(add(a=1), look(q="b"))),
        (f'{{"type": "function", {one[1:]}', said(add(a=1))),
        (f'{{"name": "look_up", "parameters": {JSON}}}', said(look(**ALL))),
        (f"I add. <|python_tag|>{one}", said(add(a=1), content="I add.")),
        (f"{one} Done.", said(add(a=1), content="Done.")),
        text('{"name": "add", "parameters": {"a": 1'),
        text('{"answer": [1]}'),
        (f"{one}; <|python", said(add(a=1))),
        text('{"name": "unknown", "parameters": {}}'),
    ]


def _pythonic() -> list[tuple[str, Said]]:
    return [
        ("[add(a=1)]", said(add(a=1))),
        ('[add(a=1, b=-2.5), look_up(q="b"), ping()]', said(add(a=1, b=-2.5), look(q="b"), PING)),
        (f"[look_up({PYTHON})]", said(look(**ALL))),
        ("<|python_start|>[ping()]<|python_end|>", said(PING)),
        ("I do. <|python_start|>[ping()]<|python_end|> Done.", said(PING, content="I do.Done.")),
        ("[look_up(q='it\\'s\\n\\x41\\u00e9\\U0001f642')]", said(look(q="it's\nAé🙂"))),
        ("[look_up(q='\\ud83d\\ude42\\q')]", said(look(q="🙂\\q"))),
        ("[look_up(q='it's', any=1)]", said(look(q="it's", any=1))),
        ("[look_up(tags=('x', 'y',), deep={},)]", said(look(tags=["x", "y"], deep={}))),
        ("[ add( a = 1 ) , ping( ) ]", said(add(a=1), PING)),
        ("[look_up(ok=true, any=null)]", said(look(ok=True, any=None))),
        ('{"name": "add", "parameters": {"a": 1}}', said(add(a=1))),
        text("[1] is a source (see there)."),
        text("[add(1)]"),
        text("[add(a=1"),
        ("[add(a=1)", said(add(a=1))),
        text("[unknown(a=1)]"),
        text("[add(a=one)]"),
        (f"[look_up(q='{LONG}", said(("look_up", f'{{"q": "{LONG}'))),
        text("[]"),
        ("[ping()]<|python_e", said(PING)),
    ]


def _llama4() -> list[tuple[str, Said]]:
    one, begin = '{"name": "add", "parameters": {"a": 1}}', "<|python_start|>"
    return [
        *_pythonic(),
        (one, said(add(a=1))),
        (f"{begin}{one}<|python_end|>", said(add(a=1))),
        (f"{begin}I add.<|python_end|>", said(content=f"{begin}I add.<|python_end|>")),
        (f'{one}; {{"name": "ping", "parameters": {{}}}}', said(add(a=1), PING)),
    ]


def _lfm2() -> list[tuple[str, Said]]:
    begin, end = "<|tool_call_start|>", "<|tool_call_end|>"
    return [
        (f'{begin}[look_up(q="12345")]{end}', said(look(q="12345"))),
        (f"{begin}[add(a=1), ping()]{end}", said(add(a=1), PING)),
        (f"{begin}[look_up({PYTHON})]{end}", said(look(**ALL))),
        (f"{begin}[ping()]{end}I do it.", said(PING, content="I do it.")),
        (
            f"<think>Hm.</think>I look.{begin}[look_up(q='x', deep={{\"a\": null}})]{end}",
            said(look(q="x", deep={"a": None}), content="I look.", reasoning="Hm."),
        ),
        (f"{begin}[{ONE}]{end}", said(add(a=1))),
        text(f"{begin}[unknown()]{end}"),
        (f"{begin}[add(a=1)]<|tool_call", said(add(a=1))),
        (f"{begin}[add(a=1), pin", said(add(a=1))),
        text("[ping()]"),
    ]


def _mistral() -> list[tuple[str, Said]]:
    return [
        (f"[TOOL_CALLS] [{ONE}]", said(add(a=1))),
        (f"[TOOL_CALLS][{ONE}, {TWO}]", said(add(a=1), look(q="b"))),
        ('[TOOL_CALLS]add[ARGS]{"a": 1}', said(add(a=1))),
        ('[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 1}', said(add(a=1))),
        ('[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]ping[ARGS]{}', said(add(a=1), PING)),
        ('[TOOL_CALLS]add{"a": 1}', said(add(a=1))),
        (f"[TOOL_CALLS]look_up[ARGS]{JSON}", said(look(**ALL))),
        (
            '[THINK]Hm.[/THINK]I add.[TOOL_CALLS]add[ARGS]{"a": 1}',
            said(add(a=1), content="I add.", reasoning="Hm."),
        ),
        ("[THINK]cut[/THI", said(reasoning="cut")),
        ("[THINK]Hm.[/THINK]\n\nYes.", said(content="Yes.", reasoning="Hm.")),
        (f'[TOOL_CALLS] [{{"id": "x", {ONE[1:]}]', said(add(a=1))),
        text("[TOOL_CALLS]unknown[ARGS]{}"),
        (f"[TOOL_CALLS] [{ONE}, {TWO[:20]}", said(add(a=1))),
        ('[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CA', said(add(a=1))),
        text("An [ARGS] alone, and [TOOL"),
    ]


def _mistral_v11() -> list[tuple[str, Said]]:
    return [
        *(case for case in _mistral() if "[TOOL_CALLS] [" not in case[0] and "[{" not in case[0]),
        (f"Yes.\n[TOOL_CALLS]look_up[ARGS]{JSON} Done.", said(look(**ALL), content="Yes.Done.")),
        text(f"[TOOL_CALLS] [{ONE}]"),
    ]


def _deepseek_v3() -> list[tuple[str, Said]]:
    begin, end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"

    def call(name: str, arguments: str) -> str:
        return (
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
            "<｜tool▁call▁end｜>"
        )

    one = call("add", '{"a": 1}')
    return [
        (f"{begin}{one}{end}", said(add(a=1))),
        (f"{begin}{one}\n{call('ping', '{}')}{end}", said(add(a=1), PING)),
        (f"{begin}{call('look_up', JSON)}{end}", said(look(**ALL))),
        (f"I add.\n{begin}{one}{end}", said(add(a=1), content="I add.")),
        (
            f"<think>\nHm.\n</think>\n\n{begin}{one}{end}",
            said(add(a=1), reasoning="Hm."),
        ),
        (one, said(add(a=1))),
        (f"{begin}{one}<｜tool▁ca", said(add(a=1))),
        text(f"{begin}{call('unknown', '{}')}"),
        text(f"{begin}{one[:-25]}"),
        text("Say <｜tool▁calls▁begin｜> now."),
    ]


def _deepseek_v31() -> list[tuple[str, Said]]:
    begin, end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"

    def call(name: str, arguments: str) -> str:
        return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"

    one = call("add", '{"a": 1}')
    return [
        (f"{begin}{one}{end}", said(add(a=1))),
        (f"{begin}{one}{call('ping', '{}')}{end}", said(add(a=1), PING)),
        (f"{begin}{call('look_up', JSON)}{end}", said(look(**ALL))),
        (f"I add.{begin}{one}{end}", said(add(a=1), content="I add.")),
        (f"<think>Hm.</think>{begin}{one}{end}", said(add(a=1), reasoning="Hm.")),
        (
            f"{begin}{one}{call('unknown', '{}')}{end}",
            said(add(a=1), content=f"{call('unknown', '{}')}{end}"),
        ),
        (f"{begin}{one}", said(add(a=1))),
        text(f"{begin}{one[:-21]}"),
        text("The <｜tool▁sep｜> mark."),
    ]


def _deepseek_v32() -> list[tuple[str, Said]]:
    begin, end = "<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"

    def call(name: str, *arguments: tuple[str, str, str]) -> str:
        parts = [
            f'<｜DSML｜parameter name="{key}" string="{told}">{value}</｜DSML｜parameter>\n'
            for key, told, value in arguments
        ]
        return f'<｜DSML｜invoke name="{name}">\n{"".join(parts)}</｜DSML｜invoke>\n'

    one, deeper = call("add", ("a", "false", "1")), '{"a": [1]}'
    return [
        (f"{begin}{one}{end}", said(add(a=1))),
        (f"{begin}{one}{call('ping')}{end}", said(add(a=1), PING)),
        (
            f"Hm.</think>I look.\n\n{begin}{call('look_up', ('q', 'true', '12'))}{end}",
            said(look(q="12"), content="Hm.</think>I look."),
        ),
        (
            f"<think>Hm.</think>{begin}{call('look_up', ('any', 'true', '12'))}{end}",
            said(look(any="12"), reasoning="Hm."),
        ),
        (
            f"{begin}{call('look_up', ('any', 'false', deeper), ('ok', 'false', 'true'))}",
            said(look(any={"a": [1]}, ok=True)),
        ),
        text(f"{begin}{call('unknown')}{end}"),
        (f"{begin}{one}</｜DSML｜func", said(add(a=1))),
        (f"{begin}{one}<｜DSML｜invoke na", said(add(a=1))),
        text(f"{begin}{one[:-20]}"),
    ]


def _kimi() -> list[tuple[str, Said]]:
    begin, end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"

    def call(name: str, arguments: str) -> str:
        return f"<|tool_call_begin|>{name}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"

    one = call("functions.add:0", '{"a": 1}')
    return [
        (f"{begin}{one}{end}", said(add(a=1))),
        (f"{begin}{one}{call('functions.ping:1', '{}')}{end}", said(add(a=1), PING)),
        (f"{begin}{call('functions.look_up:0', JSON)}{end}", said(look(**ALL))),
        (f"I add.{begin}{call('functions.add:0 ', ' {} ')}{end}", said(add(), content="I add.")),
        (f"<think>Hm.</think>{begin}{one}{end}", said(add(a=1), reasoning="Hm.")),
        (f"{begin}{call('add:0', '{}')}{end}", said(add())),
        (f"{begin}{call('add', '{}')}{end}", said(add())),
        (f"{begin}{one}<|tool_call_b", said(add(a=1))),
        text(f"{begin}{call('functions.unknown:0', '{}')}"),
        text(f"{begin}<|tool_call_begin|>functions.ad"),
        text("No <|tool_call_end|> here."),
    ]


def _harmony() -> list[tuple[str, Said]]:
    think = "<|channel|>analysis<|message|>Hm.<|end|>"
    turn, final = "<|start|>assistant", "<|channel|>final<|message|>"
    call = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'
    unknown = "<|channel|>commentary to=functions.unknown <|constrain|>json<|message|>"
    return [
        (f"{think}{turn}{final}Yes.<|return|>", said(content="Yes.", reasoning="Hm.")),
        (f"{think}{turn}{final}Yes.", said(content="Yes.", reasoning="Hm.")),
        (f"{final}Yes.", said(content="Yes.")),
        (f"{think}{turn}{call}", said(add(a=1), reasoning="Hm.")),
        (f"{think}{turn}{call[:-8]}", said(add(a=1), reasoning="Hm.")),
        (
            f"{think}{turn} to=functions.add<|channel|>commentary json<|message|>"
            '{"a": 1}<|call|>',
            said(add(a=1), reasoning="Hm."),
        ),
        (
            f"{think}{turn}<|channel|>commentary<|message|>I add.<|end|>{turn}{call}",
            said(add(a=1), content="I add.", reasoning="Hm."),
        ),
        (f"{call}{turn}{call}", said(add(a=1), add(a=1))),
        (
            f"<|channel|>commentary to=functions.look_up<|constrain|>json<|message|>{JSON}<|call|>",
            said(look(**ALL)),
        ),
        (
            "<|channel|>analysis to=functions.ping code<|message|>{}<|call|>",
            said(PING),
        ),
        (
            f"{think}{turn}<|channel|>analysis<|message|>So.<|end|>{turn}{final}Yes.",
            said(content="Yes.", reasoning="Hm.\n\nSo."),
        ),
        (
            f"<|channel|>commentary<|message|>First.<|end|>{turn}{final}Then.",
            said(content="First.\n\nThen."),
        ),
        ("<|channel|>analysis<|message|>cut", said(reasoning="cut")),
        ("<|channel|>analysis<|mess", said()),
        (f"{think}<|start|>assis", said(reasoning="Hm.")),
        (f"{think}{turn}<|channel|>commentary to=functions.ad", said(reasoning="Hm.")),
        (f"{unknown}{{}}<|call|>", said(content=f"{unknown}{{}}")),
        text(f"{unknown.replace('unknown', 'add')}{{a: 1}}"),
        text("No header at all."),
        (
            f'<|channel|>commentary to=functions.look_up json<|message|>{{"q": "{LONG}',
            said(("look_up", f'{{"q": "{LONG}')),
        ),
        (f"{final}To write <b> or 3 < 4", said(content="To write <b> or 3 < 4")),
    ]


def _gemma4() -> list[tuple[str, Said]]:
    begin, end, quote = "<|tool_call>", "<tool_call|>", '<|"|>'
    think = "<|channel>thought\nHm.\n<channel|>"
    everything = (
        f"q:{quote}{ALL['q']}{quote},maybe:null,ok:true,deep:{{a:[1,{{b:null}}],c:{{}}}},"
        f"tags:[{quote}x{quote},{quote}{quote}],unit:{quote}F{quote},any:2.5"
    )
    return [
        (f"{begin}call:add{{a:1}}{end}", said(add(a=1))),
        (
            f"{begin}call:add{{a:1,b:-2.5}}{end}{begin}call:ping{{}}{end}",
            said(add(a=1, b=-2.5), PING),
        ),
        (f"{begin}call:look_up{{{everything}}}{end}", said(look(**ALL))),
        (f"{think}{begin}call:ping{{}}{end}", said(PING, reasoning="Hm.")),
        (f"{think}Yes.", said(content="Yes.", reasoning="Hm.")),
        ("<|channel>thought\n<channel|>Yes.", said(content="Yes.")),
        (f"{think}I do.{begin}call:ping{{}}{end}", said(PING, content="I do.", reasoning="Hm.")),
        (
            f"{think}So.{think}{begin}call:ping{{}}{end}<|tool_response>",
            said(PING, content="So.", reasoning="Hm.\n\nHm."),
        ),
        (f"{begin}call:look_up{{{quote}q{quote}:{quote}a\nb{quote}}}{end}", said(look(q="a\nb"))),
        (
            f'{begin}call:look_up{{q:"b", ok: True, maybe: None}}{end}',
            said(look(q="b", ok=True, maybe=None)),
        ),
        text(f"{begin}call:unknown{{}}{end}"),
        text(f"{begin}call:add{{a:1"),
        (f"{begin}call:add{{a:1}}", said(add(a=1))),
        (f"{begin}call:add{{a:1}}<tool_c", said(add(a=1))),
        (f"{begin}call:look_up{{q:{quote}{LONG}<|", said(("look_up", f'{{"q": "{LONG}'))),
        text("A <|tool_call> token."),
        ("<|channel>thought\ncut<chann", said(reasoning="cut")),
    ]


def _functiongemma() -> list[tuple[str, Said]]:
    begin, end, quote = "<start_function_call>", "<end_function_call>", "<escape>"
    return [
        (f"{begin}call:add{{a:1}}{end}", said(add(a=1))),
        (
            f"{begin}call:look_up{{q:{quote}b, c{quote}, ok:false}}{end}",
            said(look(q="b, c", ok=False)),
        ),
        (f"{begin}call:ping{{}}{end}<start_function_response>", said(PING)),
        (f"I do. {begin}call:ping{{}}{end}", said(PING, content="I do.")),
        text(f"{begin}call:add{{a:}}{end}"),
        (f"{begin}call:ping{{}}{end}{begin}call:ping{{}}{end}", said(PING, PING)),
    ]


def _command_r7b() -> list[tuple[str, Said]]:
    think = "<|START_THINKING|>Hm.<|END_THINKING|>"
    begin, end = "<|START_ACTION|>", "<|END_ACTION|>"
    one = '{"tool_call_id": "0", "tool_name": "add", "parameters": {"a": 1}}'
    two = '{"tool_call_id": "1", "tool_name": "look_up", "parameters": {"q": "b"}}'
    return [
        (f"{think}{begin}[\n    {one}\n]{end}", said(add(a=1), reasoning="Hm.")),
        (f"{begin}[\n    {one},\n    {two}\n]{end}", said(add(a=1), look(q="b"))),
        ("<|START_RESPONSE|>Yes.<|END_RESPONSE|>", said(content="Yes.")),
        (
            f"{think}<|START_RESPONSE|>Yes.<|END_RESPONSE|>",
            said(content="Yes.", reasoning="Hm."),
        ),
        ("<|START_RESPONSE|>Yes.", said(content="Yes.")),
        ("<|START_RESPONSE|>Yes.<|END_RES", said(content="Yes.")),
        text("Plain."),
        (
            f'{begin}[{{"tool_call_id": "0", "tool_name": "look_up", "parameters": {JSON}}}]{end}',
            said(look(**ALL)),
        ),
        text(f"{begin}[{one.replace('add', 'unknown')}]{end}"),
        (f"{begin}[\n    {one},\n    {two[:30]}", said(add(a=1))),
        (f"{think}{begin}[{one}]<|END_AC", said(add(a=1), reasoning="Hm.")),
    ]


def _command_r() -> list[tuple[str, Said]]:
    one = (
        '{\n        "tool_name": "add",\n        "parameters": {\n            "a": 1\n        }\n}'
    )
    two = '{"tool_name": "look_up", "parameters": {"q": "b"}}'
    direct = 'Action: ```json\n[\n    {"tool_name": "directly-answer", "parameters": {}}\n]```'
    return [
        (f"Action: ```json\n[\n    {one}\n]```", said(add(a=1))),
        (f"Action:\n```json\n[\n    {one},\n    {two}\n]```\n", said(add(a=1), look(q="b"))),
        (f"I will add.\nAction: ```json\n[{one}]```", said(add(a=1), content="I will add.")),
        (f"Action: ```json\n[{one}]\n``", said(add(a=1))),
        text(direct),
        text("Action: take a walk."),
        text("Action: ```json\n[1]\n```"),
    ]


def _listed(begin: str, end: str) -> list[tuple[str, Said]]:
    """Formats that have a list of objects in tags."""
    return [
        (f"{begin}[{ONE}]{end}", said(add(a=1))),
        (f"{begin}[{ONE}, {TWO}, {NONE}]{end}", said(add(a=1), look(q="b"), PING)),
        (f"{begin}[{DEEP}]{end}", said(look(**ALL))),
        (f"I add.\n{begin} [\n{ONE}\n]\n{end}", said(add(a=1), content="I add.")),
        text(f"{begin}[{OTHER}]{end}"),
        text(f"{begin}[{ONE[:-4]}"),
        (f"{begin}[{ONE}, {TWO[:-4]}", said(add(a=1))),
        (f"{begin}[{ONE}]{end} Done.", said(add(a=1), content="Done.")),
        text(f"One writes {begin} for it."),
        text(f"{begin}[]{end}"),
    ]


def _hunyuan() -> list[tuple[str, Said]]:
    think = "<think>\nHm.\n</think>\n"
    calls = f"<tool_calls>[{ONE}]</tool_calls>"
    return [
        *_listed("<tool_calls>", "</tool_calls>"),
        (f"{think}<answer>\nYes.\n</answer>", said(content="Yes.", reasoning="Hm.")),
        (f"{think}<answer>\n{calls}\n</answer>", said(add(a=1), reasoning="Hm.")),
        (f"{think}{calls}", said(add(a=1), reasoning="Hm.")),
        (f"{think}<answer>\nYes.\n</ans", said(content="Yes.", reasoning="Hm.")),
        (f"<tool_calls>[{ONE}]</tool_c", said(add(a=1))),
    ]


def _minimax_m1() -> list[tuple[str, Said]]:
    return [
        (f"<tool_calls>\n{ONE}\n</tool_calls>", said(add(a=1))),
        (f"<tool_calls>\n{ONE}\n{TWO}\n{NONE}\n</tool_calls>", said(add(a=1), look(q="b"), PING)),
        (
            f"<think>\nHm.\n</think>\n\nI add.\n<tool_calls>\n{ONE}\n</tool_calls>",
            said(add(a=1), content="I add.", reasoning="Hm."),
        ),
        (f"<tool_calls>\n{ONE}\n{TWO[:20]}", said(add(a=1))),
        text(f"<tool_calls>\n{OTHER}\n</tool_calls>"),
        (f"<tool_calls>\n{ONE}\n</tool_", said(add(a=1))),
    ]


def _xlam() -> list[tuple[str, Said]]:
    return [
        (f"[{ONE}]", said(add(a=1))),
        (f"[{ONE}, {TWO}]", said(add(a=1), look(q="b"))),
        (f"\n[{DEEP}]", said(look(**ALL))),
        (ONE, said(add(a=1))),
        text(f"[{OTHER}]"),
        text("[1, 2]"),
        text(f"[{ONE[:-4]}"),
        text("No tool fits."),
        (f"[{ONE}] Done.", said(add(a=1), content="Done.")),
    ]


def _phi() -> list[tuple[str, Said]]:
    return [
        *_listed("<|tool_call|>", "<|/tool_call|>"),
        (f"functools[{ONE}]", said(add(a=1))),
        (f"functools[{ONE}, {TWO}]", said(add(a=1), look(q="b"))),
        text("The functools module."),
        (f"<|tool_call|>[{ONE}]<|/tool", said(add(a=1))),
    ]


def _granite() -> list[tuple[str, Said]]:
    return [
        *_listed("<|tool_call|>", ""),
        (f"<tool_call>[{ONE}]", said(add(a=1))),
        (f"<think>Hm.</think>\n\n<|tool_call|>[{ONE}]", said(add(a=1), reasoning="Hm.")),
    ]


def _nemotron() -> list[tuple[str, Said]]:
    return [
        *_listed("<TOOLCALL>", "</TOOLCALL>"),
        (f"<think>\nHm.\n</think>\n\n<TOOLCALL>[{ONE}]</TOOL", said(add(a=1), reasoning="Hm.")),
    ]


BY_TEMPLATE = {
    "hermes": _hermes(), "ernie": _ernie(), "qwen3_coder": _coder(), "seed_oss": _seed(),
    "minimax_m2": _minimax_m2(), "glm45": _glm(), "llama3": _llama3(), "pythonic": _pythonic(),
    "llama4": _llama4(),
    "lfm2": _lfm2(), "mistral": _mistral(), "mistral_v11": _mistral_v11(),
    "deepseek_v3": _deepseek_v3(),
    "deepseek_v31": _deepseek_v31(), "deepseek_v32": _deepseek_v32(),
    "kimi_k2": _kimi(), "harmony": _harmony(),
    "gemma4": _gemma4(), "functiongemma": _functiongemma(), "command_r7b": _command_r7b(),
    "command_r": _command_r(), "hunyuan": _hunyuan(), "minimax_m1": _minimax_m1(),
    "xlam": _xlam(), "phi4_mini": _phi(), "granite": _granite(), "nemotron": _nemotron(),
}  # fmt: skip
CASES = [(name, text, message) for name, cases in BY_TEMPLATE.items() for text, message in cases]
