import type { z } from 'zod';
import { formatPath } from '../../toml/positions.ts';
import { type Table, valueAt } from '../../toml/tables.ts';
import { anyNumber, decay, flag } from '../../toml/values.ts';
import { converted, type Field, ignored, type Own, refused, together } from '../dialect.ts';
import { all } from '../ours.ts';
import { ofTrainer } from './prime-rl-meaning.ts';
import { found } from './prime-rl-words.ts';

/** `trainer.optim` in all versions: a type, and settings that only some types have. */

const ofType = {
  betas1: ['adamw', 'muon'],
  betas2: ['adamw', 'muon'],
  mu: ['muon'],
  momentum: ['sgd'],
  nesterov: ['sgd'],
} as const;

/** AdamW is the default. */
export const optimizerType = (types: z.ZodType): Field =>
  converted('trainer.optimizer', types, (type) => (type === 'adamw' ? undefined : type), { default: 'adamw' });

export const optimizerRows: Readonly<Record<string, Field>> = {
  'optim.betas1': together('`trainer.beta1`', decay(), { default: '0.9' }),
  'optim.betas2': together('`trainer.beta2`', decay(), { default: '0.999; of Muon 0.95' }),
  'optim.mu': together('`trainer.momentum`, of Muon', decay(), { default: '0.95' }),
  'optim.momentum': together('`trainer.momentum`, of SGD', decay(), { default: '0.9' }),
  'optim.nesterov': together('`trainer.nesterov`, of SGD', flag(), { default: 'true' }),
  'optim.embedding_update?': refused('the embedding’s own update beside Muon; leave it out, then AdamW updates it'),
  ...all(
    'optim.sinkhorn_iters optim.sinkhorn_tau optim.sinkhorn_eps optim.sinkhorn_lr_scale optim.engram_lr_scale',
    ignored('it is about optim.embedding_update, which is not here', anyNumber()),
  ),
  'optim.apply_in_backward': ignored('it is about the memory of GPUs alone', flag()),
};

const ours = {
  betas1: 'beta1',
  betas2: 'beta2',
  mu: 'momentum',
  momentum: 'momentum',
  nesterov: 'nesterov',
} as const;

/** Muon's defaults, and until 0.5 its values whatever `trainer.optim` says (prime-rl #1754). */
const ofMuon = { beta1: 0.9, beta2: 0.95, momentum: 0.95 } as const;

export function setOptimizer(
  written: Table,
  own: Own,
  { muonIsFixed = false, ...version }: { readonly muonIsFixed?: boolean; readonly trainer?: '' } = {},
): void {
  const at = (key: string) => ofTrainer(version, 'optim', key);
  const named = valueAt(written, at('type'));
  const type = typeof named === 'string' ? named : 'adamw';
  for (const [key, types] of Object.entries(ofType)) {
    const value = found(written, at(key).join('.'));
    if (!value) continue;
    if (!(types as readonly string[]).includes(type)) {
      const expected = `nothing: ${formatPath(at('type'))} = "${type}" has no ${key}`;
      own.refuse({ paths: [value.at], expected, received: JSON.stringify(value.value) });
    } else if (muonIsFixed && type === 'muon') {
      own.warn(
        `${formatPath(value.at)} has no effect: prime-rl 0.4 makes its Muon without it, with ${JSON.stringify(ofMuon[ours[key as 'mu']])}.`,
      );
    } else own.set(['trainer', ours[key as keyof typeof ours]], value.value, value.at);
  }
  if (type !== 'muon') return;
  for (const [key, value] of Object.entries(ofMuon)) {
    if (own.get(['trainer', key]) === undefined) own.set(['trainer', key], value, at('type'));
  }
}

/** Turns clipping off in the cases where prime-rl does: updates while gradients are still computed, and DeepEP. */
export function setNoClipping(written: Table, own: Own, version: { readonly trainer?: '' }): void {
  const at = (...names: readonly string[]) => ofTrainer(version, ...names).join('.');
  const full = found(written, at('model', 'full_offload'));
  const backend = found(written, at('model', 'ep_comm_backend'));
  const dispatch = found(written, at('model', 'moe', 'dispatch', 'type'));
  const sent = [backend, dispatch].find((one) => one?.value === 'deepep');
  const cause = full && full.value !== false ? full : sent;
  if (!cause) return;
  own.set(['trainer', 'max_grad_norm'], Number.MAX_VALUE, cause.at);
  own.warn(`${formatPath(cause.at)}: gradients are not clipped (${at('optim', 'max_norm')}), as in prime-rl.`);
}
