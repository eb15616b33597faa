# /// script
# requires-python = ">=3.11"
# dependencies = ["renderers==0.1.12", "transformers==5.24.0"]
# ///
"""What prime-rl's sft makes of conversations under Qwen3's chat template, which leaves thoughts of earlier turns out.

    uv run --no-project record_conversations.py       # conversations.json, with the tokenizer of tiny-chat/

`SFTDataset._process` (trainer/sft/data.py of prime-rl 0.8.1, commit 559b447) calls `build_training_sample` as it is called here. `qwen3.jinja`
is the template of Qwen/Qwen3-0.6B, Apache-2.0, as TRL has it (trl/chat_templates/qwen3.jinja at f2cd577).
"""

import json
from pathlib import Path

from renderers.base import build_training_sample
from renderers.qwen3 import Qwen3Renderer
from transformers import AutoTokenizer

here = Path(__file__).parent


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


call = {"type": "function", "function": {"name": "add", "arguments": {}}}
conversations = [
    [user("cat"), assistant("tac")],
    [user("cat"), assistant("tac", reasoning_content="from behind")],
    [user("cat"), assistant("", reasoning_content="only a thought")],
    [{"role": "system", "content": "backwards"}, user("cat"), assistant("tac"), user("dog"), assistant("god")],
    [user("cat"), assistant("tac", reasoning_content="from behind"), user("dog"), assistant("god", reasoning_content="again")],
    [user("cat"), assistant("<think>\nhm\n</think>\n\ntac"), user("dog"), assistant("<think>\nso\n</think>\n\ngod"), user("bye")],
    [user("sum"), assistant("", tool_calls=[call], reasoning_content="a tool"), {"role": "tool", "content": "five"}, assistant("five")],
    [
        user("sum"),
        assistant("wait", tool_calls=[call], reasoning_content="a tool"),
        {"role": "tool", "content": "five"},
        assistant("five", reasoning_content="done"),
        user("more"),
        assistant("none"),
    ],
]

if __name__ == "__main__":
    renderer = Qwen3Renderer(AutoTokenizer.from_pretrained(here / "tiny-chat"))
    recorded = []
    for messages in conversations:
        sample = build_training_sample(renderer, messages, tools=[], ensure_final_stop=True)
        row = {"messages": messages, "tokens": sample.token_ids, "mask": [int(one) for one in sample.loss_mask]}
        recorded.append("  " + json.dumps(row))
    (here / "conversations.json").write_text("[\n" + ",\n".join(recorded) + "\n]\n")
