import type { JsonValue } from '../json-value.ts';
import type { Rollout, RolloutRow, ToolCall, Turn } from '../rl/rollout/rollout.ts';
import type { EvaluationInput } from './evaluation.ts';
import { canonical } from './same-evaluation.ts';

/** Continues an evaluation with results that vf-eval wrote. */

/**
 * Differences between its metadata and the request, each as `name was …, is …`. vf-eval itself compares neither
 * arguments nor sampling.
 */
export function differencesFromMetadata(
  metadata: RolloutRow,
  input: Omit<EvaluationInput, 'results'>,
  examples: number,
  /** The environment's own sampling settings; null = unknown, so that only requested ones are compared. */
  ownSampling: RolloutRow | null,
): string[] {
  const { environment, model, rolloutsPerExample, shuffleSeed } = input;
  const pairs: [name: string, before: unknown, now: unknown][] = [
    ['env_id', plainId(textOf(metadata['env_id'])), plainId(environment.id)],
    ['env_args', metadata['env_args'] ?? {}, environment.args],
    ['system_prompt', metadata['system_prompt'] ?? null, environment.systemPrompt ?? null],
    ['model', metadata['model'], model.model],
    ['rollouts_per_example', metadata['rollouts_per_example'], rolloutsPerExample],
    ['shuffle_seed', metadata['shuffle'] === true ? metadata['shuffle_seed'] : null, shuffleSeed],
    ['sampling_args', ...samplingOfBoth(metadata['sampling_args'], fieldsOf(model), ownSampling)],
  ];
  const differences = pairs.flatMap(([name, before, now]) => {
    const [one, other] = [canonical(before), canonical(now)];
    return one === other ? [] : [`${name} was ${one}, is ${other}`];
  });
  if (!('env_id' in metadata) && 'env' in metadata) {
    return ['its results are of verifiers before 0.1.6, whose rows do not say which example they are of'];
  }
  const before = Number(metadata['num_examples']);
  if (examples < before) differences.push(`num_examples was ${before}, is ${examples} (it may only grow)`);
  return differences;
}

function samplingOfBoth(before: JsonValue | undefined, asked: RolloutRow, own: RolloutRow | null): [unknown, unknown] {
  const [said, now] = [samplingOf(before), samplingOf({ ...own, ...asked })];
  if (own !== null) return [said, now];
  return [Object.fromEntries(Object.entries(said).filter(([name]) => name in now)), now];
}

function fieldsOf(model: EvaluationInput['model']): RolloutRow {
  return model.kind === 'endpoint' ? model.sampling : {};
}

function textOf(value: JsonValue | undefined): string {
  return typeof value === 'string' ? value : '';
}

/** Removes verifiers' own additions, and fields that requests leave out. */
function samplingOf(sampling: JsonValue | undefined): Record<string, JsonValue> {
  const given = Object.entries((sampling ?? {}) as Record<string, JsonValue>).filter(
    ([name, value]) =>
      value !== null && !(name === 'n' && value === 1) && !(name === 'extra_body' && canonical(value) === '{}'),
  );
  return Object.fromEntries(given);
}

function plainId(id: string): string {
  return id.split('/').at(-1)!.split('@', 1)[0]!.replaceAll('_', '-');
}

/**
 * The rows of one file by example, each example's in the order of the file; torn lines and failed rollouts are left
 * out.
 */
export function goodRowsByExample(text: string, parse: (line: string) => unknown): Map<number, RolloutRow[]> {
  const rows = new Map<number, RolloutRow[]>();
  for (const line of text.split('\n')) {
    const row = parse(line) as RolloutRow | null;
    const id = row?.['example_id'];
    if (row === null || typeof id !== 'number' || typeof row['reward'] !== 'number' || row['error'] != null) continue;
    rows.set(id, [...(rows.get(id) ?? []), row]);
  }
  return rows;
}

/** Converts a row back to its rollout, with its judgement. */
export function rolloutOfRow(row: RolloutRow, place: Pick<Rollout, 'group' | 'index' | 'exampleId'>): Rollout {
  const said = Array.isArray(row['completion']) ? (row['completion'] as RolloutRow[]) : [];
  return {
    ...place,
    turns: said.filter(({ role }) => role === 'assistant').map(turnOf),
    outcome: row['is_truncated'] === true ? 'truncated' : 'ok',
    record: row,
    judged: { reward: row['reward'] as number, metrics: (row['metrics'] ?? {}) as Record<string, number> },
  };
}

function turnOf({ content, tool_calls: calls }: RolloutRow): Turn {
  const toolCalls = (Array.isArray(calls) ? calls : []).map((call): ToolCall => {
    const { name, arguments: args } = (typeof call === 'string' ? JSON.parse(call) : call) as Record<string, string>;
    return { name: name ?? '', arguments: args ?? '{}' };
  });
  return {
    promptTokenIds: [],
    tokenIds: [],
    logprobs: [],
    text: typeof content === 'string' ? content : '',
    ...(toolCalls.length === 0 ? {} : { toolCalls }),
    finishReason: 'stop',
    said: { usage: null },
    policyStep: 0,
  };
}
