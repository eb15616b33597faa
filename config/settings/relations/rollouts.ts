import type { RatchetConfig } from '../index.ts';
import { isTable } from '../../toml/tables.ts';
import { fieldsOfFilter } from '../filters.ts';
import { laidOver } from '../sampling.ts';
import { problem, type Relations } from './problem.ts';
import { oneTemperature } from './sampling.ts';

/** Relations between settings that decide which tokens are trained on. */
export function* rolloutRelations(config: RatchetConfig): Relations {
  for (const slot of ['pre_batch_filters', 'post_batch_filters'] as const) {
    for (const [i, filter] of config[slot].entries()) yield* filterRelations(filter, `${slot}.${i}`);
  }
}

function* filterRelations(filter: RatchetConfig['pre_batch_filters'][number], at: string): Relations {
  if (filter.type === 'low_reward' && filter.min_reward === undefined)
    yield problem([`${at}.min_reward`, at], 'a number: what has less is left out', 'nothing');
  for (const [type, fields] of Object.entries(fieldsOfFilter)) {
    if (type === filter.type) continue;
    for (const field of fields) {
      const value = filter[field as keyof typeof filter];
      if (value === undefined) continue;
      const expected = `nothing, or type = "${type}" beside it`;
      yield problem([`${at}.${field}`, `${at}.type`], expected, `${value} for type = "${filter.type}"`);
    }
  }
}

/** Relations between an environment's sampling and the run's. */
export function* ownSamplingRelations(config: RatchetConfig): Relations {
  const { env, sampling } = config;
  const reason = oneTemperature(config);
  for (const [i, { sampling: own }] of env.entries()) {
    if (own === undefined) continue;
    const all = laidOver(sampling, own);
    const at = (key: string) => `env.${i}.sampling.${key}`;
    if (sampling.temp_scheduler !== undefined && own.temperature !== undefined) {
      const expected = 'nothing beside [sampling.temp_scheduler]: it is the temperature of every environment';
      yield problem([at('temperature'), 'sampling.temp_scheduler'], expected, own.temperature);
    } else if (all.temperature !== sampling.temperature && reason !== null) {
      const expected = `${sampling.temperature}, as [sampling] says: ${reason}`;
      yield problem([at('temperature'), 'sampling.temperature'], expected, all.temperature);
    }
    if ((all.min_tokens ?? 0) > all.max_tokens)
      yield problem([at('min_tokens'), at('max_tokens')], `at most max_tokens (${all.max_tokens})`, all.min_tokens);
  }
}

/** An agent with an endpoint of its own is not trained; of the others of an episode one is the policy. */
export function* policyRelations({ env, eval: evaluation }: RatchetConfig): Relations {
  for (const [table, entries] of Object.entries({ env, 'eval.env': evaluation?.env ?? [] })) {
    for (const [i, { agent, episode = {} }] of entries.entries()) {
      const client = agent?.['client'];
      if (client === undefined || client === null || Object.values(episode).some(isTable)) continue;
      const expected =
        'nothing: this agent is the policy, which the run’s own servers sample; an endpoint that is not trained is another agent’s';
      yield problem(`${table}.${i}.agent.client`, expected, 'a client (not repeated here)');
    }
  }
}

/** Settings that are legal but without effect. */
export function rolloutWarnings({ overlong_rows, seq_len }: RatchetConfig): string[] {
  if (overlong_rows === 'truncate' || seq_len !== undefined) return [];
  return [`overlong_rows = "${overlong_rows}" has no effect without seq_len: no row is too long.`];
}
