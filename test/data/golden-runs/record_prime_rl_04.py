# /// script
# requires-python = "==3.12.*"
# dependencies = [
#   "torch==2.15.0", "transformers==5.6.2", "verifiers==0.3.1", "pydantic-settings>=2.10.1", "msgspec>=0.18", "jaxtyping>=0.3.2",
#   "beartype>=0.21", "loguru>=0.7.3", "pandas>=2", "pillow", "tomli>=2.2.1", "tomli-w>=1.2", "setuptools",
# ]
# ///
"""What prime-rl 0.4.0's own code computes from `prime-rl-0.4.toml` and the recorded rollouts, on the CPU in float32.

    git clone https://github.com/PrimeIntellect-ai/prime-rl && git -C prime-rl checkout v0.4.0
    uv run --no-project record_prime_rl_04.py prime-rl

Its orchestrator and its trainer are one loop each that wants servers and CUDA, so their functions are called here in the order in which
`orchestrate` (orchestrator/orchestrator.py) and `train` (trainer/rl/train.py) call them: `RLConfig` reads the file; `compute_advantages`,
`interleave_rollout` and `prepare_batch` make the rows; `setup_loss_fn`, `compute_loss`, `_create_optimizer` and `setup_scheduler` make the
step, on one rank (more ranks would each divide by their own tokens). Stubs, which nothing here computes with: wandb, dion (Muon).

Not recorded: rollouts that rewrite the past, of which `interleave_rollout` cuts a wrong piece (their first turn is taken), and rollouts
that fail, which it keeps with a reward (theirs is taken, as if they had not).
"""

import sys

from recording import commit, here, model, rollouts, row, stub, temperature, write

checkout = sys.argv[1]
name = "prime-rl-0.4"
sys.path[:0] = [f"{checkout}/src"]
stub("wandb")
stub("dion", Muon=object)

import torch  # noqa: E402
import torch._dynamo  # noqa: E402

torch._dynamo.config.disable = True  # the same functions without a compiler

sys.argv = ["rl", "@", str(here / f"{name}.toml")]
from prime_rl.orchestrator.advantage import compute_advantages  # noqa: E402
from prime_rl.orchestrator.trajectories import interleave_rollout  # noqa: E402
from prime_rl.rl import RLConfig  # noqa: E402
from prime_rl.trainer.batch import prepare_batch  # noqa: E402
from prime_rl.trainer.optim import _create_optimizer  # noqa: E402
from prime_rl.trainer.rl.loss import (  # noqa: E402
    compute_entropy,
    compute_loss,
    selective_log_softmax,
    setup_loss_fn,
    shift_tensor_left,
    shift_tensor_right,
)
from prime_rl.trainer.scheduler import setup_scheduler  # noqa: E402
from prime_rl.utils.logger import setup_logger  # noqa: E402
from prime_rl.utils.pydantic_config import parse_argv  # noqa: E402

setup_logger("warning")
config = parse_argv(RLConfig)
trainer, orchestrator = config.trainer, config.orchestrator


def state(rollout: dict, example: int) -> dict:
    """A rollout as the environment gives it."""
    turns = rollout["turns"][:1] if rollout.get("rewrites") else rollout["turns"]
    trajectory = [
        {
            "tokens": {
                "prompt_ids": turn["prompt"],
                "prompt_mask": [0] * len(turn["prompt"]),
                "completion_ids": turn["completion"],
                "completion_mask": [1] * len(turn["completion"]),
                "completion_logprobs": turn["logprobs"],
            },
            "temperature": temperature,
        }
        for turn in turns
    ]
    return {"trajectory": trajectory, "reward": rollout["reward"], "error": None, "example_id": example}


def samples_of(groups: list) -> list:
    states = [state(rollout, i) for i, group in enumerate(groups) for rollout in group]
    advantages = compute_advantages(
        [one["reward"] for one in states],
        [sum(len(turn["tokens"]["completion_ids"]) for turn in one["trajectory"]) for one in states],
        orchestrator.rollouts_per_example,
        orchestrator.advantage,
    )
    samples = []
    for one, advantage in zip(states, advantages, strict=True):
        for sample in interleave_rollout(one):
            sample.advantage = advantage
            sample.reward = one["reward"]
            samples.append(sample)
    return samples


def train_step(policy, optimizer, scheduler, loss_fn, micro_batches) -> dict:
    tensor = lambda values, dtype: torch.tensor(values, dtype=dtype).unsqueeze(0)  # noqa: E731
    loss_scale = max(sum(sum(mb.loss_mask) for mb in micro_batches), 1)
    total, entropies, masked = 0.0, [], []
    for mb in micro_batches:
        ids = tensor(mb.input_ids, torch.long)
        positions = tensor(mb.position_ids, torch.long)
        mask = tensor(mb.loss_mask, torch.bool)
        logits = policy(input_ids=ids, position_ids=positions).logits
        scaled = logits / tensor(mb.temperatures, torch.float).unsqueeze(-1)
        pad = torch.log(torch.tensor(1.0 / policy.config.vocab_size)).item()
        logprobs = shift_tensor_right(selective_log_softmax(scaled, shift_tensor_left(ids)), pad_value=pad)
        entropy = shift_tensor_right(compute_entropy(scaled), pad_value=-pad)
        starts = [i for i, position in enumerate(mb.position_ids) if position == 0] + [len(mb.position_ids)]
        lengths = [end - start for start, end in zip(starts, starts[1:])]
        split = lambda values: values.squeeze(0).split(lengths)  # noqa: E731
        loss, metrics = compute_loss(
            trainer_logprobs=split(logprobs),
            inference_logprobs=split(tensor(mb.inference_logprobs, torch.float)),
            teacher_logprobs=None,
            advantages=split(tensor(mb.advantages, torch.float)),
            loss_mask=split(mask),
            loss_fn=loss_fn,
            loss_scale=loss_scale,
        )
        loss.backward()
        total += loss.item()
        entropies.append(entropy[mask])
        masked.append(metrics["is_masked"])
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), trainer.optim.max_norm)
    rate = optimizer.param_groups[0]["lr"]
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    return {
        "loss": total,
        "gradientNorm": norm.item(),
        "learningRate": rate,
        "entropy": torch.cat(entropies).mean().item(),
        "masked": torch.cat(masked).mean().item(),
    }


def main() -> None:
    policy = model()
    optimizer = _create_optimizer(trainer.optim, list(policy.named_parameters()), None)
    scheduler = setup_scheduler(optimizer, trainer.scheduler, trainer.max_steps, trainer.optim.lr)
    loss_fn = setup_loss_fn(trainer.loss)
    pack = lambda samples: prepare_batch(samples, orchestrator.seq_len, 1, [0] * len(samples), 1)[0]  # noqa: E731
    steps = []
    for groups in rollouts():
        rows = [row(mb.input_ids, mb.loss_mask, mb.advantages) for sample in samples_of(groups) for mb in pack([sample])]
        steps.append({"rows": rows, **train_step(policy, optimizer, scheduler, loss_fn, pack(samples_of(groups)))})
    write(name, {"prime-rl": commit(checkout), "torch": torch.__version__}, steps)


if __name__ == "__main__":
    main()
