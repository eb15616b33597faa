# /// script
# requires-python = "==3.12.*"
# dependencies = [
#   "torch==2.15.0", "transformers==5.6.2", "verifiers==0.3.1", "prime-pydantic-config>=0.4.3", "renderers>=0.1.9", "msgspec>=0.18",
#   "jaxtyping>=0.3.2", "beartype>=0.21", "loguru>=0.7.3", "pandas>=2", "pybase64>=1.4.2", "aiolimiter>=1.2.1", "orjson>=3.10",
# ]
# ///
"""What prime-rl's own code computes from `prime-rl.toml` and the recorded rollouts, on the CPU in float32.

    git clone https://github.com/PrimeIntellect-ai/prime-rl && git -C prime-rl checkout 559b447
    git clone https://github.com/PrimeIntellect-ai/verifiers && git -C verifiers checkout a60a606   # its submodule
    uv run --no-project record_prime_rl.py prime-rl verifiers

Its trainer wants CUDA, so its functions are called here in the order in which `TrainSink` and `train` (trainer/rl/train.py) call
them: `RLConfig` reads the file; `TrainSink.add` scores groups and prunes the batch; `prepare_batch` cuts and packs the rows;
`setup_rl_loss_fn`, `compute_loss`, `setup_optimizer` and `setup_scheduler` make the step. Of the model's output the log probabilities
are `selective_log_softmax` of logits / temperature, as in `train` where the output layer is not fused. Stubs are wandb and dion (Muon),
which nothing here computes with; `torch.nn.utils.clip_grad_norm_` is what torchtitan's function of that name is on one device; the
optimizer's states stay where they are (`optim_cpu_offload` is placement alone).

A batch is shipped at the end of each recorded step, as if the next one was not sampled yet: where a rollout failed it is one short.
"""

import asyncio
import sys
import tomllib
from types import SimpleNamespace

from recording import commit, here, model, rollouts, row, stub, write

checkout, verifiers_checkout = sys.argv[1:3]
name = sys.argv[3] if len(sys.argv) > 3 else "prime-rl"
sys.path[:0] = [
    f"{checkout}/src",
    f"{checkout}/packages/prime-rl-configs/src",
    verifiers_checkout,
    f"{verifiers_checkout}/environments/reverse_text",  # the file's environment, of which only the config is asked
]
stub("wandb")
stub("dion", Muon=object)

import torch  # noqa: E402
import torch._dynamo  # noqa: E402

torch._dynamo.config.disable = True  # the same functions without a compiler

import verifiers.v1 as vf  # noqa: E402
from prime_rl.configs.rl import RLConfig  # noqa: E402
from prime_rl.orchestrator.algo import build_algorithm  # noqa: E402
from prime_rl.orchestrator.train_sink import TrainSink  # noqa: E402
from prime_rl.orchestrator.types import Progress  # noqa: E402
from prime_rl.trainer.batch import build_bin_cost, prepare_batch  # noqa: E402
from prime_rl.trainer.optim import setup_optimizer  # noqa: E402
from prime_rl.trainer.rl.data import DataLoader  # noqa: E402
from prime_rl.trainer.rl.loss import (  # noqa: E402
    compute_entropy,
    compute_loss,
    selective_log_softmax,
    setup_rl_loss_fn,
    shift_tensor_left,
    shift_tensor_right,
)
from prime_rl.trainer.scheduler import setup_scheduler  # noqa: E402
from verifiers.v1.configs.agent import WireAgentConfig  # noqa: E402
from verifiers.v1.graph import MessageNode  # noqa: E402
from verifiers.v1.task import WireTaskData  # noqa: E402
from verifiers.v1.types import AssistantMessage, UserMessage  # noqa: E402

config = RLConfig.model_validate(tomllib.loads((here / f"{name}.toml").read_text()))
source = config.orchestrator.train.source[0]


def trace(rollout: dict) -> vf.Trace:
    """A turn whose prompt begins with all that was said goes on with that path; else it begins another one."""
    nodes, said = [], []
    for turn in rollout["turns"]:
        goes_on = turn["prompt"][: len(said)] == said
        new = turn["prompt"][len(said) :] if goes_on else turn["prompt"]
        parent = len(nodes) - 1 if goes_on and nodes else None
        nodes.append(
            MessageNode(parent=parent, message=UserMessage(content=""), token_ids=new, mask=[False] * len(new))
        )
        nodes.append(
            MessageNode(
                parent=len(nodes) - 1,
                message=AssistantMessage(content=""),
                sampled=True,
                token_ids=turn["completion"],
                mask=[True] * len(turn["completion"]),
                logprobs=turn["logprobs"],
            )
        )
        said = [*turn["prompt"], *turn["completion"]]
    return vf.Trace(
        task=vf.TraceTask(type="task", data=WireTaskData(idx=0)),
        agent=vf.AgentInfo(config=WireAgentConfig()),
        nodes=nodes,
        rewards={"reward": vf.Reward(score=rollout["reward"])},
        is_completed=True,
        ok=not rollout.get("fails", False),
    )


