import type { EnvironmentSpec, JsonValue, PythonEnvironmentSpec } from '../../../core/spec/run-spec.ts';
import type { LoadRequest } from './protocol.ts';

/**
 * Without a word about it, an agent of the v1 API works in a process of this machine and speaks with the model as it is: verifiers' own
 * default is a sandbox of Prime Intellect's, with an account there.
 */
const localAgent = { harness: { id: 'null' }, runtime: { type: 'subprocess' } };

/**
 * How an environment of a config is loaded. Its `args` are those of `load_environment` (v0), or the taskset's (v1), where the
 * tables `taskset` and `agent` are those of a v1 environment's own config.
 */
export function loadRequest(
  env: string,
  {
    python,
    args,
    extra = {},
  }: Pick<EnvironmentSpec, 'args'> & {
    readonly python: PythonEnvironmentSpec;
    readonly extra?: Readonly<Record<string, JsonValue>>;
  },
): LoadRequest {
  const common = { env, env_id: python.module, api: python.api };
  if (python.api === 'v0') return { ...common, args, ...(Object.keys(extra).length === 0 ? {} : { extra }) };
  const { taskset = {}, agent = {}, ...rest } = args;
  const config = { taskset, agent: isTable(agent) ? { ...localAgent, ...agent } : agent };
  return { ...common, args: rest, config };
}

function isTable(value: JsonValue): value is { [key: string]: JsonValue } {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
