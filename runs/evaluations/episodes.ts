import type { JsonValue } from '../../config/run-spec.ts';

/**
 * Evaluations of verifiers' v1 API (`vf-eval` of 0.4): `traces.jsonl`, an Episode a line, and `configs/resolved/eval.json`. They
 * are read as rows and metadata of the older form, so that everything else knows one.
 */

type Json = { readonly [key: string]: unknown };

export function isEpisode(value: unknown): value is Json {
  return isObject(value) && isObject(value['task']) && Array.isArray(value['traces']);
}

/**
 * An episode as the row of its first trained agent, with the conversation that led to its last message. The reward is
 * the weighted sum; metrics have the parts unweighted.
 */
export function rowOfEpisode(episode: Json): Json {
  const traces = objectsIn(episode['traces']);
  const trace = traces.find((one) => objectIn(one, 'agent')['trainable'] === true) ?? traces[0] ?? {};
  const task = objectIn(episode, 'task');
  const data = objectIn(task, 'data');
  const messages = conversation(objectsIn(trace['nodes']));
  const said = messages.findIndex(({ sampled }) => sampled);
  const first = said < 0 ? messages.length : said;
  const scores = Object.entries(objectIn(trace, 'rewards')).map(([name, value]) => {
    const { score, weight } = (isObject(value) ? value : {}) as { score?: number; weight?: number };
    return { name, score: score ?? 0, weight: weight ?? 1 };
  });
  const error = [...objectsIn(trace['errors']), ...objectsIn(episode['errors'])][0];
  const isOk = episode['ok'] === true && error === undefined;
  const { idx, prompt: _, system_prompt: __, answer, ...info } = data;
  return {
    example_id: typeof idx === 'number' ? idx : task['key'],
    prompt: messages.length === 0 ? promptOf(data) : messages.slice(0, first).map(({ message }) => message),
    completion: messages.slice(first).map(({ message }) => message),
    answer,
    info,
    reward: scores.length === 0 ? null : scores.reduce((sum, { score, weight }) => sum + score * weight, 0),
    error: isOk ? null : errorOf(error, episode),
    metrics: {
      ...Object.fromEntries(scores.map(({ name, score }) => [name, score])),
      ...objectIn(trace, 'metrics'),
    },
    is_truncated: objectsIn(trace['calls']).at(-1)?.['finish_reason'] === 'length',
    stop_condition: trace['stop_condition'],
    timing: { total: secondsOf(objectIn(trace, 'timing')) },
    tool_defs: trace['tools'],
    token_usage: { input_tokens: trace['num_input_tokens'], output_tokens: trace['num_output_tokens'] },
    episode: episode['id'],
    ...(traces.length > 1 ? { agents: traces.map((one) => objectIn(one, 'agent')['name']) } : {}),
  };
}

interface Heard {
  readonly message: Json;
  readonly sampled: boolean;
}

/** Nodes form a tree: the path from its root to the last of them. */
function conversation(nodes: readonly Json[]): Heard[] {
  const way: Heard[] = [];
  const been = new Set<number>();
  for (let at: unknown = nodes.length - 1; typeof at === 'number' && nodes[at] && !been.has(at);) {
    been.add(at);
    const node = nodes[at]!;
    way.unshift({ message: objectIn(node, 'message'), sampled: node['sampled'] === true });
    at = node['parent'];
  }
  return way;
}

function promptOf({ system_prompt: system, prompt }: Json): unknown {
  if (typeof prompt !== 'string') return prompt;
  const messages = [{ role: 'user', content: prompt }];
  return typeof system === 'string' ? [{ role: 'system', content: system }, ...messages] : messages;
}

function errorOf(error: Json | undefined, { is_timeout: isTimeout }: Json): Json {
  const type = error?.['type'] ?? error?.['error'] ?? (isTimeout === true ? 'timeout' : 'error');
  const message = error?.['message'] ?? error?.['traceback'] ?? type;
  return { error: type, message };
}

function secondsOf(timing: Json): number | null {
  const ends = Object.values(timing).flatMap((span) =>
    isObject(span) && typeof span['end'] === 'number' ? [span['end']] : [],
  );
  const { start } = timing;
  return typeof start === 'number' && ends.length > 0 ? Math.max(...ends) - start : null;
}

/** `configs/resolved/eval.json` in the words of metadata.json. */
export function metadataOfConfig(config: unknown): { [key: string]: JsonValue } | null {
  if (!isObject(config)) return null;
  const env = objectIn(config, 'env');
  const { id, task: _, ...args } = objectIn(env, 'taskset');
  const { base_url: baseUrl } = objectIn(config, 'client');
  const harness = objectIn(objectIn(env, 'agent'), 'harness')['id'];
  return {
    env_id: (env['id'] || id || '') as string,
    env_args: { ...(args as { [key: string]: JsonValue }), ...(typeof harness === 'string' ? { harness } : {}) },
    model: typeof config['model'] === 'string' ? config['model'] : '',
    base_url: typeof baseUrl === 'string' ? baseUrl : '',
    rollouts_per_example: typeof config['num_rollouts'] === 'number' ? config['num_rollouts'] : null,
    sampling_args: objectIn(config, 'sampling') as { [key: string]: JsonValue },
  };
}

function objectIn(value: Json, name: string): Json {
  const found = value[name];
  return isObject(found) ? found : {};
}

function objectsIn(value: unknown): Json[] {
  return Array.isArray(value) ? value.filter(isObject) : [];
}

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
