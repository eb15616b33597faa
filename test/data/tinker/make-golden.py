"""Bytes that the Python package `tinker` 0.38.0 sends and reads, for test/backends/tinker-proto.test.ts.

    pip install tinker==0.38.0 && python make-golden.py > golden.json

Requests are what `AsyncTrainingResource.forward_backward` puts on the wire (its proto, SerializeToString); replies are
messages of the same schema, and what the package's own `deserialize_proto_response` reads in them.
"""

import base64
import json

import numpy as np
import tinker
from tinker import types
from tinker.proto import tinker_public_pb2 as pb
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import deserialize_forward_backward_output, deserialize_sample_response


def datum(tokens, inputs):
    return types.Datum(
        model_input=types.ModelInput(chunks=[types.EncodedTextChunk(tokens=tokens)]),
        loss_fn_inputs={
            name: types.TensorData(data=data, dtype=dtype, shape=[len(data)]) for name, (dtype, data) in inputs.items()
        },
    )


def request(name, loss_fn, data, config=None, forward_only=False, seq_id=1):
    given = types.ForwardBackwardRequest(
        model_id="model_1",
        seq_id=seq_id,
        forward_backward_input=types.ForwardBackwardInput(data=data, loss_fn=loss_fn, loss_fn_config=config),
    )
    message = forward_backward_request_to_proto(given)
    message.forward_only = forward_only
    # Maps have no order on the wire; the sorted one is the same in every process.
    body = message.SerializeToString(deterministic=True)
    described = {
        "model_id": "model_1",
        "seq_id": seq_id,
        "loss_fn": loss_fn,
        "loss_fn_config": config,
        "forward_only": forward_only,
        "data": [
            {
                "tokens": list(d.model_input.chunks[0].tokens),
                "inputs": {
                    k: {"dtype": v.dtype, "data": [float(x) if v.dtype == "float32" else int(x) for x in v.tolist()]}
                    for k, v in d.loss_fn_inputs.items()
                },
            }
            for d in data
        ],
    }
    return {"name": name, "request": described, "body": base64.b64encode(body).decode()}


requests = [
    request(
        "one datum, supervised",
        "cross_entropy",
        [datum([1, 2, 300], {"target_tokens": ("int64", [2, 300, 70000]), "weights": ("float32", [0.0, 1.0, 0.5])})],
    ),
    request(
        "ppo with its bounds, two datums",
        "ppo",
        [
            datum(
                [5, 6],
                {
                    "target_tokens": ("int64", [6, 7]),
                    "logprobs": ("float32", [0.0, -1.25]),
                    "advantages": ("float32", [0.0, 2.5]),
                },
            ),
            datum(
                [8],
                {
                    "target_tokens": ("int64", [9]),
                    "logprobs": ("float32", [-0.5]),
                    "advantages": ("float32", [-1.5]),
                },
            ),
        ],
        {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
        seq_id=300,
    ),
    request(
        "a bound of 0 is written, and so is forward_only",
        "cispo",
        [
            datum(
                list(range(200)),
                {
                    "target_tokens": ("int64", list(range(1, 201))),
                    "logprobs": ("float32", [-(i % 7) / 8 for i in range(200)]),
                    "advantages": ("float32", [(i % 5) / 4 for i in range(200)]),
                },
            )
        ],
        {"clip_low_threshold": 0.0, "clip_high_threshold": 3.0},
        forward_only=True,
        seq_id=2,
    ),
]

output = pb.ForwardBackwardOutput(loss_fn_output_type="tml:ArrayRecord", metrics={"loss:sum": 1.5})
for rows in ([[-1.0, -2.0], [-0.5]], [[-3.0]]):
    record = output.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(rows))
    field = record.fields["logprobs"]
    field.data = np.concatenate([np.array(r, np.float32) for r in rows]).tobytes()
    field.offsets = np.cumsum([0] + [4 * len(r) for r in rows]).astype(np.int64).tobytes()
    field.dtype = pb.DTYPE_FLOAT32
bf16 = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
record = bf16.loss_fn_outputs.add(num_datums=1)
values = (np.array([-1.5, -0.25], np.float32).view(np.uint32) >> 16).astype(np.uint16)
record.fields["logprobs"].CopyFrom(
    pb.BatchedTensor(data=values.tobytes(), offsets=np.array([0, 4], np.int64).tobytes(), dtype=pb.DTYPE_BFLOAT16)
)
outputs = []
for name, message in (("two records", output), ("bfloat16", bf16)):
    body = message.SerializeToString(deterministic=True)
    read = deserialize_forward_backward_output(body)
    outputs.append(
        {
            "name": name,
            "body": base64.b64encode(body).decode(),
            "metrics": read.metrics,
            "logprobs": [[float(x) for x in o["logprobs"].tolist()] for o in read.loss_fn_outputs],
        }
    )

sample = pb.SampleResponse(prompt_logprobs=np.array([np.nan, -1.0, -2.5], np.float32).tobytes())
sample.sequences.add(
    stop_reason=pb.STOP_REASON_LENGTH,
    tokens=np.array([1, 2, 70000], np.int32).tobytes(),
    logprobs=np.array([-0.5, -0.25, -4], np.float32).tobytes(),
)
sample.sequences.add(
    stop_reason=pb.STOP_REASON_STOP,
    tokens=np.array([7], np.int32).tobytes(),
    logprobs=np.array([-0.125], np.float32).tobytes(),
)
body = sample.SerializeToString(deterministic=True)
read = deserialize_sample_response(body)
samples = [
    {
        "name": "two sequences and the prompt's logprobs",
        "body": base64.b64encode(body).decode(),
        "sequences": [
            {
                "stop_reason": s.stop_reason,
                "tokens": [int(t) for t in s.tokens_np],
                "logprobs": [float(x) for x in s.logprobs_np],
            }
            for s in read.sequences
        ],
        "prompt_logprobs": [None if np.isnan(x) else float(x) for x in read.prompt_logprobs_np],
    }
]
print(
    json.dumps(
        {"origin": f"tinker {tinker.__version__}, made by make-golden.py", "requests": requests, "outputs": outputs, "samples": samples},
        indent=1,
    )
)
