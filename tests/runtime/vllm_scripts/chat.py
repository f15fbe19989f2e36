"""Answers a conversation, then a batch of them, by the model's template and by another."""

import sys

from vllm import LLM, SamplingParams

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello! How can I help you?"},
    {"role": "user", "content": [{"type": "text", "text": "Write about dogs."}]},
]
TEMPLATE = "{% for message in messages %}({{ message.role }}){% endfor %}"


def main(model):
    llm = LLM(model, max_model_len=96, trust_remote_code=False)
    params = SamplingParams(max_tokens=4, seed=1)
    for outputs in (
        llm.chat(CONVERSATION, params, use_tqdm=False),
        llm.chat([CONVERSATION[:2]] * 3, sampling_params=params, use_tqdm=True),
        llm.chat(CONVERSATION, params, chat_template=TEMPLATE),
    ):
        for output in outputs:
            print(output.prompt, "->", repr(output.outputs[0].text))


if __name__ == "__main__":
    main(sys.argv[1])