def episode(rollout: dict, group: str, step: int) -> vf.Episode:
    work = vf.TrainWorkInfo(step=step, policy=vf.PolicySpan(start=step - 1, end=step - 1))
    return vf.Episode(
        env=vf.EnvInfo(id="reverse-text", name=source.resolved_name),
        task=vf.TraceTask(type="task", data=WireTaskData(idx=0)),
        group=vf.GroupInfo(id=group),
        run=vf.TrainRunInfo(id="run", work=work),
        ok=not rollout.get("fails", False),
        traces=[trace(rollout)],
    )


async def collect(sink: TrainSink, groups: list, step: int) -> list:
    """The samples of one step."""
    batch = None
    for number, group in enumerate(groups):
        for rollout in group:
            assert batch is None, "the batch is complete with the last rollout of the step"
            batch = await sink.add(episode(rollout, f"{step}-{number}", step))
    return (batch or sink.process_batch()).samples


def train_step(policy, optimizer, scheduler, loss_fn, micro_batches) -> dict:
    rl_scale = sum(
        int((mb["loss_mask"] & (mb["rl_weights"] != 0)).sum())
        if mb["rl_weights"] is not None
        else int(mb["loss_mask"].sum())
        for mb in micro_batches
    )
    total, entropies, masked = 0.0, [], []
    for mb in micro_batches:
        logits = policy(input_ids=mb["input_ids"], position_ids=mb["position_ids"]).logits
        scaled = logits / mb["temperatures"].unsqueeze(-1)
        logprobs = selective_log_softmax(scaled, shift_tensor_left(mb["input_ids"]))
        pad = torch.log(torch.tensor(1.0 / policy.config.vocab_size)).item()
        logprobs = shift_tensor_right(logprobs, pad_value=pad)
        entropy = shift_tensor_right(compute_entropy(scaled), pad_value=-pad)
        lengths = mb["sequence_lengths"]
        split = lambda values: values.squeeze(0).split(lengths) if values is not None else None  # noqa: E731
        loss, metrics = compute_loss(
            trainer_logprobs=split(logprobs),
            inference_logprobs=split(mb["inference_logprobs"]),
            ref_logprobs=None,
            advantages=split(mb["advantages"]),
            loss_mask=split(mb["loss_mask"]),
            rl_weights=split(mb["rl_weights"]),
            ce_weights=None,
            ref_kl_weights=None,
            rl_loss_fn=loss_fn,
            rl_scale=max(rl_scale, 1),
            ce_scale=1,
            ref_kl_scale=1,
        )
        loss.backward()
        total += loss.item()
        has_loss = mb["loss_mask"] if mb["rl_weights"] is None else mb["loss_mask"] & (mb["rl_weights"] != 0)
        entropies.append(entropy[has_loss])
        counts = [int(mask.sum()) for mask in has_loss.squeeze(0).split(lengths)]
        masked += [float(share) * count for share, count in zip(metrics["is_masked"], [c for c in counts if c])]
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), config.trainer.optim.max_norm)
    rate = optimizer.param_groups[0]["lr"]
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    return {
        "loss": total,
        "gradientNorm": norm.item(),
        "learningRate": rate,
        "entropy": torch.cat(entropies).mean().item(),
        "masked": sum(masked) / rl_scale,
    }


def main() -> None:
    env = SimpleNamespace(
        config=source,
        algorithm=build_algorithm(source.algo or config.orchestrator.algo, None),
        sampling_args=source.sampling.to_sampling_args(),
    )
    progress = Progress()
    sink = TrainSink(
        config.orchestrator,
        tokenizer=None,
        train_envs=SimpleNamespace(get=lambda _: env),
        mm_token_type_ids_mapping=None,
        progress=progress,
        batch_size=config.orchestrator.batch_size,
        token_batch_size=config.orchestrator.token_batch_size,
    )
    policy = model()
    trainer = config.trainer
    optimizer, _ = setup_optimizer(trainer.optim, list(policy.named_parameters()), None, cpu_offload=False)
    scheduler = setup_scheduler(optimizer, trainer.scheduler, trainer.max_steps, trainer.optim.lr)
    loss_fn = setup_rl_loss_fn(trainer.loss)
    tensors = DataLoader._micro_batch_to_tensor
    steps = []
    for step, groups in enumerate(rollouts(), start=1):
        progress.step = step
        samples = asyncio.run(collect(sink, groups, step))
        packed = prepare_batch(samples, config.orchestrator.seq_len, 1, build_bin_cost(policy.config))[0]
        rows = []
        for sample in samples:
            alone = prepare_batch([sample], config.orchestrator.seq_len, 1, build_bin_cost(policy.config))[0][0]
            weights = alone.rl_weights or [1.0] * len(alone.input_ids)
            has_loss = [m and w != 0 for m, w in zip(alone.loss_mask, weights, strict=True)]
            if any(has_loss):
                rows.append(row(alone.input_ids, has_loss, alone.advantages))
        step_of = train_step(policy, optimizer, scheduler, loss_fn, [tensors(None, mb) for mb in packed])
        steps.append({"rows": rows, **step_of})
    peer = {"prime-rl": commit(checkout), "verifiers": commit(verifiers_checkout), "torch": torch.__version__}
    write(name, peer, steps)


if __name__ == "__main__":
    main()
