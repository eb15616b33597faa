"""What is stored in a run's folder, as `runs/` of Ratchet writes it; no server is needed."""

import gzip
import json
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ._errors import RatchetError
from ._store import FolderStore, Store, open_store

if TYPE_CHECKING:
    import pandas

Row = dict[str, Any]

SCORED_GROUP_VERSION = 4
"""The newest version of a scored group that is understood; `test/python` holds it against `runs/forms/stored-forms.ts`."""

_NEAR_MAX = 20

_OLDER_SCORED = ("scored.jsonl.gz", "scored.jsonl")


class Rows(list[Row]):
    """Rows as dicts."""

    def to_pandas(self) -> "pandas.DataFrame":
        """A row each; of steps, with a column for each metric and the step as index. pandas has to be installed."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise RatchetError(
                "Unsupported",
                "pandas is not installed. In a notebook: %pip install pandas; in a shell: pip install pandas. "
                "Without it the rows are dicts as they are.",
            ) from error
        return pandas.DataFrame([_flat(row) for row in self])


class Steps(Rows):
    def to_pandas(self) -> "pandas.DataFrame":
        frame = super().to_pandas()
        return frame if frame.empty else frame.set_index("step")


def _flat(row: Row) -> Row:
    own = {key: value for key, value in row.items() if key != "metrics"}
    metrics = row.get("metrics")
    # A reward function may be called as a column is, such as `reward`.
    named = {f"metrics/{key}" if key in own else key: value for key, value in (metrics or {}).items()}
    return own | named


def read_run(path: str | os.PathLike[str]) -> "StoredRun":
    """Opens a run's folder, such as `outputs/words`, its `file:` URI, or `s3://bucket/runs/words`.

    The address of a bucket may end with `?endpoint=URL&region=REGION`, as in `store.uri`; credentials are those of boto3.

    Raises RatchetError `RunNotFound` if no run is there, `Unsupported` for a bucket without boto3.
    """
    store = open_store(os.fspath(path))
    if store.read("run.json") is None:
        raise RatchetError(
            "RunNotFound", f"There is no run in {store.place('')}: it holds no run.json.{_runs_near(store)}"
        )
    return StoredRun(store)


def _runs_near(store: Store) -> str:
    """Runs in the folder, or beside it; nothing for a bucket."""
    if not isinstance(store, FolderStore):
        return ""
    for folder in (store.path, store.path.parent):
        if runs := sorted(one.parent.name for one in folder.glob("*/run.json"))[:_NEAR_MAX]:
            return f" Runs in {folder}: {', '.join(runs)}."
    return ""


class StoredRun:
    """A run's folder. Each call reads anew."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.uri = store.uri
        self.name = unquote(store.uri.rstrip("/").rpartition("/")[2])

    def __repr__(self) -> str:
        return f"StoredRun({self.uri!r})"

    def steps(self) -> Steps:
        """Committed steps that led to where the run is, ascending: `step`, `lineage`, and `metrics` by name."""
        stretches = self._stretches()
        known: dict[int, Row] = {}
        for row in self._metrics_rows():
            up_to = next((last for lineage, _, last in stretches if lineage == row["lineage"]), None)
            if up_to is None or row["step"] > up_to:
                continue
            # A step at which a lineage took over was trained by the lineage before.
            step = known.setdefault(row["step"], {"step": row["step"], "lineage": row["lineage"], "metrics": {}})
            numbers = {key: value for key, value in row.items() if isinstance(value, int | float) and key != "step"}
            step["metrics"].update(numbers)
        return Steps(known[step] for step in sorted(known))

    def evaluations(self) -> Rows:
        """Finished evaluations of all lineages, by step and environment.

        `reward` is the mean over all rollouts, None if all failed. `variant` is `greedy` at temperature 0, None as sampled.
        `path` is the folder of its results, or their address in the bucket.
        """
        found = Rows()
        for lineage in self._lineages():
            keys = self._store.keys(f"{_branch(lineage)}evals/")
            for key in keys:
                named = re.fullmatch(r"(.*/evals/|evals/)([^/]+)/(step_(\d+)(?:\.r\d+)?(?:\.([^/]+))?)/metadata\.json", key)
                folder = key.rpartition("/")[0]
                if named is None or f"{folder}/results.jsonl" not in keys:
                    continue
                about = json.loads(self._read(key))
                environment, _, model = named[2].partition("--")
                found.append(
                    {
                        "step": int(named[4]),
                        "lineage": lineage,
                        "environment": environment,
                        "variant": named[5],
                        "model": model.replace("--", "/"),
                        "num_examples": about.get("num_examples"),
                        "rollouts_per_example": about.get("rollouts_per_example"),
                        "reward": about.get("avg_reward"),
                        "path": self._store.place(folder),
                    }
                )
        return Rows(sorted(found, key=lambda row: (row["step"], row["environment"], row["variant"] or "")))

    def rollouts(self, step: int | None = None, environment: str | None = None) -> Rows:
        """Scored rollouts of a step, or of all, by step, group and index.

        `outcome` is `ok`, `policy_failure` or `truncated` where there is a `reward`, else why there is none, such as
        `infra_failure`. `metrics` has every reward function, unweighted. `turns` have `text`, `finish_reason`,
        `prompt_token_ids`, `token_ids`, and `logprobs` (natural log, one per sampled id; None if not reported).

        A run that trains may be read: what is scored so far is there, also of the step under way. Empty for a step of
        which nothing is scored. Raises RatchetError `ConfigInvalid` if the run has no such environment.
        """
        return Rows(self.iter_rollouts(step, environment))

    def iter_rollouts(self, step: int | None = None, environment: str | None = None) -> Iterator[Row]:
        """As `rollouts`, one at a time: a long run's do not fit into memory."""
        if environment is not None:
            self._require_environment(environment)
        for one in self._sampled_steps() if step is None else [step]:
            keys = self._scored_keys(one)
            groups = [group for key in keys for group in _scored_groups(self._read(key), self._store.place(key))]
            for group in sorted(groups, key=lambda group: int(group["ordinal"])):
                if environment is None or group["environment"] == environment:
                    for rollout in group["rollouts"]:
                        yield _told(one, group, rollout)

    def _require_environment(self, name: str) -> None:
        spec = json.loads(self._read("run.json")).get("spec") or {}
        known = [one.get("name") for one in spec.get("environments") or []]
        if known and name not in known:
            raise RatchetError("ConfigInvalid", f"{self.name} has no environment {name!r}. It has: {', '.join(map(str, known))}.")

    def _read(self, key: str) -> bytes:
        content = self._store.read(key)
        if content is None:
            raise RatchetError("RunNotFound", f"{self._store.place(key)} was removed while the run was read.")
        return content

    def _metrics_rows(self) -> Iterator[Row]:
        text = (self._store.read("metrics.jsonl") or b"").decode("utf-8", "replace")
        for line in text.split("\n"):
            try:
                row = json.loads(line)
            except ValueError:
                continue  # the last line is being written, or its writer was killed: it is written again
            if isinstance(row, dict) and isinstance(row.get("step"), int) and isinstance(row.get("lineage"), str):
                yield row

    def _lineages(self) -> list[str]:
        """By name, oldest first; the newest is the current one."""
        origins = set(self._store.keys("origins/"))
        names = ["main"]
        while f"origins/lineage_{len(names) + 1}.json" in origins:
            names.append(f"l{len(names) + 1}")
        return names

    def _stretches(self) -> list[tuple[str, int, float]]:
        """Lineages that the current one consists of, itself first: name, first step, last step."""
        lineage, up_to = self._lineages()[-1], float("inf")
        stretches = []
        while lineage != "main":
            origin = json.loads(self._read(f"origins/lineage_{lineage[1:]}.json"))["origin"]
            stretches.append((lineage, origin["step"], up_to))
            lineage, up_to = origin["lineage"], origin["step"]
        return [*stretches, ("main", 0, up_to)]

    def _sampled_steps(self) -> list[int]:
        keys = [key for lineage in self._lineages() for key in self._store.keys(f"{_branch(lineage)}rollouts/")]
        found = [re.search(r"(?:^|/)rollouts/step_(\d+)/[^/]+/[^/]*scored\.jsonl[^/]*$", key) for key in keys]
        return sorted({int(one[1]) for one in found if one})

    def _scored_keys(self, step: int) -> list[str]:
        stretches = self._stretches()
        lineage = next(
            (name for name, first, last in stretches if step <= last and (step > first or first == 0)), stretches[0][0]
        )
        rounds: dict[str, list[str]] = {}
        for key in self._store.keys(f"{_branch(lineage)}rollouts/step_{step}/"):
            folder, _, name = key.rpartition("/")
            if folder.rpartition("/")[2].startswith("groups_"):
                rounds.setdefault(folder, []).append(name)
        return [f"{folder}/{name}" for folder, names in sorted(rounds.items()) for name in _scored_in(names)]


