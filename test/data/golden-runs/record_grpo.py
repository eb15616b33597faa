# /// script
# requires-python = "==3.12.*"
# dependencies = [
#   "torch==2.15.0", "transformers==4.57.6", "accelerate", "peft", "datasets", "trl==0.24.0", "verifiers==0.3.1", "nest-asyncio",
# ]
# ///
"""What verifiers' GRPOTrainer computes from `grpo.toml` and the recorded rollouts, on the CPU in float32.

    git clone https://github.com/PrimeIntellect-ai/verifiers && git -C verifiers checkout v0.1.6   # the last release that has it
    uv run --no-project record_grpo.py verifiers

`GRPOConfig` and `GRPOTrainer.train()` are its own, whole, with TRL and the Trainer of transformers below. Its environment answers with the
recorded rollouts, as token ids. Stubs, which nothing here computes with: wandb, and the client of its vLLM server, to which weights go
nowhere. Rollouts do not fail here (it trains those with what they have) and none rewrites the past (it would not take them): of those
that do there is the first turn.

One thing is not as it is there. GRPOTrainer gives the model the mask of the loss as the mask of its attention, so that a prompt is hidden
from the tokens that are trained; here `_get_per_token_logps` sees all tokens, and a run says that it differs.
"""

import sys
import tomllib
from types import SimpleNamespace

from recording import commit, here, model, rollouts, row, stub, write

checkout = sys.argv[1]
name = "grpo"
sys.path[:0] = [checkout]
stub("wandb", run=None)


class Client:
    """Weights go nowhere."""

    def __init__(self, *args, **more):
        pass

    def __getattr__(self, name):
        return lambda *args, **more: 0


stub("verifiers.inference.vllm_client", VLLMClient=Client)

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402
from transformers import PreTrainedTokenizerFast, TrainerCallback  # noqa: E402
from verifiers.trainers import GRPOConfig, GRPOTrainer  # noqa: E402
from verifiers.types import ProcessedOutputs  # noqa: E402

args = tomllib.loads((here / f"{name}.toml").read_text())["trainer"]["args"]
groups = [group for step in rollouts() for group in step]


class Recorded:
    """An environment whose examples are the recorded groups, in order."""

    eval_dataset = None

    def __init__(self):
        self.batches = []

    def get_dataset(self, **_):
        rows = [{"prompt": "", "answer": "", "task": "t", "info": {"group": i}} for i in range(len(groups))]
        return Dataset.from_list(rows)

    def get_eval_dataset(self, **_):
        return None

    async def a_generate(self, inputs, **_):
        taken: dict[int, int] = {}
        played = []
        for info in inputs["info"]:
            group = info["group"]
            taken[group] = taken.get(group, -1) + 1
            played.append(groups[group][taken[group]])
        texts = [""] * len(played)
        rewards = [rollout["reward"] for rollout in played]
        return SimpleNamespace(prompt=texts, completion=texts, state=played, reward=rewards, metrics={})

    def process_env_results_vllm(self, states, rewards, **_):
        made = ProcessedOutputs(
            prompt_ids=[], prompt_mask=[], completion_ids=[], completion_mask=[], completion_logprobs=[], rewards=rewards
        )
        for rollout in states:
            turns = rollout["turns"][:1] if rollout.get("rewrites") else rollout["turns"]
            prompt = turns[0]["prompt"]
            ids, mask = list(prompt), [0] * len(prompt)
            for turn in turns:
                heard = turn["prompt"][len(ids) :]
                ids += [*heard, *turn["completion"]]
                mask += [0] * len(heard) + [1] * len(turn["completion"])
            made.prompt_ids.append(prompt)
            made.prompt_mask.append(mask[: len(prompt)])
            made.completion_ids.append(ids[len(prompt) :])
            made.completion_mask.append(mask[len(prompt) :])
            made.completion_logprobs.append([0.0] * (len(ids) - len(prompt)))
        self.batches.append(made)
        return made


class Recording(GRPOTrainer):
    steps: list = []

    def _get_per_token_logps(self, model, input_ids, attention_mask, logits_to_keep, batch_size=None):
        return super()._get_per_token_logps(
            model, input_ids, torch.ones_like(attention_mask), logits_to_keep, batch_size
        )

    def _compute_advantages(self, rewards):
        advantages = super()._compute_advantages(rewards)
        made = self.env.batches[len(self.steps) - 1]
        for i, advantage in enumerate(advantages.tolist()):
            ids, mask = made.prompt_ids[i] + made.completion_ids[i], made.prompt_mask[i] + made.completion_mask[i]
            self.steps[-1]["rows"].append(row(ids, mask, [advantage] * len(ids)))
        return advantages

    def training_step(self, *given, **more):
        loss = super().training_step(*given, **more)
        self.steps[-1]["loss"] += loss.item()
        return loss


class Figures(TrainerCallback):
    def on_step_begin(self, *_, **__):
        Recording.steps.append({"rows": [], "loss": 0.0})

    def on_pre_optimizer_step(self, *_, optimizer, **__):
        Recording.steps[-1]["learningRate"] = optimizer.param_groups[0]["lr"]

    def on_log(self, *_, logs, **__):
        if "grad_norm" in logs:
            Recording.steps[-1]["gradientNorm"] = logs["grad_norm"]
            Recording.steps[-1]["masked"] = logs["clip_ratio/region_mean"]


def main() -> None:
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(30)}, unk_token="t0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="t0", eos_token="t1")
    policy = model()
    policy.warnings_issued = {}
    config = GRPOConfig(**args, use_cpu=True, output_dir="/tmp/grpo")
    trainer = Recording(
        model=policy, env=Recorded(), args=config, processing_class=tokenizer, callbacks=[Figures()]
    )
    trainer.train()
    peer = {"verifiers": commit(checkout), "trl": "0.24.0", "transformers": "4.57.6", "torch": torch.__version__}
    write(name, peer, Recording.steps)


if __name__ == "__main__":
    main()
