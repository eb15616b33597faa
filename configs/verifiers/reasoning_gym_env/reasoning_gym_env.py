"""Tasks that reasoning-gym generates and scores, as a verifiers environment. Downloads nothing."""

import verifiers as vf
from verifiers.envs.integrations.reasoninggym_env import DEFAULT_SYSTEM_PROMPT, ReasoningGymEnv


def load_environment(
    gym: str | list = "arc_1d",
    num_train_examples: int = 2000,
    num_eval_examples: int = 200,
    seed: int = 0,
    think: bool = True,
    answer_after: str | None = None,
) -> vf.Environment:
    """`gym`: a task's name, or a list of names and of {name, weight, config}. `think = false`: the answer alone, no tags, or what stands
    behind the last `answer_after`."""
    settings = {"num_train_examples": num_train_examples, "num_eval_examples": num_eval_examples, "seed": seed}
    if think:
        return ReasoningGymEnv(gym, system_prompt=DEFAULT_SYSTEM_PROMPT, **settings)
    parser = vf.Parser() if answer_after is None else vf.Parser(lambda text: text.rsplit(answer_after, 1)[-1].rstrip(" ."))
    return ReasoningGymEnv(gym, system_prompt="", parser=parser, **settings)
