"""Two environments as one."""

import toy_multi
import toy_single
import verifiers as vf


def load_environment(group: bool = False) -> vf.Environment:
    return vf.EnvGroup(
        envs=[toy_single.load_environment(n=3, group=group), toy_multi.load_environment(n=2)], env_names=["single", "multi"]
    )
