"""Holds a conversation. Models bring a chat template; here the bundled one is given another."""

import sys

import ingot

TEMPLATE = (
    "{% for each in messages %}{{ each.role.upper() }}:\n{{ each.content }}\n\n{% endfor %}"
    "ASSISTANT:{{ '\\n' }}"
)
QUESTIONS = ["What news from the harbour?", "And who told you that?"]

with ingot.LLM(sys.argv[1]) as llm:
    params = ingot.SamplingParams(temperature=0.7, seed=5, max_tokens=60, stop=["\n\n"])
    messages = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        (answer,) = llm.chat(messages, params, chat_template=TEMPLATE)
        messages.append({"role": "assistant", "content": answer.outputs[0].text})
    for message in messages:
        print(f"{message['role']}: {message['content']}")
