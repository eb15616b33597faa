import type { MeasuredRollout } from '../rl/metrics.ts';
import type { RolloutRow } from '../rl/rollout/rollout.ts';
import type { JsonValue } from '../json-value.ts';

/** Measurements of a rollout, from its row in `results.jsonl`. */
export function measuredRow(row: RolloutRow): MeasuredRollout {
  const { reward, metrics, completion, token_usage: usage, ratchet } = row;
  const outcome = fieldOf(ratchet, 'outcome');
  const tokens = fieldOf(usage, 'output_tokens');
  return {
    reward: typeof reward === 'number' ? reward : null,
    outcome: typeof outcome === 'string' ? outcome : typeof reward === 'number' ? 'ok' : 'infra_failure',
    tokens: typeof tokens === 'number' ? tokens : 0,
    turns: Array.isArray(completion) ? completion.filter((said) => fieldOf(said, 'role') === 'assistant').length : 1,
    metrics: numbersIn(metrics),
    ...(fieldOf(ratchet, 'timed_out') === true ? { isTimedOut: true as const } : {}),
  };
}

/** Billed tokens of all rollouts, failed ones included. */
export function usedByRows(rows: readonly RolloutRow[]): { readonly prompt: number; readonly completion: number } {
  let [prompt, completion] = [0, 0];
  for (const { token_usage: usage } of rows) {
    const { input_tokens: input = 0, output_tokens: output = 0 } = numbersIn(usage);
    prompt += input;
    completion += output;
  }
  return { prompt, completion };
}

/** A row's example and reward; for `rewardsByExample`. */
export function rewardRow(row: RolloutRow): { example_id: number; reward: number | null } {
  const { example_id: id, reward } = row;
  return { example_id: Number(id ?? 0), reward: typeof reward === 'number' ? reward : null };
}

/** Digest of the system prompt that replaced the environment's own; undefined = none did. */
export function promptOf({ ratchet }: RolloutRow): string | undefined {
  const prompt = fieldOf(ratchet, 'prompt');
  return typeof prompt === 'string' ? prompt : undefined;
}

function fieldOf(value: JsonValue | undefined, key: string): JsonValue | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? value[key] : undefined;
}

function numbersIn(value: JsonValue | undefined): Record<string, number> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return {};
  return Object.fromEntries(
    Object.entries(value).filter((entry): entry is [string, number] => typeof entry[1] === 'number'),
  );
}
