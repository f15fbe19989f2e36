"""Chat templates in the style of well-known models, byte for byte as transformers renders them."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from ingot.errors import RequestError
from ingot.runtime.chat import ChatTemplate
from ingot.runtime.tokenizer import Tokenizer
from tests.runtime.chat_templates import MORE
from tests.runtime.fake_tokenizer import byte_level
from tests.support.core import core

LLAMA3 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "You have access to the following functions.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""  # noqa: E501

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and reasoning_content %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content + '\\n</think>\\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""  # noqa: E501

MISTRAL = """{{ bos_token }}{% for message in messages %}
    {% if message['role'] == 'user' %}
[INST] {{ message['content'] }} [/INST]
    {%- elif message['role'] == 'assistant' %}
 {{ message['content'] }}{{ eos_token }}
    {%- elif message['role'] == 'tool' %}{% continue %}
    {% else %}
        {{ raise_exception('Only user and assistant roles are supported!') }}
    {% endif %}
{% endfor %}"""

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] +"
    " '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

GENERATION = """{% for m in messages %}
{%- if m.role == 'assistant' -%}
<a>{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}</a>
{%- else -%}
<{{ m.role }}>{{ m.content }}</{{ m.role }}>
{% if loop.index > 5 %}{% break %}{% endif %}
{%- endif -%}
{% endfor %}{{ tools | tojson if tools }}{{ dict(a=1) | tojson }}"""

TEMPLATES = {
    "llama3": LLAMA3,
    "qwen": QWEN,
    "mistral": MISTRAL,
    "chatml": CHATML,
    "generation": GENERATION,
    **MORE,
}
USER = {"role": "user", "content": "  Hi, <b>\"you\"</b> & 'me' — ünïcödé 🙂\n"}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello there  "}
SYSTEM = {"role": "system", "content": "Be brief.\n"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "function": {"name": "sum", "arguments": {"b": 1.5, "a": "é<&>"}}}
    ],
}
RESULT = {"role": "tool", "content": '{"x": 3}', "name": None}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "sum",
            "description": "Adds <numbers> & “more”",
            "parameters": {"type": "object", "properties": {"b": {"type": "number"}, "a": {}}},
        },
    }
]
CHATS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ANSWER, USER, ANSWER, USER],
    "reasoning": [USER, {**ANSWER, "reasoning": "because"}],
    "tools": [SYSTEM, USER, CALL, RESULT, RESULT, USER],
    "calls at once": [
        SYSTEM,
        {"role": "user", "content": "two"},
        {**CALL, "content": None, "tool_calls": [{**CALL["tool_calls"][0], "id": "call12345"}] * 2},
        {**RESULT, "tool_call_id": "call12345"},
        {"role": "tool", "content": "plain text"},
        ANSWER,
    ],
    "thinking": [USER, {"role": "assistant", "content": "so", "thinking": "hm"}, USER],
    "two systems": [SYSTEM, {"role": "system", "content": "And polite."}, USER, ANSWER, USER],
    "empty": [{"role": "user", "content": ""}],
    "an answer": [USER, ANSWER],
}


def both(template, messages, **options):
    """Ours and transformers' prompt; an error in place of a prompt is the string "refused"."""
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": None}
    data = byte_level().to_str()
    ours = Tokenizer(data.encode(), config, chat_template=template)
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>", chat_template=template
    )
    results = []
    for render in (
        lambda: ours.apply_chat_template(messages, **options),
        lambda: theirs.apply_chat_template(messages, tokenize=False, **options),
    ):
        try:
            results.append(render())
        except Exception:
            results.append("refused")
    return results


@pytest.mark.cases(core=8)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("template", core("llama3", "qwen", "mistral", further=TEMPLATES))
def test_prompts_are_the_bytes_of_transformers(template, chat):
    for tools in (None, [], TOOLS):
        for add in (True, False):
            ours, theirs = both(
                TEMPLATES[template], CHATS[chat], tools=tools, add_generation_prompt=add
            )
            assert ours == theirs
    variables = {"enable_thinking": False, "date_string": "1 Jan", "add_generation_prompt": True}
    ours, theirs = both(TEMPLATES[template], CHATS[chat], **variables)
    assert ours == theirs


