"""Environments of verifiers' v1 API (0.4): a taskset, its agents, and episodes as rows."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import time
from typing import Any

from pydantic import BaseModel, ValidationError
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.agent import AgentConfig, agent_config_fields
from verifiers.v1.configs.select import SelectConfig
from verifiers.v1.configs.taskset import TasksetConfig
from verifiers.v1.taskset import Taskset
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.decorators import discover_decorated
from verifiers.v1.utils.generic import concrete_type
from verifiers.v1.utils.loaders import env_config_type, load_environment, resolve_env_config, taskset_class

from . import check, v1_client
from .failures import Refused, describe, explain_load, failed_rollout, must_pass
from .parts import FirstUnlikeText
from .policy import Policy
from .system_prompt import with_system_prompt
from .v1_client import ADDRESS, config_for, initial_messages
from .wire import Message, Wire, to_line

#: Default length of an endless taskset, since a dataset needs one.
ENDLESS_TASKS = 2_000
#: Limit at which a taskset is refused that is endless without saying so.
TASKS_MAX = 1_000_000
TASKS_MAX_S = 240.0


class V1Environment:
    """One loaded environment, with the services for its agents while it is loaded."""

    def __init__(
        self, handle: str, env: Any, tasks: Any, stack: contextlib.AsyncExitStack, policy: Policy, wire: Wire
    ) -> None:
        self.handle = handle
        self.env = env
        self._policy = policy
        #: Selected part of its taskset: verifiers' `select`.
        self.tasks = tasks
        self._stack = stack
        self._wire = wire

    def describe(self) -> Message:
        task = next(iter(self.tasks), None)
        rewards = [] if task is None else [(fn.__name__, float(getattr(fn, "_vf_weight", 1.0))) for fn in task.hooks("reward")]
        metrics = [] if task is None else [(fn.__name__, 0.0) for fn in task.hooks("metric")]
        agents = agent_config_fields(self.env.config)
        return {
            "env": self.handle,
            "api": "v1",
            "class": type(self.env).__name__,
            "requires_group": False,
            "provides_advantages": False,
            "reward_names": [name for name, _ in [*rewards, *metrics]],
            "weights": [weight for _, weight in [*rewards, *metrics]],
            "system_prompt": None if task is None else task.data.system_prompt,
            "tools": None,
            "max_turns": next((config.max_turns for config in agents.values()), None),
            "sampling": {},
            "scoring": "in_place",
            "scoring_why": "an episode's rewards may look at the place where its agent worked",
            "is_single_turn": False,
            "agents": [name for name, config in agents.items() if config.client is None],
        }

    def inputs(self, split: str) -> Message:
        """A taskset has one list of tasks; which of them are for evaluation is the config's choice."""
        path = self._wire.new_file("jsonl")
        total = 0
        began = time.monotonic()
        tasks = self.tasks if self.tasks.bounded else self.tasks.take(ENDLESS_TASKS)
        first = FirstUnlikeText()
        with path.open("wb") as file:
            for task in tasks:
                if total >= TASKS_MAX or time.monotonic() - began > TASKS_MAX_S:
                    raise Refused(
                        "TasksWithoutEnd",
                        f"{type(self.env.taskset).__name__} had given {total} tasks after {time.monotonic() - began:.0f} s, and no end of them",
                        "bound it: args = { select = { limit = 1000 } }, or INFINITE = True in the class where it is endless",
                    )
                data = task.data
                row = {
                    "prompt": initial_messages(data.system_prompt, data.prompt),
                    "example_id": total,
                    "answer": str(getattr(data, "answer", "") or ""),
                    "task": data.model_dump(mode="json", exclude_none=True),
                }
                first.look(row["prompt"])
                file.write(to_line(row) + b"\n")
                total += 1
        return {"total": total, "file": str(path), "changed_columns": [], "cut_off": not self.tasks.bounded, **first.describe()}

    async def check(self) -> Message:
        """Same as `check` of the older API: settings of its taskset, and its description."""
        kind = type(self.env.taskset)
        return {
            "arguments": arguments_of(type(self.env.config.taskset)),
            "doc": inspect.getdoc(kind) if kind.__doc__ else None,
            "findings": check.requirement_findings(kind.__module__.split(".")[0]),
            "tools": tools_of(self.env.taskset),
        }

    async def rollout(self, request: object, message: Message) -> Message:
        """An episode, as the row of the trained agent."""
        started = time.time()
        given = message["input"]
        row = with_system_prompt(json.loads(given) if isinstance(given, str) else given, message.get("system_prompt"))
        try:
            episode = await self._play(request, within(row["task"], message.get("truncate_s")), message)
        except BaseException as error:
            if must_pass(error):
                raise
            return failed_rollout(error, row, started)
        finally:
            heard = self._policy.take_heard(request)
        return {**to_result(episode, row), **lateness(episode, heard)}

    async def episode(self, request: object, message: Message) -> Message:
        """A whole episode in the format of verifiers' traces.jsonl."""
        episode = await self._play(request, message["task"], message)
        self._policy.take_heard(request)
        return {"episode": episode.model_dump(mode="json", exclude_none=True)}

    async def _play(self, request: object, data: Message, message: Message) -> Any:
        kind = type(self.env.taskset).task_type()
        task = kind(kind.data_type().model_validate(data), self.env.config.taskset.task)
        context = ModelContext(
            client=config_for(request),
            model=str(message.get("model") or "policy"),
            sampling=SamplingConfig(**(message.get("sampling") or {})),
        )
        (slot,) = self.env.slots(task)
        return await self.env.run_slot(slot, context)

    async def unload(self) -> Message:
        await self._stack.aclose()
        return {}


