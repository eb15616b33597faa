import type { JsonValue } from '../../../core/json-value.ts';
import { present } from '../../../core/present.ts';
import type { EnvironmentEntry, PythonEnvironment } from '../../../core/settings/environments.ts';
import type { LoadRequest } from './protocol.ts';

/**
 * The default: an agent of the v1 API works in a local process and calls the model directly: verifiers' own default is a
 * sandbox of Prime Intellect's, which needs an account.
 */
const localAgent = { harness: { id: 'null' }, runtime: { type: 'subprocess' } };

/**
 * The load request for an environment of a config. `args` are those of `load_environment` (v0), or the taskset's (v1).
 * There the tables `taskset` and `agent` are those of a v1 environment's own config, and `select` selects its tasks, as
 * in verifiers' own commands. The config's settings of the agent and of turns override them: verifiers enforces these
 * bounds itself. `episode` has the environment's own settings, further agents among them; in an environment whose only
 * agent has another name, settings of the agent apply to that one.
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
  }: Pick<EnvironmentEntry, 'args' | 'agent' | 'episode' | 'limits' | 'extra'> & {
    readonly python: PythonEnvironment;
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
    ...present({ episode, select }),
  };
  return { ...common, args: rest, config };
}

function boundsOf(limits: EnvironmentEntry['limits']): Record<string, number> {
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
