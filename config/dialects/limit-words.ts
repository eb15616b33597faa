import type { KeyPath } from '../toml/positions.ts';
import type { Table } from '../toml/tables.ts';
import type { Own } from './dialect.ts';

/** Translates verifiers v1's tables of rollout limits into our own words. */

interface Limited {
  readonly table: Table;
  /** Path in the file. */
  readonly from: KeyPath;
  /** Path of the environment's table in our words. */
  readonly ours: KeyPath;
}

/**
 * A rollout's own limit, or an episode's, is ours; those of other stages are the agent's, and verifiers enforces them.
 */
export function setTimeouts(own: Own, { table, from, ours }: Limited): void {
  for (const [stage, seconds] of Object.entries(table)) {
    const isWhole = stage === 'rollout' || stage === 'episode';
    own.set([...ours, ...(isWhole ? ['timeout'] : ['agent', 'timeout', stage])], seconds, [...from, stage]);
  }
}

/** Rules that distinguish failures do not apply here: only rollouts that the environment failed are repeated. */
export function setRetries(own: Own, { table, from, ours }: Limited): void {
  const { max_retries: most, ...others } = table;
  if (most !== undefined) own.set([...ours, 'max_retries'], most, [...from, 'max_retries']);
  for (const [key, value] of Object.entries(others)) {
    if (Array.isArray(value) && value.length === 0) continue;
    own.refuse({
      paths: [[...from, key]],
      expected:
        'max_retries alone: what the environment spoiled is played again, and what the model server could not do is asked for again for as long as it takes',
      received: JSON.stringify(value),
    });
  }
}

/** Takes our limits out of an agent's table; the rest, such as its harness and its runtime, stays there. */
export function setAgent(own: Own, { table, from, ours }: Limited): void {
  const { timeout, retries, ...rest } = table;
  for (const [key, value] of Object.entries(rest)) {
    if (key === 'max_total_completion_tokens') {
      if (Number(value) > 0) own.set([...ours, 'max_output_tokens'], value, [...from, key]);
    } else own.set([...ours, ...(limits.includes(key) ? [key] : ['agent', key])], value, [...from, key]);
  }
  if (typeof timeout === 'number') own.set([...ours, 'timeout'], timeout, [...from, 'timeout']);
  else if (timeout !== undefined) setTimeouts(own, { table: timeout as Table, from: [...from, 'timeout'], ours });
  if (retries !== undefined) setRetries(own, { table: retries as Table, from: [...from, 'retries'], ours });
}

const limits: readonly string[] = [
  'max_turns',
  'max_input_tokens',
  'max_output_tokens',
  'max_total_tokens',
  'max_retries',
];