@pytest.mark.cases(core=12)
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("content", ["so far", "trailing space ", " \n ", "two\nlines"])
def test_a_message_that_goes_on_is_left_open(template, content):
    chat = [USER, {"role": "assistant", "content": content}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    ours, theirs = both(TEMPLATES[template], chat, **options)
    assert ours == theirs
    parts = [USER, {"role": "assistant", "content": [{"type": "text", "text": content}]}]
    ours, theirs = both("{{ messages[1].content[0].text }}END", parts, **options)
    assert ours == theirs == content


ALL_PARTS = "{% for p in messages[-1].content %}{{ p.text }}|{% endfor %}END"


@pytest.mark.parametrize("texts", [["one", "two"], ["one", "two", "three"], ["", "two"]])
def test_of_a_message_in_parts_the_last_text_goes_on(texts):
    parts = [{"type": "text", "text": text} for text in texts]
    chat = [USER, {"role": "assistant", "content": parts}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    ours, theirs = both(ALL_PARTS, chat, **options)
    assert ours == theirs == "|".join(texts)


@pytest.mark.cases(core=3)
@pytest.mark.parametrize("template", TEMPLATES)
def test_most_of_these_prompts_are_not_errors(template):
    """The negative control: two errors are equal, too."""
    prompts = [
        both(TEMPLATES[template], chat, add_generation_prompt=True)[0] for chat in CHATS.values()
    ]
    assert sum(prompt != "refused" for prompt in prompts) >= 6
    assert len(set(prompts)) > 5 and all(prompts)


def test_what_must_not_be_escaped_is_not():
    assert "Adds <numbers> & “more”" in both(QWEN, [USER], tools=TOOLS)[0]


def test_a_template_that_differs_by_one_space_is_told_apart():
    config = {"bos_token": "<s>"}
    ours = Tokenizer(byte_level().to_str().encode(), config, chat_template=MORE["gemma"] + " ")
    assert ours.apply_chat_template([USER]) != both(MORE["gemma"], [USER])[1]


HOSTILE = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append(1) }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ dict.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "{{ (messages|attr('__class__')).__base__ }}",
    "{{ tojson.__globals__ }}{{ strftime_now.__globals__['os'] }}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for a in range(9999) %}{% for b in range(9999) %}xxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
    "{{ lookup }}{% include 'x' %}",
    "{{ 1 / 0 }}",
    "{{ messages[7].content.x }}",
    "{% for %}",
    "{{ messages | nosuchfilter }}",
]


@pytest.mark.parametrize("template", HOSTILE)
def test_a_hostile_or_broken_template_is_an_error_of_the_request(template):
    tokenizer = Tokenizer(byte_level().to_str().encode())
    with pytest.raises(RequestError):
        tokenizer.apply_chat_template([USER], chat_template=template)


@pytest.mark.parametrize(
    "template", ["{{ raise_exception.__globals__ }}", "{{ '{0.__class__}'.format(messages) }}"]
)
def test_what_the_sandbox_hides_is_printed_as_nothing(template):
    tokenizer = Tokenizer(byte_level().to_str().encode())
    assert tokenizer.apply_chat_template([USER], chat_template=template) == ""


def test_both_ways_to_end_a_prompt_exclude_each_other():
    tokenizer = Tokenizer(byte_level().to_str().encode())
    with pytest.raises(RequestError, match="both set"):
        tokenizer.apply_chat_template([USER], chat_template=CHATML, continue_final_message=True)


def test_the_callers_messages_are_left_alone():
    message = {"role": "user", "content": "a", "reasoning": "b"}
    both("{{ messages[0].update(x=1) }}", [message])
    both(CHATML, [message], continue_final_message=True, add_generation_prompt=False)
    assert message == {"role": "user", "content": "a", "reasoning": "b"}


@pytest.mark.parametrize("name", ["enable_thinking", "thinking"])
def test_a_template_can_have_a_switch_for_thinking(name):
    template = ChatTemplate(
        f"{{% if not {name} is defined %}}{{% set {name} = true %}}{{% endif %}}"
        f"{{% for m in messages %}}{{{{ m.thinking }}}}{{% endfor %}}{{{{ {name} }}}}"
    )
    asked = [{"role": "user", "content": "Hello"}]
    assert template.render(asked) == "True"
    for thinks in (True, False):
        assert template.render(asked, **template.switched(thinks)) == str(thinks)
    assert template.switched(False) == {name: False}


