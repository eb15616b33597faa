"""Records what transformers makes of SmolLM2-135M-Instruct: prompts as token ids, and the likeliest next tokens with their logits.

    npx ratchet model get smollm2-135m-instruct                 says the folder
    python test/data/smollm2/record.py FOLDER                   (needs torch and transformers)
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTIONS = ["What is 7 + 5?", "Translate \"good morning\" into Spanish.", "Naïve café, 3 times a day – isn’t it?"]


@torch.inference_mode()
def main() -> None:
    folder = sys.argv[1]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = []
    for question in QUESTIONS:
        text = tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True)
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        logits = model(torch.tensor([tokens])).logits[0, -1]
        best = logits.topk(8)
        prompts.append(
            dict(
                question=question,
                tokens=tokens,
                deviation=logits.std(correction=0).item(),
                likeliest=[dict(token=int(i), logit=v.item()) for v, i in zip(best.values, best.indices)],
            )
        )
    Path(__file__).with_name("top-logits.json").write_text(json.dumps({"prompts": prompts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
