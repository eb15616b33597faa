# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch==2.15.0", "torchdata==0.11.0", "transformers==5.24.0", "datasets==5.2.0", "prime-pydantic-config==0.4.3", "renderers==0.1.12",
#   "msgspec>=0.18", "jaxtyping>=0.3.2", "beartype>=0.21", "loguru>=0.7.3", "pandas>=2", "pybase64>=1.4.2", "aiolimiter>=1.2.1", "orjson>=3.10",
# ]
# ///
"""What prime-rl's own code computes in ten steps of `prime-rl-sft.toml` on the rows of `prime-rl-sft.jsonl`, on the CPU in float32.

    git clone https://github.com/PrimeIntellect-ai/prime-rl && git -C prime-rl checkout 559b447
    git clone https://github.com/PrimeIntellect-ai/verifiers && git -C verifiers checkout a60a606   # its submodule
    uv run --no-project record_prime_rl_sft.py prime-rl verifiers       # prime-rl-sft.json.gz

Its trainer wants CUDA, so its functions are called here in the order in which `train` (trainer/sft/train.py) calls them: `SFTConfig` reads
the file; `create_renderer` (of the package renderers) writes conversations out; `setup_dataset` and `setup_dataloader` order, cut and pack
them; `setup_optimizer` and `setup_scheduler` make the step. The loss is that of `compute_loss` there, a function within `train`: the sum of
the cross entropies of a micro-batch, whose gradients are divided by the tokens of the step. `torch.nn.utils.clip_grad_norm_` is what
torchtitan's function of that name is on one device. A stub is dion (Muon), which nothing here computes with.
"""

import sys
import tomllib

from recording import commit, here, model, row, stub, write

checkout, verifiers_checkout = sys.argv[1:3]
sys.path[:0] = [f"{checkout}/src", f"{checkout}/packages/prime-rl-configs/src", verifiers_checkout]
stub("dion", Muon=object)
stub("wandb")

import torch  # noqa: E402
from datasets import Dataset, load_dataset  # noqa: E402
from prime_rl.configs.sft import SFTConfig  # noqa: E402
from prime_rl.trainer.optim import setup_optimizer  # noqa: E402
from prime_rl.trainer.scheduler import setup_scheduler  # noqa: E402
from prime_rl.trainer.sft.data import setup_dataloader, setup_dataset  # noqa: E402
from renderers.base import create_renderer  # noqa: E402
from torch.nn import CrossEntropyLoss  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

config = SFTConfig.model_validate(tomllib.loads((here / "prime-rl-sft.toml").read_text()))


def samples(batch: dict) -> list:
    """Those of a packed sequence, each with the token that its last one predicts; padding is none."""
    tokens, targets, mask = (batch[key][0].tolist() for key in ("input_ids", "target_ids", "loss_mask"))
    begins = [at for at, place in enumerate(batch["position_ids"][0].tolist()) if place == 0] + [len(tokens)]
    parts = zip(begins, begins[1:], strict=False)
    return [
        row([*tokens[a:b], targets[b - 1]], [0, *mask[a:b]], [0] * (b - a + 1)) for a, b in parts if any(mask[a:b])
    ]


def loss_sum(policy, batch: dict):
    logits = policy(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits
    token_loss = CrossEntropyLoss(reduction="none")(logits.view(-1, logits.shape[-1]), batch["target_ids"].view(-1))
    return token_loss.view(batch["target_ids"].shape)[batch["loss_mask"]].sum()


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(here / "tiny-chat")
    renderer = create_renderer(tokenizer, config.renderer)
    raw = load_dataset("json", data_files=str(here / "prime-rl-sft.jsonl"), split="train")
    assert isinstance(raw, Dataset)
    batches = iter(setup_dataloader(setup_dataset(tokenizer, config.data, raw_dataset=raw, renderer=renderer), config.data))
    policy = model("tiny-chat")
    optimizer, _ = setup_optimizer(config.optim, list(policy.named_parameters()), None, cpu_offload=False)
    scheduler = setup_scheduler(optimizer, config.scheduler, config.max_steps, config.optim.lr)
    micro_batches = config.data.batch_size // config.data.micro_batch_size
    steps = []
    for _ in range(config.max_steps):
        rows, total, tokens = [], 0.0, 0
        for sequence in range(micro_batches):
            batch = next(batches)
            rows += [{**sample, "sequence": sequence} for sample in samples(batch)]
            loss = loss_sum(policy, batch)
            (loss / micro_batches).backward()
            total += loss.item()
            tokens += int(batch["loss_mask"].sum())
        for parameter in policy.parameters():
            parameter.grad *= micro_batches / tokens
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), config.optim.max_norm)
        rate = optimizer.param_groups[0]["lr"]
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        steps.append({"rows": rows, "loss": total / tokens, "gradientNorm": norm.item(), "learningRate": rate})
    peer = {"prime-rl": commit(checkout), "renderer": type(renderer).__name__, "torch": torch.__version__}
    write("prime-rl-sft", peer, steps)


if __name__ == "__main__":
    main()