@pytest.mark.parametrize("content", ["a\udcff", [{"type": "text", "text": "a\udcff"}]])
def test_a_message_that_is_no_text_is_named_by_its_own_character(content):
    """And not by where it stands in the prompt."""
    with pytest.raises(RequestError, match="not valid UTF-8: character 1 is a lone surrogate"):
        ChatTemplate("A long prompt: {{ messages }}").render([{"role": "user", "content": content}])


def test_a_tokenizer_knows_the_switch_of_each_template():
    several = [
        {"name": "default", "template": "{{ enable_thinking }}"},
        {"name": "tool_use", "template": "{{ messages }}"},
    ]
    tokenizer = Tokenizer(byte_level().to_str().encode(), {"chat_template": several})
    assert tokenizer.thinking_switch(False) == {"enable_thinking": False}
    assert tokenizer.thinking_switch(True, "{{ thinking }}") == {"thinking": True}
    with pytest.raises(RequestError, match="has no switch"):
        tokenizer.thinking_switch(False, "tool_use")
    assert Tokenizer(byte_level().to_str().encode()).thinking_switch(None) == {}


def test_a_template_may_take_no_system_message():
    own = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = Tokenizer(byte_level().to_str().encode(), {"chat_template": own})
    tokenizer.check_system()
    with pytest.raises(RequestError, match="leaves out the system message"):
        tokenizer.check_system("{{ messages[-1].content }}")
    with pytest.raises(RequestError, match="refuses the messages: no system"):
        tokenizer.check_system(
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        )


def test_thinking_that_cannot_be_switched_off_is_refused():
    template = ChatTemplate("{% for m in messages %}{{ m.thinking }}{{ m.content }}{% endfor %}")
    assert template.switched(True) == {}
    with pytest.raises(RequestError, match="has no switch for thinking") as caught:
        template.switched(False)
    assert "enable_thinking, thinking" in caught.value.hint


def test_whether_there_is_a_template():
    def has_one(config, file=None):
        data = byte_level().to_str().encode()
        return Tokenizer(data, config, chat_template=file).has_chat_template

    assert has_one({"chat_template": "C"}) and has_one({}, "F")
    assert not has_one({}) and not has_one({"chat_template": [{"name": "rag", "template": "R"}]})


GOING = {"add_generation_prompt": True}
PARTS = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]


def as_parts(chat):
    return [{**message, "content": PARTS} for message in chat]


@pytest.mark.cases(core=5)
@pytest.mark.parametrize("template", TEMPLATES)
def test_parts_are_read_as_transformers_does_or_joined(template):
    """A template that reads parts writes both texts; one that does not must get them joined."""
    asks = [{"role": "user", "content": "Hello\nthere"}]
    ours, with_parts = both(TEMPLATES[template], as_parts(asks), **GOING)
    joined = both(TEMPLATES[template], asks, **GOING)[1]
    reads = "Hello" in with_parts and "'Hello'" not in with_parts and '"Hello"' not in with_parts
    assert ours == (with_parts if reads else joined)
    assert "Hello" in ours and "there" in ours


def test_some_templates_read_parts_and_some_do_not():
    """The negative control: both ways are taken above."""
    looped = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    chat = as_parts([{"role": "user"}])
    assert both(looped, chat, **GOING) == ["Hellothere"] * 2
    assert both(CHATML, chat, add_generation_prompt=False)[0] == (
        "<|im_start|>user\nHello\nthere<|im_end|>\n"
    )
    assert both("{{ messages[0].content }}", chat)[0] == "Hello\nthere"
    assert both("{{ messages[0].content | tojson }}", chat)[0] == '"Hello\\nthere"'


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "kind 'image_url'"),
        ({"type": "image"}, "kind 'image'"),
        ({"type": "text"}, "'type': 'text'"),
        ({"type": "text", "text": 5}, "'text': 5"),
    ],
)
def test_a_part_that_is_no_text_is_refused_by_its_kind(part, found):
    tokenizer = Tokenizer(byte_level().to_str().encode())
    for template in (CHATML, "{{ messages[0].content[0].text }}"):
        with pytest.raises(RequestError, match=found) as caught:
            tokenizer.apply_chat_template(
                [{"role": "user", "content": [PARTS[0], part]}], chat_template=template
            )
        assert "text" in caught.value.hint


def test_a_list_that_is_data_stays_as_it_is():
    ours, theirs = both("{{ messages[0].content | tojson }}", [{"role": "tool", "content": [1]}])
    assert ours == theirs == "[1]"