def within(task: Message, seconds: float | None) -> Message:
    """
    The task with its agent's time limit: verifiers ends it then, and scores what there is. An agent's own limit has
    precedence.
    """
    if seconds is None:
        return task
    limits = task.get("timeout") or {}
    own = limits.get("agent")
    return {**task, "timeout": {**limits, "agent": seconds if own is None else min(own, seconds)}}


def lateness(episode: Any, heard: int) -> Message:
    """True if the time of an episode, or of one of its agents, was over."""
    sampled = [trace for trace in episode.traces if is_sampled(trace)]
    if not sampled or not (episode.is_timeout or any(trace.is_timeout for trace in sampled)):
        return {}
    return {"timed_out": True, "heard_turns": min(heard, sum(trace.num_turns for trace in sampled))}


def load(message: Message, loop: asyncio.AbstractEventLoop, policy: Policy, wire: Wire) -> V1Environment:
    env_id = str(message["env_id"])
    v1_client.install(policy)
    config = dict(message.get("config") or {})
    selected = config.pop("select", None)
    config["taskset"] = {"id": env_id, **(config.get("taskset") or {})}
    if message.get("args"):
        config["taskset"].update(message["args"])
    try:
        env = load_environment(resolve_env_config(with_agents(config)))
        tasks = env.taskset.select(SelectConfig.model_validate(selected or {}))
    except ValidationError as error:
        raise wrong_arguments(error, env_id) from error
    except Exception as error:
        module = env_id.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_").lower()
        explained = explain_load(error, env_id, module, "")
        if explained is error:
            raise
        raise explained from explained.__cause__
    stack = contextlib.AsyncExitStack()
    loop.run_until_complete(stack.enter_async_context(env.serving()))
    return V1Environment(str(message["env"]), env, tasks, stack, policy, wire)


def with_agents(config: Message) -> Message:
    """
    The config in verifiers' form: each of the environment's agents with the defaults below its own settings. Settings for
    "agent" apply to the only agent, whatever its role is called.
    """
    usual = config.pop("usual_agent", {})
    said = config.pop("agent", {})
    more = config.pop("episode", {})
    env_id = str(more.get("id") or "")
    kind = env_config_type(config["taskset"]["id"], env_id)
    roles = {name: field.default for name, field in kind.model_fields.items() if isinstance(field.default, AgentConfig)}
    if len(roles) == 1:
        (only,) = roles
        more = {**more, only: {**(more.get(only) or {}), **said}}
    elif said:
        more = {**more, "agent": said}
    agents = {name: {**usual_of(default, usual), **(more.get(name) or {})} for name, default in roles.items()}
    alone = [name for name, agent in agents.items() if agent.get("client") is None]
    renamed = [name for name in alone if agent_of(more, name).get("model") is not None]
    if renamed:
        name = renamed[0]
        raise Refused(
            "ModelWithoutClient",
            f"{name} has a model of its own, and no client that has it",
            f'say where it is served: {name}.client = {{ base_url = "…" }}; without a model it is the policy',
        )
    if not alone:
        raise Refused(
            "NoPolicy",
            f"each of its agents {', '.join(roles)} has a client of its own, so that none is the policy",
            f"take the client and the model of one away, {next(iter(roles))} or another",
        )
    return {**config, **more, **agents}


