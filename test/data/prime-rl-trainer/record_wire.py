"""Records how prime-rl encodes training samples: wire.json, with the fields of its structs and the bytes that its own code makes of known samples.

    python record_wire.py head=CHECKOUT v0.4.0=CHECKOUT > wire.json        (msgspec, numpy)

Only the files that declare the structs and pack them are imported, so neither torch nor an installation is needed.
`head` is the commit 559b447 of August 2026.
"""

import base64
import importlib
import json
import random
import sys
import types

import msgspec


def package(checkout, *names):
    """Makes packages of a checkout importable without running what they import first."""
    for known in [name for name in sys.modules if name.split(".")[0] == "prime_rl"]:
        del sys.modules[known]
    for name in names:
        module = types.ModuleType(name)
        module.__path__ = [f"{checkout}/src/{name.replace('.', '/')}"]
        sys.modules[name] = module


def fields_of(struct):
    return [
        {"name": field.name, "type": str(field.type).replace("<class '", "").replace("'>", ""), "required": field.required}
        for field in msgspec.structs.fields(struct)
    ]


def structs_of(module):
    found = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, msgspec.Struct)]
    return {struct.__name__: fields_of(struct) for struct in found if struct is not msgspec.Struct}


def plain(value):
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


def tokens_of(source, length, vocabulary=384):
    return [source.randrange(vocabulary) for _ in range(length)]


def mask_of(prompt, length, *, feedback=()):
    """Sampled tokens are trained: those after the prompt, except what an environment said."""
    return [index >= prompt and index not in feedback for index in range(length)]


def spread(source, mask, least, most):
    return [round(source.uniform(least, most), 4) if trained else 0.0 for trained in mask]


def head_sample(structs, source, name, prompt, length, *, feedback=(), streams=(), routed=None):
    mask = mask_of(prompt, length, feedback=feedback)
    given = {stream: spread(source, mask, 0.1, 1) for stream in streams}
    if "ref_logprobs" in given:
        given["ref_logprobs"] = [round(-value, 4) for value in given["ref_logprobs"]]
    if routed is not None:
        layers, top = routed
        chosen = bytes(source.randrange(4) for _ in range(length * layers * top))
        given["routed_experts"] = structs.RoutedExperts(data=chosen, shape=[length, layers, top], dtype="uint8")
    advantage = round(source.uniform(-1, 1), 3)
    return structs.TrainingSample(
        token_ids=tokens_of(source, length),
        mask=mask,
        logprobs=spread(source, mask, -3, -0.01),
        temperatures=[1.0] * length,
        env_name=name,
        advantages=[advantage if trained else 0.0 for trained in mask],
        **given,
    )


def head_cases(structs):
    def of(seed, *wishes):
        source = random.Random(seed)
        return [head_sample(structs, source, *wish["at"], **wish.get("with", {})) for wish in wishes]

    mixed = [{"at": (name, prompt, length)} for name, prompt, length in
             [("a", 3, 9), ("b", 4, 12), ("a", 2, 5), ("b", 6, 16), ("a", 1, 4), ("b", 2, 7), ("a", 5, 11)]]
    feedback = {"at": ("turns", 3, 14), "with": {"feedback": (7, 8, 9)}}
    return [
        ("one sample", of(1, mixed[0]), {"seq_len": 16, "num_train_workers": 1, "pad_to_multiple_of": 1}),
        ("several samples in a micro-batch", of(2, *mixed), {"seq_len": 32, "num_train_workers": 1, "pad_to_multiple_of": 1}),
        ("a feedback that is not trained", of(3, feedback, mixed[2]), {"seq_len": 32, "num_train_workers": 1, "pad_to_multiple_of": 1}),
        ("two ranks", of(4, *mixed), {"seq_len": 20, "num_train_workers": 2, "pad_to_multiple_of": 1}),
        ("two ranks, one of which gets a micro-batch that trains nothing", of(5, mixed[3]), {"seq_len": 16, "num_train_workers": 2, "pad_to_multiple_of": 1}),
        ("padded to a multiple", of(6, *mixed[:4]), {"seq_len": 32, "num_train_workers": 2, "pad_to_multiple_of": 8}),
        ("a sample that is longer than the row", of(7, {"at": ("long", 4, 24)}, mixed[4]), {"seq_len": 16, "num_train_workers": 1, "pad_to_multiple_of": 1}),
        (
            "weights of the other components",
            of(8, {"at": ("ce", 3, 8), "with": {"streams": ("rl_weights", "ce_weights")}},
               {"at": ("ref", 2, 7), "with": {"streams": ("ref_logprobs", "ref_kl_weights")}}, mixed[2]),
            {"seq_len": 32, "num_train_workers": 1, "pad_to_multiple_of": 4},
        ),
        (
            "experts that the sampler chose",
            of(9, {"at": ("moe", 2, 6), "with": {"routed": (2, 2)}}, {"at": ("moe", 3, 5), "with": {"routed": (2, 2)}}),
            {"seq_len": 16, "num_train_workers": 1, "pad_to_multiple_of": 4},
        ),
    ]


