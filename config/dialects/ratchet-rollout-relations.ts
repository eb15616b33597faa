import type { RatchetConfig } from '../settings/index.ts';
import type { RelationProblem } from './ratchet-relations.ts';
import { laidOver } from '../settings/sampling.ts';

/** Fields of a filter of rollouts, by the type they belong to. */
const fieldsOfFilter = {
  gibberish: ['token_id_threshold', 'logprob_offset'],
  repetition: ['window', 'prob_threshold'],
  zero_advantage: [],
  low_reward: ['min_reward'],
} as const;

/** What the fields say that decide which tokens of a rollout are trained. */
export function rolloutRelations(config: RatchetConfig): RelationProblem[] {
  return (['pre_batch_filters', 'post_batch_filters'] as const).flatMap((slot) =>
    config[slot].flatMap((filter, i) => filterRelations(filter, [slot, i])),
  );
}

/** What an environment says of its sampling, held against the run's. */
export function ownSamplingRelations({ env, sampling }: RatchetConfig): RelationProblem[] {
  return env.flatMap(({ sampling: own }, i): RelationProblem[] => {
    const at = (key: string) => ['env', i, 'sampling', key];
    const all = own && laidOver(sampling, own);
    return [
      ...(all && all.temperature !== sampling.temperature
        ? [
            {
              paths: [at('temperature'), ['sampling', 'temperature']],
              expected: `${sampling.temperature}, as [sampling] says: the loss divides the logits of a whole batch by one temperature`,
              received: String(all.temperature),
            },
          ]
        : []),
      ...(all && (all.min_tokens ?? 0) > all.max_tokens
        ? [
            {
              paths: [at('min_tokens'), at('max_tokens')],
              expected: `at most max_tokens (${all.max_tokens})`,
              received: String(all.min_tokens),
            },
          ]
        : []),
    ];
  });
}

function filterRelations(
  filter: RatchetConfig['pre_batch_filters'][number],
  at: readonly (string | number)[],
): RelationProblem[] {
  const own: readonly string[] = fieldsOfFilter[filter.type];
  const others = Object.entries(fieldsOfFilter).flatMap(([type, fields]) => fields.map((field) => ({ type, field })));
  const unsaid: RelationProblem[] =
    filter.type === 'low_reward' && filter.min_reward === undefined
      ? [{ paths: [[...at, 'min_reward'], at], expected: 'a number: what has less is left out', received: 'nothing' }]
      : [];
  const foreign = others.flatMap(({ type, field }) => {
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
  return [...unsaid, ...foreign];
}

/** What is legal but has no effect. */
export function rolloutWarnings({ overlong_rows, seq_len }: RatchetConfig): string[] {
  if (overlong_rows === 'truncate' || seq_len !== undefined) return [];
  return [`overlong_rows = "${overlong_rows}" has no effect without seq_len: no row is too long.`];
}