def _branch(lineage: str) -> str:
    return "" if lineage == "main" else f"lineages/{lineage}/"


def _scored_in(names: list[str]) -> list[str]:
    """An older file of the whole round counts where its chunks have none."""
    of_chunks = sorted(name for name in names if name.endswith(".scored.jsonl.gz"))
    return of_chunks or [name for name in _OLDER_SCORED if name in names][:1]


def _scored_groups(content: bytes, file: str) -> Iterator[Row]:
    try:
        text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        rows = [json.loads(line) for line in text.split(b"\n") if line]
    except (OSError, EOFError, ValueError) as error:
        raise RatchetError(
            "CheckpointDamaged", f"{file}: expected rows of JSON, found something else ({error}): npx ratchet-rl fsck RUN."
        ) from error
    for row in rows:
        if row.get("schemaVersion", 1) > SCORED_GROUP_VERSION:
            raise RatchetError(
                "WrittenByNewer",
                f"{file}: expected a scored group of version {SCORED_GROUP_VERSION} or older, found version "
                f"{row['schemaVersion']}. Install the ratchet-rl that is as new as the run's.",
            )
        yield row


def _told(step: int, group: Row, rollout: Row) -> Row:
    return {
        "step": step,
        "group": group["ordinal"],
        "index": rollout["index"],
        "environment": group["environment"],
        "example_id": group["exampleId"],
        "policy_step": group["policyStep"],
        "outcome": rollout["outcome"],
        "reward": rollout["reward"],
        "metrics": rollout["metrics"],
        "turns": _turns(rollout["turns"]),
        "error": rollout.get("error"),
    }


def _turns(stored: list[Row]) -> list[Row]:
    """A prompt that begins as an earlier turn's refers to it (`core/rl/rollout/shared-prompts.ts`)."""
    turns: list[Row] = []
    for turn in stored:
        prompt = turn.get("prompt")
        if prompt is None:
            ids = turn["promptTokenIds"]
        else:
            earlier = turns[prompt["as"]]
            ids = (earlier["prompt_token_ids"] + earlier["token_ids"])[: prompt["take"]] + prompt["rest"]
        turns.append(
            {
                "text": turn["text"],
                "finish_reason": turn["finishReason"],
                "prompt_token_ids": ids,
                "token_ids": turn["tokenIds"],
                "logprobs": turn["logprobs"],
            }
        )
    return turns
