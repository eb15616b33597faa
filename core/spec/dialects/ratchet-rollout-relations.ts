import type { RatchetConfig } from './ratchet.ts';
import type { RelationProblem } from './ratchet-relations.ts';

/** Fields of a filter of rollouts, by the type they belong to. */
const fieldsOfFilter = {
  gibberish: ['token_id_threshold', 'logprob_offset'],
  repetition: ['window', 'prob_threshold'],
  zero_advantage: [],
} as const;

/** What the fields say that decide which tokens of a rollout are trained. */
export function rolloutRelations(config: RatchetConfig): RelationProblem[] {
  return (['pre_batch_filters', 'post_batch_filters'] as const).flatMap((slot) =>
    config[slot].flatMap((filter, i) => filterRelations(filter, [slot, i])),
  );
}

function filterRelations(
  filter: RatchetConfig['pre_batch_filters'][number],
  at: readonly (string | number)[],
): RelationProblem[] {
  const own: readonly string[] = fieldsOfFilter[filter.type];
  const others = Object.entries(fieldsOfFilter).flatMap(([type, fields]) => fields.map((field) => ({ type, field })));
  return others.flatMap(({ type, field }) => {
    const value = filter[field];
    if (value === undefined || own.includes(field)) return [];
    return [
      {
        paths: [
          [...at, field],
          [...at, 'type'],
        ],
        expected: `nothing, or type = "${type}" beside it`,
        received: `${value} for type = "${filter.type}"`,
      },
    ];
  });
}

/** What is legal but has no effect. */
export function rolloutWarnings({ overlong_rows, seq_len }: RatchetConfig): string[] {
  if (overlong_rows === 'truncate' || seq_len !== undefined) return [];
  return [`overlong_rows = "${overlong_rows}" has no effect without seq_len: no row is too long.`];
}