def agent_of(more: Message, name: str) -> Message:
    said = more.get(name)
    return said if isinstance(said, dict) else {}


def usual_of(default: AgentConfig, usual: Message) -> Message:
    """Keeps a harness that the environment's author chose."""
    return {key: value for key, value in usual.items() if key != "harness" or default.harness is None}


def wrong_arguments(error: ValidationError, env_id: str) -> Refused:
    """pydantic's findings, each with its name, and the possible settings."""
    said = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the config'}: {one['msg']}" for one in error.errors(include_url=False))
    try:
        cls = taskset_class(env_id)
        kind = concrete_type(cls, TasksetConfig, origin=Taskset) or TasksetConfig
        takes = ", ".join(name if one["default"] is None else f"{name} = {one['default']}" for one in arguments_of(kind) for name in [one["name"]])
    except Exception:  # the package itself is broken: what pydantic said has to do
        takes = ""
    return Refused("WrongArguments", f"{env_id}: {said}", f"its taskset takes {takes or 'no arguments of its own'}; correct the args")


def arguments_of(kind: type[BaseModel]) -> list[Message]:
    """Fields of a taskset's config besides those that all have."""
    return [
        {"name": name, "default": default_of(field), "annotation": annotation_of(field.annotation)}
        for name, field in kind.model_fields.items()
        if name not in TasksetConfig.model_fields
    ]


def tools_of(taskset: Any) -> list[Message]:
    """Tools that the servers of a taskset and of its tasks offer; none of them is started for this."""
    servers = [*taskset.toolsets(taskset.config), *type(taskset).task_type().toolsets(taskset.config.task)]
    return [
        {
            "name": f"{server.server_name}_{name}" if server.server_name else name,
            "description": inspect.getdoc(tool) or "",
            "parameters": list(inspect.signature(tool).parameters),
        }
        for server in servers
        for tool in discover_decorated(server, "tool")
        for name in [getattr(tool, "tool_name", None) or tool.__name__]
    ]


def default_of(field: Any) -> str | None:
    if field.is_required():
        return None
    value = field.get_default(call_default_factory=True)
    return to_line(value.model_dump(mode="json") if isinstance(value, BaseModel) else value).decode()


def annotation_of(annotation: Any) -> str | None:
    return annotation.__name__ if isinstance(annotation, type) else None if annotation is None else str(annotation)


def to_result(episode: Any, given: Message) -> Message:
    """
    The trained trace in the format of the older API's results.jsonl. With several agents of the policy, the row is the first
    trained one's, and `judged` has the results of each.
    """
    sampled = [trace for trace in episode.traces if is_sampled(trace)]
    trace = next((trace for trace in sampled if trace.agent.trainable), None)
    if trace is None:
        text = "; ".join(error.message for error in episode.errors) or "no agent of it samples the policy"
        return failed_rollout(Refused("NoTrace", f"the episode has no trace to train on: {text}"), given, time.time())
    if len(sampled) == 1:
        outcome, error = outcome_of(episode, trace)
        judged = judged_of(trace) if outcome in ("ok", "truncated") else None
    else:
        trace, outcome, error, judged = outcome_of_agents(episode, sampled)
    messages = [v1_client.message_to_wire(message) for message in trace.messages]
    prompt = given["prompt"]
    usage = trace.usage
    reward = judged.get("reward") if judged else None
    metrics = (judged or {}).get("metrics") or {}
    row = {
        "example_id": given["example_id"],
        "prompt": prompt,
        "completion": messages[len(prompt) :] if messages[: len(prompt)] == prompt or len(sampled) == 1 else messages,
        "answer": given.get("answer", ""),
        "info": {"task": given["task"], "trace": trace.id, "traces": len(episode.traces)},
        "reward": reward,
        "metrics": metrics,
        **metrics,
        "error": None if error is None else {"error": error["type"], "message": error["message"]},
        "timing": trace.timing.model_dump(mode="json"),
        "is_completed": trace.is_completed,
        "is_truncated": trace.is_truncated,
        "stop_condition": trace.stop_condition,
        "token_usage": {
            "input_tokens": float(usage.input_tokens if usage else 0),
            "output_tokens": float(usage.completion_tokens if usage else 0),
        },
    }
    return {
        "row": row,
        "outcome": outcome,
        "error": error,
        "scorable": False,
        "scoring_why": "an episode is scored when it ends",
        "judged": judged,
        "live": None,
    }


