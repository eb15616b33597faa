import type { EnvironmentSpec, JsonValue, PythonEnvironmentSpec } from '../../../config/run-spec.ts';
import type { LoadRequest } from './protocol.ts';

/**
 * Without a word about it, an agent of the v1 API works in a process of this machine and speaks with the model as it is: verifiers' own
 * default is a sandbox of Prime Intellect's, with an account there.
 */
const localAgent = { harness: { id: 'null' }, runtime: { type: 'subprocess' } };

/**
 * How an environment of a config is loaded. Its `args` are those of `load_environment` (v0), or the taskset's (v1), where the
 * tables `taskset` and `agent` are those of a v1 environment's own config, and `select` says which of its tasks, as verifiers' own commands
 * have it. What the config says of its agent and of its rollouts'
 * turns lies over that: verifiers keeps these bounds itself. `episode` is what its environment has of its own, further agents
 * among it; in one whose only agent has another name, what is said of the agent is said of that one.
 */
export function loadRequest(
  env: string,
  {
    python,
    args,
    agent: said = {},
    episode,
    limits,
    extra = {},
  }: Pick<EnvironmentSpec, 'args' | 'agent' | 'episode' | 'limits'> & {
    readonly python: PythonEnvironmentSpec;
    readonly extra?: Readonly<Record<string, JsonValue>> | undefined;
  },
): LoadRequest {
  const common = { env, env_id: python.module, api: python.api };
  if (python.api === 'v0') {
    return {
      ...common,
      args,
      ...(limits?.maxTurns == null ? {} : { max_turns: limits.maxTurns }),
      ...(Object.keys(extra).length === 0 ? {} : { extra }),
    };
  }
  const { taskset = {}, agent = {}, select, ...rest } = args;
  const over = { ...said, ...boundsOf(limits) };
  const config = {
    taskset,
    agent: isTable(agent) ? { ...agent, ...over } : agent,
    usual_agent: localAgent,
    ...(episode === undefined ? {} : { episode }),
    ...(select === undefined ? {} : { select }),
  };
  return { ...common, args: rest, config };
}

function boundsOf(limits: EnvironmentSpec['limits']): Record<string, number> {
  const { maxTurns, maxInputTokens, maxOutputTokens, maxTotalTokens } = limits ?? {};
  const bounds = {
    max_turns: maxTurns,
    max_input_tokens: maxInputTokens,
    max_output_tokens: maxOutputTokens,
    max_total_tokens: maxTotalTokens,
  };
  return Object.fromEntries(Object.entries(bounds).flatMap(([name, bound]) => (bound == null ? [] : [[name, bound]])));
}

function isTable(value: JsonValue): value is { [key: string]: JsonValue } {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
