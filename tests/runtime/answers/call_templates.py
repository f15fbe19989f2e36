"""How chat templates write the calls of an assistant's turn: a small template for each format.

They are written for these tests, after what families document. Values become text as in their
published templates: in some by Jinja's `tojson`, and in some by `string`, as Python shows them.
"""

from __future__ import annotations

BEGIN, END = "<begin of the assistant>", "<end of turn>"
_TURN = """{%% for m in messages %%}{%% if m.role == 'user' %%}{{ m.content }}{%% else %%}\
{{ begin }}{{ m.content or '' }}{%% set calls = m.tool_calls %%}%s{{ end }}{%% endif %%}\
{%% endfor %%}{%% if add_generation_prompt %%}{{ begin }}{%% endif %%}"""
_EACH = """{%% for call in calls %%}{%% set name, args = call.function.name, \
call.function.arguments %%}%s{%% endfor %%}"""

_GEMMA = """{%% macro show(value) %%}{%% if value is string %%}%(q)s{{ value }}%(q)s{%% elif value \
is boolean %%}{{ 'true' if value else 'false' }}{%% elif value is mapping %%}{{ '{' }}{%% for k, v \
in value | dictsort %%}{{ k }}:{{ show(v) }}{{ ',' if not loop.last }}{%% endfor %%}{{ '}' }}\
{%% elif value is sequence %%}[{%% for v in value %%}{{ show(v) }}{{ ',' if not loop.last }}\
{%% endfor %%}]{%% else %%}{{ value }}{%% endif %%}{%% endmacro %%}"""
_GEMMA_CALL = """%s{{ name + '{' }}{%% for k, v in args | dictsort %%}{{ k }}:{{ show(v) }}\
{{ ',' if not loop.last }}{%% endfor %%}{{ '}' }}%s"""


def _turn(calls: str, macros: str = "") -> str:
    # Jinja drops some line breaks of a template, and none of a variable.
    return macros + _TURN % (calls.replace("\n", "{{ nl }}"))


def _each(call: str, before: str = "", after: str = "", macros: str = "") -> str:
    return _turn(before + _EACH % call + after, macros)


def _objects(keys: tuple[str, str], before: str, between: str, after: str) -> str:
    """Objects of JSON with these names for a call and its arguments."""
    name, arguments = keys
    call = f'"{name}": "{{{{ name }}}}", "{arguments}": {{{{ args | tojson }}}}'
    more = f"{{% if not loop.last %}}{between}{{% endif %}}"
    return _each(f"{{{{ '{{' }}}}{call}{{{{ '}}' }}}}{more}", before, after)


def _tagged(call: tuple[str, str], value: str, key: tuple[str, str, str]) -> str:
    """A call with each of its arguments in tags."""
    begin, middle, end = key
    argument = f"{begin}{{{{ k }}}}{middle}{{{{ {value} }}}}{end}"
    return f"{call[0]}{{% for k, v in args | items %}}{argument}{{% endfor %}}{call[1]}"


_TEXT = "v if v is string else v | tojson"
_NAME, _TOOL_NAME = ("name", "arguments"), ("tool_name", "parameters")
_PYTHON = """{{ name }}({% for k, v in args | items %}{{ k }}={{ show(v) }}\
{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not loop.last }}"""
_SHOWN = (
    """{% macro show(v) %}{{ v | tojson if v is string or v is mapping else v }}{% endmacro %}"""
)
_QUOTED = """{% macro show(v) %}{% if v is string %}'{{ v }}'{% elif v is mapping %}\
{{ v | tojson }}{% else %}{{ v }}{% endif %}{% endmacro %}"""