def outcome_of_agents(episode: Any, sampled: list[Any]) -> tuple[Any, str, Message | None, Message | None]:
    """
    For an episode with several agents of the policy: its first trained trace, its outcome, its failure, and the judgements
    of all. An agent that failed by itself, or in scoring, is not trained, as in prime-rl (`iter_trainable_traces`); a failed
    episode has no rewards.
    """
    trainable = [trace for trace in sampled if trace.agent.trainable]
    has_failed = not episode.ok and bool(episode.errors)
    ended = {trace.id: outcome_of(episode, trace) if has_failed or not trace.ok else outcome_alone(trace) for trace in trainable}
    trained = [trace for trace in trainable if ended[trace.id][0] in ("ok", "truncated") and trace.num_turns > 0]
    if not trained:
        outcome, error = ended[trainable[0].id]
        return trainable[0], "infra_failure" if error is None else outcome, error or without_turns, None
    outcome = "truncated" if any(ended[trace.id][0] == "truncated" for trace in trained) else "ok"
    judgements = {trace.id: judged_of(trace) for trace in trained}
    scored = [trace for trace in trained if "error" not in judgements[trace.id]]
    if not scored:
        return trained[0], outcome, None, judgements[trained[0].id]
    return scored[0], outcome, None, judged_agents(sampled, {trace.id: judgements[trace.id] for trace in scored})


without_turns = {"type": "NoTurns", "message": "no agent that is trained was asked for a turn", "retryable": False, "traceback": ""}


def outcome_alone(trace: Any) -> tuple[str, None]:
    return ("truncated" if trace.is_truncated or trace.is_timeout else "ok"), None


def judged_agents(sampled: list[Any], judgements: dict[str, Message]) -> Message:
    """
    Mean over trained agents, from their judgements by the trace's id, and each trace on its own; metrics have the agent's
    name as prefix.
    """
    by_name: dict[str, list[float]] = {}
    for trace in sampled:
        if trace.id not in judgements:
            continue
        judged = judgements[trace.id]
        for name, value in {"reward": judged["reward"], **judged["metrics"]}.items():
            by_name.setdefault(f"{trace.agent.name or 'agent'}/{name}", []).append(value)
    nothing: Message = {"reward": 0.0, "metrics": {}}
    return {
        "reward": mean([judged["reward"] for judged in judgements.values()]),
        "metrics": {name: mean(values) for name, values in by_name.items()},
        "traces": [
            {
                "trace": trace.id,
                "agent": trace.agent.name or "agent",
                "trained": trace.id in judgements,
                "truncated": trace.is_truncated or trace.is_timeout,
                **judgements.get(trace.id, nothing),
            }
            for trace in sampled
        ],
    }


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def is_sampled(trace: Any) -> bool:
    client = trace.agent.config.client
    return client is not None and client.base_url.startswith(ADDRESS)


def outcome_of(episode: Any, trace: Any) -> tuple[str, Message | None]:
    said = [*trace.errors, *episode.errors]
    last = said[-1] if said else None
    if (trace.ok and episode.ok) or failed_in_scoring(last):
        return ("truncated" if trace.is_truncated or trace.is_timeout else "ok"), None
    error = {
        "type": last.type if last else "Unknown",
        "message": last.message if last else "the episode did not end well",
        "retryable": bool(last and last.type in ("ProviderError", "SandboxError", "TunnelError", "InterceptionError")),
        "traceback": (last.traceback or "") if last else "",
    }
    if any("context length exceeded" in failure.message for failure in said):
        return ("overlong_prompt" if trace.num_turns == 0 else "truncated"), error
    return "infra_failure", error


def failed_in_scoring(error: Any) -> bool:
    """The rollout itself succeeded then, and may be a value that a reward function cannot handle."""
    return error is not None and error.type == "TaskError" and " scoring: " in error.message


def judged_of(trace: Any) -> Message:
    if failed_in_scoring(trace.last_error):
        error = trace.last_error
        return {"error": {"type": error.type, "message": error.message, "traceback": error.traceback or ""}}
    unscored = [name for name, reward in trace.rewards.items() if reward is None]
    if unscored:
        return {"error": describe(Refused("NotScored", f"no score came of {', '.join(unscored)}"))}
    scores = {name: reward.score for name, reward in trace.rewards.items()}
    metrics = {**scores, **{name: value for name, value in trace.metrics.items() if value is not None}}
    if not all(value - value == 0 for value in [trace.reward, *metrics.values()]):
        return {"error": describe(Refused("NotFinite", f"a reward must be a finite number, but {trace.reward} came, of {metrics}"))}
    return {"reward": float(trace.reward), "metrics": metrics}
