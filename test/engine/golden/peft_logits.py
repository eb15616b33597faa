"""Prints, as JSON, the float32 logits of a base model with a PEFT adapter.

python test/engine/golden/peft_logits.py BASE_FOLDER ADAPTER_FOLDER '[token ids]'
"""

import json
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

base, adapter, tokens = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
adapted = PeftModel.from_pretrained(model, adapter).eval()
with torch.no_grad():
    print(json.dumps(adapted(torch.tensor([tokens])).logits[0].flatten().tolist()))
