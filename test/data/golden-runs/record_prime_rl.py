# /// script
# requires-python = "==3.12.*"
# dependencies = [
#   "torch==2.15.0", "transformers==5.6.2", "verifiers==0.3.1", "prime-pydantic-config>=0.4.3", "renderers>=0.1.9", "msgspec>=0.18",
#   "jaxtyping>=0.3.2", "beartype>=0.21", "loguru>=0.7.3", "pandas>=2", "pybase64>=1.4.2", "aiolimiter>=1.2.1", "orjson>=3.10",
# ]
# ///
"""What prime-rl's own code computes from `prime-rl.toml`, or `hosted.toml`, and the recorded rollouts, on the CPU in float32.

    git clone https://github.com/PrimeIntellect-ai/prime-rl && git -C prime-rl checkout 559b447
    git clone https://github.com/PrimeIntellect-ai/verifiers && git -C verifiers checkout a60a606   # its submodule
    uv run --no-project record_prime_rl.py prime-rl verifiers           # prime-rl.json.gz
    uv run --no-project record_prime_rl.py prime-rl verifiers hosted    # hosted.json.gz

Its trainer wants CUDA, so its functions are called here in the order in which `TrainSink` and `train` (trainer/rl/train.py) call
them: `RLConfig` reads the file; `TrainSink.add` scores groups and prunes the batch; `prepare_batch` cuts and packs the rows;
`setup_rl_loss_fn`, `compute_loss`, `setup_optimizer` and `setup_scheduler` make the step. Of the model's output the log probabilities
are `selective_log_softmax` of logits / temperature, as in `train` where the output layer is not fused. Stubs are wandb and dion (Muon),
which nothing here computes with; `torch.nn.utils.clip_grad_norm_` is what torchtitan's function of that name is on one device; the
optimizer's states stay where they are (`optim_cpu_offload` is placement alone).

Hosted Training has no code of its own that anyone sees: it trains with prime-rl. `hosted.toml` is taken as the prime-rl file with the same
values, and prime-rl's defaults where it says nothing. Its adapters are `MultiLoRALinear`, which begin as `adapter/` here and there
(`make-adapter.mts` made it: what a run of ours begins with).

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



def as_prime_rl(written: dict) -> dict:
    """Hosted Training's words in prime-rl's."""
    environment = {"taskset": {"id": "reverse-text"}, "agent": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}}
    return {
        "max_steps": written["max_steps"],
        "model": {"name": written["model"]},
        "orchestrator": {
            "batch_size": written["batch_size"],
            "group_size": written["rollouts_per_example"],
            "train": {
                "source": [{"name": "reverse-text", "env": environment}],
                "sampling": {
                    "temperature": written["sampling"]["temperature"],
                    "max_completion_tokens": written["sampling"]["max_tokens"],
                },
            },
        },
        "trainer": {
            "optim": {"lr": written["learning_rate"]},
            "model": {"lora": {"rank": 16, "alpha": written["lora_alpha"]}},
        },
        "inference": {},
    }


written = tomllib.loads((here / f"{name}.toml").read_text())
config = RLConfig.model_validate(as_prime_rl(written) if name == "hosted" else written)
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


def with_adapters(policy, lora):
    """`apply_lora_to_model` without its models and devices. Returns what tells the adapters how many tokens come."""
    for package in ("prime_rl.trainer.models", "prime_rl.trainer.models.layers", "prime_rl.trainer.models.layers.lora"):
        stub(package, __path__=[f"{checkout}/src/{package.replace('.', '/')}"])
    from prime_rl.trainer.models.layers.lora import base
    from prime_rl.trainer.models.layers.lora.multi_linear import MultiLoRALinear
    from safetensors.torch import load_file

    begins = load_file(here / "adapter" / "adapter_model.safetensors")
    base.set_multilora_scaling(torch.tensor([lora.alpha / lora.rank]))
    base.set_lora_num_tokens(torch.tensor([0], dtype=torch.int32))
    policy.requires_grad_(False)
    adapted = [n for n, m in policy.named_modules() if n.split(".")[-1] in lora.target_modules]
    for place in adapted:
        parent, _, last = place.rpartition(".")
        layer = MultiLoRALinear(policy.get_submodule(place), rank=lora.rank, n_adapters=1, alpha=lora.alpha, use_grouped_mm=False)
        layer.lora_A[0].data.copy_(begins[f"base_model.model.{place}.lora_A.weight"])
        setattr(policy.get_submodule(parent), last, layer)
    return base.set_lora_num_tokens


def train_step(policy, optimizer, scheduler, loss_fn, micro_batches, tell_tokens) -> dict:
    rl_scale = sum(
        int((mb["loss_mask"] & (mb["rl_weights"] != 0)).sum())
        if mb["rl_weights"] is not None
        else int(mb["loss_mask"].sum())
        for mb in micro_batches
    )
    total, entropies, masked = 0.0, [], []
    for mb in micro_batches:
        tell_tokens(mb["lora_num_tokens"])
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
    tell_tokens = with_adapters(policy, trainer.model.lora) if trainer.model.lora else lambda _: None
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
        step_of = train_step(policy, optimizer, scheduler, loss_fn, [tensors(None, mb) for mb in packed], tell_tokens)
        steps.append({"rows": rows, **step_of})
    peer = {"prime-rl": commit(checkout), "verifiers": commit(verifiers_checkout), "torch": torch.__version__}
    write(name, peer, steps)


if __name__ == "__main__":
    main()