def record_head(checkout):
    package(checkout, "prime_rl", "prime_rl.transports", "prime_rl.transports.rollouts", "prime_rl.trainer")
    structs = importlib.import_module("prime_rl.transports.rollouts.types")
    batch = importlib.import_module("prime_rl.trainer.batch")
    encoder = msgspec.msgpack.Encoder()
    cases = []
    for name, samples, settings in head_cases(structs):
        told = plain(samples)
        grid = batch.prepare_batch(samples, bin_cost=batch.build_bin_cost(None), **settings)
        cases.append({
            "name": name,
            **settings,
            "samples": told,
            "grid": plain(grid),
            "bytes": [base64.b64encode(encoder.encode(rank)).decode() for rank in grid],
        })
    return {"structs": structs_of(structs), "file": "rollouts/step_N/rank_R.bin", "cases": cases}


def older_sample(structs, source, prompt, length, *, reward, feedback=()):
    mask = mask_of(0, length, feedback=feedback)
    return structs.TrainingSample(
        prompt_ids=tokens_of(source, prompt),
        prompt_mask=[False] * prompt,
        completion_ids=tokens_of(source, length),
        completion_mask=mask,
        completion_logprobs=spread(source, mask, -3, -0.01),
        completion_temperatures=[1.0] * length,
        advantage=round(source.uniform(-1, 1), 3),
        reward=reward,
    )


def record_v04(checkout):
    package(checkout, "prime_rl", "prime_rl.transport")
    structs = importlib.import_module("prime_rl.transport.types")
    encoder = msgspec.msgpack.Encoder()
    source = random.Random(11)
    batches = [
        ("one sample", structs.TrainingBatch([older_sample(structs, source, 3, 6, reward=1.0)], step=0)),
        (
            "several samples, one with a feedback that is not trained",
            structs.TrainingBatch(
                [
                    older_sample(structs, source, 4, 8, reward=0.5),
                    older_sample(structs, source, 2, 11, reward=0.0, feedback=(4, 5, 6)),
                    older_sample(structs, source, 1, 3, reward=None),
                ],
                step=3,
            ),
        ),
    ]
    without = [older_sample(structs, source, prompt, length, reward=None, feedback=feedback) for prompt, length, feedback in
               [(5, 7, ()), (2, 12, (5, 6)), (1, 2, ())]]
    batches.append(("samples without rewards", structs.TrainingBatch(without, step=2)))
    cases = [
        {"name": name, **plain(batch), "bytes": base64.b64encode(encoder.encode(batch)).decode()} for name, batch in batches
    ]
    return {"structs": structs_of(structs), "file": "run_default/rollouts/step_N/rollouts.bin", "cases": cases}


def written(recorded):
    """JSON with a line for each struct and each case, so that a difference shows which of them it is in."""
    versions = []
    for version, told in recorded.items():
        structs = ",\n".join(f"   {json.dumps(name)}: {json.dumps(fields)}" for name, fields in told["structs"].items())
        cases = ",\n".join(f"   {json.dumps(case)}" for case in told["cases"])
        file = json.dumps(told["file"])
        versions.append(f' {json.dumps(version)}: {{\n  "structs": {{\n{structs}\n  }},\n  "file": {file},\n  "cases": [\n{cases}\n  ]\n }}')
    return "{\n" + ",\n".join(versions) + "\n}"


if __name__ == "__main__":
    checkouts = dict(word.split("=", 1) for word in sys.argv[1:])
    recorded = {"head": record_head(checkouts["head"]), "v0.4.0": record_v04(checkouts["v0.4.0"])}
    print(written(recorded))
