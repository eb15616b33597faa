# /// script
# requires-python = "==3.12.*"
# dependencies = ["torch==2.15.0", "transformers==4.57.6", "accelerate", "peft", "datasets", "verifiers==0.3.1", "requests"]
# ///
"""What verifiers' own RLTrainer computes from `vf-rl.toml` and the recorded rollouts, on the CPU in float32.

    git clone https://github.com/PrimeIntellect-ai/verifiers && git -C verifiers checkout acb2209   # the last commit that has it
    uv run --no-project record_vf_rl.py verifiers

`RLConfig`, `Orchestrator` and `RLTrainer.train()` are its own, whole, with the Trainer of transformers below. Its environment answers with
the recorded rollouts, scored by its own `Rubric`. Stubs, which nothing here computes with: wandb, deepspeed, liger_kernel, and the client of its vLLM
server, to which weights go nowhere. `micro_batch_size = 1` leaves no padding. Rollouts do not fail here: it trains those with what they have.
"""

import asyncio
import sys
import tomllib

from recording import commit, here, model, rollouts, row, stub, write

checkout = sys.argv[1]
name = "vf-rl"
sys.path[:0] = [checkout, f"{checkout}/packages/verifiers-rl"]
stub("wandb", run=None)
stub("deepspeed")
stub("liger_kernel")
stub("liger_kernel.transformers", AutoLigerKernelForCausalLM=None)


class Client:
    """Weights go nowhere."""

    def __init__(self, *args, **more):
        pass

    def __getattr__(self, name):
        return lambda *args, **more: 0


stub("verifiers_rl.rl.inference.client", VLLMClient=Client)

import torch  # noqa: E402
import verifiers as vf  # noqa: E402
from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402
from transformers import PreTrainedTokenizerFast, TrainerCallback  # noqa: E402
from verifiers_rl.rl.trainer import RLConfig, RLTrainer  # noqa: E402

args = tomllib.loads((here / f"{name}.toml").read_text())["trainer"]["args"]
recorded = rollouts()


def trajectory(rollout: dict) -> list:
    return [
        {
            "tokens": {
                "prompt_ids": turn["prompt"],
                "prompt_mask": [0] * len(turn["prompt"]),
                "completion_ids": turn["completion"],
                "completion_mask": [1] * len(turn["completion"]),
                "completion_logprobs": turn["logprobs"],
            },
            "advantage": None,
            "reward": None,
        }
        for turn in rollout["turns"]
    ]


class Recorded:
    """An environment whose examples are the recorded groups, in order."""

    def __init__(self):
        self.dataset = Dataset.from_list([{"prompt": "", "example_id": i} for i in range(sum(map(len, recorded)))])

    def get_dataset(self):
        return self.dataset

    async def generate(self, inputs, **_):
        groups = [group for step in recorded for group in step]
        outputs = []
        for example in dict.fromkeys(inputs["example_id"]):
            states = [
                {"prompt": "", "completion": "", "trajectory": trajectory(rollout), "recorded": rollout["reward"]}
                for rollout in groups[example]
            ]
            rubric = vf.Rubric(funcs=[reward])
            rubric._call_individual_reward_func = lambda func, state: func(state)
            await rubric.score_group(states)
            outputs += states
        return {"outputs": outputs}


async def reward(state) -> float:
    return state["recorded"]


class Recording(RLTrainer):
    steps: list = []

    def training_step(self, *given, **more):
        loss = super().training_step(*given, **more)
        self.steps[-1]["loss"] = loss.item()
        return loss

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        ratio = torch.exp(inputs["trainer_logprobs"] - inputs["inference_logprobs"]).detach()
        mask = inputs["loss_mask"].bool()
        outside = (ratio < self.mask_ratio_low) | (ratio > self.mask_ratio_high)
        self.steps[-1]["seen"].append((outside[mask], inputs["entropies"][mask]))
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class Figures(TrainerCallback):
    def on_step_begin(self, *_, **__):
        Recording.steps.append({"rows": [], "seen": []})

    def on_pre_optimizer_step(self, *_, optimizer, **__):
        Recording.steps[-1]["learningRate"] = optimizer.param_groups[0]["lr"]

    def on_log(self, *_, logs, **__):
        if "grad_norm" in logs:
            Recording.steps[-1]["gradientNorm"] = logs["grad_norm"]


def main() -> None:
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(30)}, unk_token="t0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="t1")
    config = RLConfig(**args, use_cpu=True, save_strategy="no", output_dir="/tmp/vf-rl")
    trainer = Recording(
        model=model(), env=Recorded(), args=config, processing_class=tokenizer, callbacks=[Figures()]
    )
    get_batch = trainer.orchestrator.get_batch

    def recording_batch(batch_id):
        batch = get_batch(batch_id)
        for mb in batch.microbatches[0]:
            for ids, mask, advantages in zip(mb.input_ids, mb.loss_mask, mb.advantages, strict=True):
                Recording.steps[-1]["rows"].append(row(ids, mask, advantages))
        return batch

    trainer.orchestrator.get_batch = recording_batch
    trainer.train()
    for step in Recording.steps:
        seen = step.pop("seen")
        step["masked"] = torch.cat([outside for outside, _ in seen]).float().mean().item()
        step["entropy"] = torch.cat([entropy for _, entropy in seen]).mean().item()
    write(name, {"verifiers": commit(checkout), "transformers": "4.57.6", "torch": torch.__version__}, Recording.steps)


if __name__ == "__main__":
    main()
