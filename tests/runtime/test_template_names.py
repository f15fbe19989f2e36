"""Which chat template is meant, by name or as Jinja."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ingot.errors import RequestError, TokenizerError
from ingot.runtime.template_names import named_templates, template_source


def test_where_a_template_is_found():
    several = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    for config, file, given, with_tools, found in [
        ({"chat_template": "C"}, None, None, True, "C"),
        ({"chat_template": "C"}, "F", None, True, "F"),
        ({"chat_template": "C"}, "F", "{{G}}", True, "{{G}}"),
        ({"chat_template": "C"}, None, "default", True, "C"),
        ({"chat_template": several}, None, None, False, "D"),
        ({"chat_template": several}, None, None, True, "T"),
        ({"chat_template": several}, None, "default", True, "D"),
        ({"chat_template": several}, None, "tool_use", False, "T"),
        ({"chat_template": {"default": "D"}}, None, None, False, "D"),
        ({}, None, "{% own %}", False, "{% own %}"),
    ]:
        named = named_templates(config, file)
        assert template_source(named, given, with_tools=with_tools) == found
    with pytest.raises(RequestError, match="no chat template"):
        template_source({}, None, with_tools=False)


@pytest.mark.parametrize("given", ["tool_us", "", "templates/chat.jinja"])
def test_a_text_that_reads_no_messages_is_no_template(given):
    """It is a mistyped name, or a path, and would be the prompt of every conversation."""
    with pytest.raises(RequestError, match="is no chat template") as caught:
        template_source({"default": "D", "tool_use": "T"}, given, with_tools=False)
    assert "The model has default, tool_use." in caught.value.hint


@pytest.mark.parametrize(
    "given", [3, [3], [{"name": "a"}], [{"name": "a", "template": 1}], {"a": 1}]
)
def test_what_is_no_template_is_a_fault_of_the_tokenizer(given):
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: chat_template is"):
        named_templates({"chat_template": given}, None)


def test_names_are_told_without_jinja():
    """So `ingot run` starts sooner with a model that has no template."""
    code = (
        "import sys; from ingot.runtime.tokenizer import Tokenizer; "
        "from tests.runtime.fake_tokenizer import byte_level; "
        "given = Tokenizer(byte_level().to_str().encode(), {'chat_template': '{{ x }}'}); "
        "assert given.has_chat_template and 'jinja2' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
