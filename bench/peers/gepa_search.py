"""gepa's search for `bench gepa`: a line of JSON asks for a search, and while it runs each line it writes asks for
scores, or for the answer of the reflection model, and is answered with one line. The last one tells what was found."""

import json
import sys

import gepa
from gepa.core.adapter import EvaluationBatch

to_bench = sys.stdout
sys.stdout = sys.stderr  # what gepa prints


def ask(question):
    to_bench.write(json.dumps(question) + "\n")
    to_bench.flush()
    return json.loads(sys.stdin.readline())


class Silent:
    def log(self, message):
        pass


class WorldAdapter:
    """Examples are (set, position); what a rollout leaves is what the bench tells of it."""

    propose_new_texts = None

    def evaluate(self, batch, candidate, capture_traces=False):
        examples = [position for _, position in batch]
        played = ask({"evaluate": {"texts": candidate, "set": batch[0][0], "examples": examples}})
        return EvaluationBatch(outputs=examples, scores=played["scores"], trajectories=played["records"])

    def make_reflective_dataset(self, candidate, eval_batch, components_to_update):
        return {name: [record[name] for record in eval_batch.trajectories] for name in components_to_update}


def search(asked):
    found = gepa.optimize(
        seed_candidate=asked["start"],
        trainset=[("train", i) for i in range(asked["train"])],
        valset=[("val", i) for i in range(asked["val"])],
        adapter=WorldAdapter(),
        reflection_lm=lambda prompt: ask({"reflect": prompt if isinstance(prompt, str) else prompt[-1]["content"]})["text"],
        max_metric_calls=asked["budget"],
        reflection_minibatch_size=3,
        skip_perfect_score=False,
        use_merge=asked["merge"],
        seed=asked["seed"],
        logger=Silent(),
    )
    return {
        "candidates": found.candidates,
        "scores": found.val_aggregate_scores,
        "calls_before": found.discovery_eval_counts,
        "calls": found.total_metric_calls,
        "best": found.best_idx,
    }


for line in sys.stdin:
    to_bench.write(json.dumps({"found": search(json.loads(line))}) + "\n")
    to_bench.flush()
