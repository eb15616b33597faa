"""Three supervised steps by the Python package `tinker`, for test/engines/tinker-package.engines.test.ts: `URL MODEL`, rows on stdin.

Rows are {"tokens": [...], "weights": [...]}, shifted already; prints {"before": [[...]], "after": [[...]], "path": "..."}.
"""

import json
import os
import sys

import tinker
from tinker import types

url, model = sys.argv[1:]
service = tinker.ServiceClient(base_url=url, api_key=os.environ["TINKER_API_KEY"])
training = service.create_lora_training_client(base_model=model, rank=4, seed=3)


def tensor(data, dtype):
    return types.TensorData(data=data, dtype=dtype, shape=[len(data)])


rows = [
    types.Datum(
        model_input=types.ModelInput.from_ints(row["tokens"][:-1]),
        loss_fn_inputs={
            "target_tokens": tensor(row["tokens"][1:], "int64"),
            "weights": tensor(row["weights"], "float32"),
        },
    )
    for row in json.load(sys.stdin)
]


def logprobs():
    outputs = training.forward(rows, "cross_entropy").result().loss_fn_outputs
    return [list(output["logprobs"].data) for output in outputs]


before = logprobs()
for _ in range(3):
    training.forward_backward(rows, "cross_entropy").result()
    adam = types.AdamParams(learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-8)
    training.optim_step(adam).result()
after = logprobs()
path = training.save_weights_for_sampler("package").result().path
print(json.dumps({"before": before, "after": after, "path": path}))
