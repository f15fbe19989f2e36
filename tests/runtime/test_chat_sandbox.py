"""Chat templates that never end, or make too much."""

from __future__ import annotations

import pytest

from ingot.errors import RequestError, TokenizerError
from ingot.runtime import chat_sandbox
from ingot.runtime.chat_sizes import size_of
from ingot.runtime.template_names import named_templates, template_source
from ingot.runtime.tokenizer import Tokenizer
from tests.runtime.fake_tokenizer import byte_level
from tests.runtime.test_chat import USER, both

ENDLESS = [
    "{% set r = [1] * 400 %}{% for a in r %}{% for b in r %}{% for c in r %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if a < 0 %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
]


@pytest.mark.parametrize("template", ENDLESS)
def test_a_template_that_does_not_end_is_ended(template, monkeypatch):
    monkeypatch.setattr(chat_sandbox, "MAX_SECONDS", 0.2)
    tokenizer = Tokenizer(byte_level().to_str().encode())
    with pytest.raises(RequestError, match=r"more than 0\.2 seconds"):
        tokenizer.apply_chat_template([USER], chat_template=template)
    assert tokenizer.apply_chat_template([USER], chat_template="{{ 'again' }}") == "again"


HUGE = [
    "{{ 'a' * 10**9 }}",
    "{{ [1] * 10**9 }}",
    "{{ 10 ** (10**9) }}",
    "{% set n = namespace(x='a' * 9999) %}"
    "{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='a' * 9999) %}"
    "{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x='a' * 9999) %}"
    "{% for i in range(40) %}{% set n.x = n.x.replace('a', 'aa') %}{% endfor %}",
    "{{ (['a' * 999999] * 999) | join }}",
    "{{ 'x'.join(['a' * 999999] * 999) }}",
    "{{ ('a' * 999999) | replace('a', 'b' * 999) }}",
    "{{ 'a' | center(10**9) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ ('\t' * 99999).expandtabs(99999) }}",
    "{{ ('\n' * 99999) | indent(99999) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' | format(999999999, 1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{}}'.format('x', 10**9) }}",
    "{{ ('%99999d' * 999) | format(*[1] * 999) }}",
    "{{ ('{:99999}' * 999).format(*[1] * 999) }}",
    "{{ ('{0}' * 9999).format('a' * 9999) }}",
    "{{ ('{x}' * 9999).format_map({'x': 'a' * 9999}) }}",
    "{{ ('%(x)s' * 9999) % {'x': ['a' * 9999]} }}",
    "{{ ('a' * 99999).translate({97: 'b' * 99999}) }}",
    "{{ (['a' * 999999] * 999) | tojson }}",
    "{{ (['a' * 999999] * 999) | string }}",
    "{{ ['a' * 999999] * 999 }}",
    "{{ {'x': ['a' * 999999] * 999} ~ 'b' }}",
    "{{ ([['a' * 9999] * 9999] * 99999) | sum(start=[]) }}",
    "{{ ('a' * 9999999) | wordwrap(1) }}",
    "{{ (range(99999) | list * 99) | map('string') | list }}",
    "{{ [1] | batch(10**9, 'x') | list }}",
    "{{ [1] | slice(10**9) | list }}",
    "{{ [[1]] | tojson(indent=10**9) }}",
]


def test_what_is_no_text_counts_as_well():
    """By itself, since millions of numbers take seconds to count."""
    assert size_of([[1] * 9] * 9) > 81 and size_of({1: [None] * 9}) > 10


@pytest.mark.parametrize("template", HUGE)
def test_what_a_template_makes_has_a_bound(template):
    tokenizer = Tokenizer(byte_level().to_str().encode())
    with pytest.raises(RequestError, match="more than 16777216 characters"):
        tokenizer.apply_chat_template([USER], chat_template=template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 3 }}{{ [1] * 2 }}{{ 2**10 }}{{ 7 % 4 }}{{ 'b' ~ none ~ 1.5 }}{{ 'c' + 'd' }}",
        "{{ ['x', 'y'] | join('+') }}{{ messages | join(',', attribute='role') }}",
        "{{ 'a'.join(['x', 'y']) }}{{ 'abab'.replace('a', 'c', 1) }}{{ 'aa' | replace('a', 'b') }}",
        "{{ '%05.2f|%s' % (1.5, 'x') }}{{ '%s' | format('y') }}{{ '{:>9}'.format('z') }}",
        "{{ 'a' | center(9) }}{{ 'x\ny' | indent(2, true) }}{{ 'x\ny' | indent('> ') }}",
        "{{ [1, 2, 3] | batch(2) | list }}{{ [1, 2, 3] | slice(2) | list }}{{ 'a'.zfill(3) }}",
        "{{ ['a' ~ 'b', 'c'] | tojson(indent=2) }}{{ '\t' .expandtabs(2) }}",
        "{{ [{'x': none}, 1.5] }}{{ [1, true] | string }}{{ 'a b' | wordwrap(1) }}{{ [1] | sum }}",
        "{{ 'ab'.translate({97: 'c'}) }}{{ '{x}'.format_map({'x': 1}) }}{{ '%(x)s' % {'x': 2} }}",
    ],
)
def test_within_the_bounds_nothing_is_changed(template):
    ours, theirs = both(template, [USER])
    assert ours == theirs


@pytest.mark.parametrize(
    "template",
    [
        "{% if 1 %}" * 120 + "{% endif %}" * 120,
        "{{ " + "(" * 3000 + ")" * 3000 + " }}",
        "{{ lipsum() }}",
    ],
    ids=["blocks", "brackets", "lipsum"],
)
def test_what_python_cannot_compile_is_an_error_of_the_request(template):
    tokenizer = Tokenizer(byte_level().to_str().encode())
    with pytest.raises(RequestError):
        tokenizer.apply_chat_template([USER], chat_template=template)


@pytest.mark.parametrize(
    "templates", [5, [5], [{"name": "default"}], [{"name": 1, "template": "x"}]], ids=str
)
def test_templates_of_another_form_are_an_error_of_the_tokenizer(templates):
    with pytest.raises(TokenizerError, match="chat_template is"):
        named_templates({"chat_template": templates}, None)


@pytest.mark.parametrize("templates", [None, [], {}], ids=str)
def test_no_template_is_none(templates):
    named = named_templates({"chat_template": templates}, None)
    with pytest.raises(RequestError, match="the model has no chat template"):
        template_source(named, None, with_tools=False)


def test_of_several_templates_one_must_be_the_default():
    named = named_templates({"chat_template": {"tool_use": "T", "rag": "R"}}, None)
    assert template_source(named, None, with_tools=True) == "T"
    assert template_source(named, "rag", with_tools=False) == "R"
    with pytest.raises(RequestError, match="is the default: rag, tool_use"):
        template_source(named, None, with_tools=False)
