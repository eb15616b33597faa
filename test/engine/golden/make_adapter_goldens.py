"""Makes test/engine/golden/adapters: LoRA adapters made by PEFT on the tiny checkpoints of golden/models, and the float32
logits that PEFT gives for each.

    python test/engine/golden/make_adapter_goldens.py      (needs torch, transformers, peft, safetensors)
"""

import json
import shutil
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent
FOLDER = HERE / "adapters"

ADAPTERS = {
    "qwen2-some": ("qwen2-tied", dict(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"])),
    "qwen3-all-rslora": ("qwen3-tied", dict(r=2, lora_alpha=3, target_modules="all-linear", use_rslora=True)),
}


@torch.no_grad()
def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    for seed, (name, (base, options)) in enumerate(ADAPTERS.items()):
        generator = torch.Generator().manual_seed(200 + seed)
        model = AutoModelForCausalLM.from_pretrained(HERE / "models" / base, dtype=torch.float32)
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.1, **options)).eval()
        for key, parameter in sorted(adapted.named_parameters()):
            if "lora_" in key:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
        folder = FOLDER / name
        adapted.save_pretrained(folder)
        (folder / "README.md").unlink()
        config_file = folder / "adapter_config.json"
        config = json.loads(config_file.read_text())
        config["base_model_name_or_path"] = f"../../models/{base}"
        config["target_modules"] = sorted(config["target_modules"])
        config_file.write_text(json.dumps(config, indent=2) + "\n")
        golden = load_file(HERE / "models" / base / "golden.safetensors")
        logits = adapted(golden["tokens"][None]).logits[0].contiguous()
        save_file({"tokens": golden["tokens"], "prompt": golden["prompt"], "logits": logits}, folder / "golden.safetensors")
        print(name, "moves the logits by up to", (logits - golden["logits"]).abs().max().item())


if __name__ == "__main__":
    main()
