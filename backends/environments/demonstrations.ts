import type { RunSpec } from '../../config/run-spec.ts';
import type { Environment } from './types.ts';

/** Why the warm-up that a run asks for has nothing to learn from; null where it has. `environments` = those that it trains on. */
export function whyNoDemonstrations(
  { sft }: Pick<RunSpec, 'sft'>,
  environments: readonly Pick<Environment, 'name' | 'demonstrate'>[],
): { readonly expected: string; readonly received: string } | null {
  if (!sft || sft.data || environments.some(({ demonstrate }) => demonstrate !== undefined)) return null;
  const names = environments.map(({ name }) => name).join(', ');
  return {
    expected: 'environments that give demonstrations, or rows of your own: [sft] data = "rows.jsonl"',
    received: `none of ${names} gives any (those of verifiers do not)`,
  };
}