TEMPLATES = {
    "harmony": _each(
        " to=functions.{{ name }}<|channel|>commentary json<|message|>{{ args | tojson }}<|call|>"
    ),
    "gemma4": _each(
        _GEMMA_CALL % ("<|tool_call>call:", "<tool_call|>"), macros=_GEMMA % {"q": '<|"|>'}
    ),
    "functiongemma": _each(
        _GEMMA_CALL % ("<start_function_call>call:", "<end_function_call>"),
        macros=_GEMMA % {"q": "<escape>"},
    ),
    "deepseek_v31": _each(
        "<｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>{{ args | tojson }}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v3": _each(
        "{{ nl if not loop.first }}<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ name }}\n"
        "```json\n"
        "{{ args | tojson }}\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v32": _each(
        _tagged(
            ('\n<｜DSML｜invoke name="{{ name }}">\n', "</｜DSML｜invoke>"),
            _TEXT,
            (
                '<｜DSML｜parameter name="',
                "\" string=\"{{ 'true' if v is string else 'false' }}\">",
                "</｜DSML｜parameter>\n",
            ),
        ),
        "\n\n<｜DSML｜function_calls>",
        "\n</｜DSML｜function_calls>",
    ),
    "kimi_k2": _each(
        "<|tool_call_begin|>functions.{{ name }}:{{ loop.index0 }}<|tool_call_argument_begin|>"
        "{{ args | tojson }}<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    "minimax_m2": _each(
        _tagged(
            ('<invoke name="{{ name }}">\n', "</invoke>\n"),
            _TEXT,
            ('<parameter name="', '">', "</parameter>\n"),
        ),
        "\n<minimax:tool_call>\n",
        "</minimax:tool_call>",
    ),
    "seed_oss": _each(
        _tagged(
            ("\n<seed:tool_call>\n<function={{ name }}>\n", "</function>\n</seed:tool_call>"),
            "v | string",
            ("<parameter=", ">", "</parameter>\n"),
        )
    ),
    "command_r7b": _each(
        '    {{ \'{\' }}"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ name }}", '
        "\"parameters\": {{ args | tojson }}{{ '}' }}{{ ',' if not loop.last }}\n",
        "<|START_ACTION|>[\n",
        "]<|END_ACTION|>",
    ),
    "command_r": _each(
        "    {{ '{' }}\n        \"tool_name\": \"{{ name }}\",\n        \"parameters\": "
        "{{ args | tojson }}\n    {{ '}' }}{% if not loop.last %},\n{% endif %}",
        "Action:\n```json\n[\n",
        "\n]```",
    ),
    "mistral_v11": _each("[TOOL_CALLS]{{ name }}[ARGS]{{ args | tojson }}"),
    "mistral": _objects(_NAME, "[TOOL_CALLS] [", ", ", "]"),
    "lfm2": _each(_PYTHON, "<|tool_call_start|>[", "]<|tool_call_end|>", _QUOTED),
    "phi4_mini": _objects(_NAME, "<|tool_call|>[", ", ", "]<|/tool_call|>"),
    "granite": _objects(_NAME, "<|tool_call|>[", ", ", "]"),
    "nemotron": _objects(_NAME, "<TOOLCALL>[", ", ", "]</TOOLCALL>"),
    "hunyuan": _objects(_NAME, "<tool_calls>[", ", ", "]</tool_calls>"),
    "minimax_m1": _objects(_NAME, "<tool_calls>\n", "\n", "\n</tool_calls>"),
    "glm45": _each(
        _tagged(
            ("\n<tool_call>{{ name }}\n", "</tool_call>"),
            _TEXT,
            ("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
        )
    ),
    "qwen3_coder": _each(
        _tagged(
            ("\n<tool_call>\n<function={{ name }}>\n", "</function>\n</tool_call>"),
            "v | tojson if v is mapping or (v is sequence and v is not string) else v | string",
            ("<parameter=", ">\n", "\n</parameter>\n"),
        )
    ),
    "hermes": _objects(_NAME, "<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"),
    "pythonic": _each(_PYTHON, "[", "]", _SHOWN),
    "llama4": _objects(("name", "parameters"), "", "; ", ""),
    "llama3": _objects(("name", "parameters"), "", "; ", ""),
    "xlam": _objects(_NAME, "[", ", ", "]"),
}  # fmt: skip
