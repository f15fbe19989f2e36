"""How published chat templates write calls, reasoning and answers: the lines that tell it."""

from __future__ import annotations

THINK = "{{- '<think>\\n' + reasoning_content + '\\n</think>\\n\\n' + content }}"

# By the name of a format: a line or two for each of its families.
CALLS = {
    "harmony": [
        "{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}"
        "{{- ' to=functions.' + name + '<|channel|>commentary json<|message|>' }}"
    ],
    "gemma4": ["{{- '<|tool_call>call:' + function['name'] + '{' -}}"],
    "functiongemma": ["{{- '<start_function_call>call:' + function['name'] + '{' -}}"],
    "deepseek_v31": ["'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>'"],
    "deepseek_v3": [
        "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' "
        "+ name + '\\n' + '```json' + '\\n'}}"
    ],
    "deepseek_v32": [
        '{%- set dsml_token = "｜DSML｜" -%}<{{ dsml_token }}parameter name="$PARAMETER_NAME" '
        'string="true|false">$PARAMETER_VALUE</{{ dsml_token }}parameter>'
    ],
    "kimi_k2": ["<|tool_calls_section_begin|>{{ id }}<|tool_call_argument_begin|>{% args %}"],
    "minimax_m2": [
        "{%- set toolcall_begin_token = '<minimax:tool_call>' -%}<invoke name=\"tool-name-1\">\n"
        "<parameter name=\"param-key-1\">param-value-1</parameter>{{- '\\n<response>' }}"
    ],
    "seed_oss": [
        "{%- set toolcall_begin_token = '<seed:tool_call>' -%}<function=example_function_name>\\n"
        "<parameter=example_parameter_1>value_1</parameter>"
    ],
    "command_r7b": ["write <|START_ACTION|> followed by a list of JSON-formatted tool calls"],
    "command_r": [
        "Write \\'Action:\\' followed by a json-formatted list of actions that you want",
        "{{- '\\nAction:\\n```json\\n[\\n' }}",
    ],
    "mistral_v11": ["{{- '[TOOL_CALLS]' }}{{- name + '[ARGS]' + arguments }}"],
    "mistral": ['{{- "[TOOL_CALLS] [" }}'],
    "lfm2": ['{{- "<|tool_call_start|>[" +', 'List of tools: <|tool_list_start|>["'],
    "phi4_mini": ["<|tool|>{{ tools }}<|/tool|>", 'formatted as functools[{"name": [function'],
    "granite": ["{%- if role == 'assistant_tool_call' %}{{ '<|tool_call|>' + content }}"],
    "nemotron": ['\'<TOOLCALL>[{{"name": "tool_name1", "arguments": "tool_args1"}}, \''],
    "hunyuan": ['<tool_calls>[{"name": "func_name1", "arguments": {"argument1": "value1"}},...]'],
    "minimax_m1": ['<tool_calls>\\n{"name": <tool-name>, "arguments": <args-json-object>}\\n...'],
    "glm45": ["<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>"],
    "qwen3_coder": ["'\\n\\n<tool_call>\\n<function=example_function_name>\\n<parameter=example"],
    "hermes": ['<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}'],
    "pythonic": [
        "[func_name1(param1=value1, param2=value2), func_name2(...)]",
    ],
    "llama4": [
        "{{- '<|python_start|>' + content + '<|python_end|>' }}"
        '{"name": function name, "parameters": dictionary of argument name and its value}',
        "<|header_start|>user<|header_end|>\n\nRespond in the format "
        '{"name": function name, "parameters": dictionary of argument name and its value}.',
    ],
    "llama3": [
        'Respond in the format {"name": function name, "parameters": dictionary of argument}',
        "{{- '<|python_tag|>' + name + '.call(' }}",
    ],
    "xlam": [
        "You are developed by Salesforce xLAM team.",
        "make calls in a single JSON array: [{",
    ],
}  # fmt: skip

THOUGHTS = {
    "harmony": CALLS["harmony"],
    "gemma4": ["{{- '<|channel>thought\\n' -}}{{- reasoning_content -}}{{- '<channel|>' -}}"],
    "cohere": ["<|START_THINKING|>{{message.reasoning_content}}<|END_THINKING|>"],
    "mistral": ["{{ '[THINK]' + block['thinking'] + '[/THINK]' }}"],
    "seed": ["{{ think_begin_token + text + think_end_token }}'<seed:think>' '</seed:think>'"],
    "think": [THINK, "{{'<｜Assistant｜></think>'}}", "{{ '\\n<think></think>' }}"],
}

SHELLS = {
    "<|START_RESPONSE|>": ["<|START_RESPONSE|>{{message.content}}<|END_RESPONSE|>"],
    "<answer>": CALLS["hunyuan"],
    "<response>": ["{{ '<response>\\n' + content + '\\n</response>\\n' }}"],
}

# The templates of the corpus: a format, and how its families reason.
TEMPLATES = {name: snippets[0] for name, snippets in CALLS.items()}
for _name in ("hermes", "qwen3_coder", "glm45", "kimi_k2", "minimax_m2", "minimax_m1", "nemotron"):
    TEMPLATES[_name] += THINK
for _name in ("deepseek_v32", "deepseek_v31", "deepseek_v3", "hunyuan", "lfm2", "granite"):
    TEMPLATES[_name] += THINK
TEMPLATES["ernie"] = CALLS["hermes"][0] + THINK + SHELLS["<response>"][0]
TEMPLATES["gemma4"] += THOUGHTS["gemma4"][0]
TEMPLATES["command_r7b"] += THOUGHTS["cohere"][0] + SHELLS["<|START_RESPONSE|>"][0]
TEMPLATES["mistral"] += THOUGHTS["mistral"][0]
TEMPLATES["mistral_v11"] += THOUGHTS["mistral"][0]
TEMPLATES["seed_oss"] += THOUGHTS["seed"][0]
