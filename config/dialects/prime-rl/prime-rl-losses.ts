import { type Table, tableOr } from '../../toml/tables.ts';
import type { Own } from '../dialect.ts';
import type { Age } from './prime-rl-ages.ts';
import { found } from './prime-rl-words.ts';

/** `[trainer.loss]` of a run with rewards. */

/** A loss type in our own words with its defaults, and our settings for its keys. */
interface Meant {
  readonly ours: Table;
  readonly keys: Readonly<Record<string, readonly string[]>>;
}

const dppo: Meant = {
  ours: { type: 'dppo', mask_low: 0.2, mask_high: 0.2, kl_tau: 1e-3 },
  keys: { dppo_mask_low: ['mask_low'], dppo_mask_high: ['mask_high'] },
};
const ipoOfMarch: Meant = {
  ours: { type: 'ipo', mask_low: 0.2, mask_high: 0.2, kl_tau: 1e-3 },
  keys: { ipo_mask_low: ['mask_low'], ipo_mask_high: ['mask_high'] },
};
const ipoOfSummer: Meant = {
  ours: { type: 'ipo', mask_low: 0.1, mask_high: 0.1, kl_tau: 1e-3 },
  keys: { ipo_threshold: ['mask_low', 'mask_high'] },
};
const ipo: Meant = {
  ours: { type: 'ipo', mask_low: 0.3, mask_high: 0.3, kl_tau: 0, max_ratio: 1e4 },
  keys: { eps: ['mask_low', 'mask_high'], max_importance_ratio: ['max_ratio'] },
};

/** Losses by type, for each age. */
const losses: Readonly<Record<Exclude<Age, '0.4'>, Readonly<Record<string, Meant>>>> = {
  '0.5': { default: ipoOfMarch },
  '0.9': { default: dppo, ipo: ipoOfSummer },
  today: {
    ipo,
    icepop: {
      ours: { type: 'importance_sampling', mask_low: 0.2, mask_high: 5 },
      keys: { ratio_low: ['mask_low'], ratio_high: ['mask_high'] },
    },
    ppo: {
      ours: { type: 'grpo', clip_low: 0.8, clip_high: 1.2, max_ratio: 1e4 },
      keys: { ratio_low: ['clip_low'], ratio_high: ['clip_high'], max_importance_ratio: ['max_ratio'] },
    },
    cispo: { ours: { type: 'cispo', clip_high: 5 }, keys: { ratio_low: ['clip_low'], ratio_high: ['clip_high'] } },
  },
};

/** Keys of every type, or outside of a loss's formula. */
const ofAny = ['type', 'adv_tau', 'kl_tau', 'teacher_tau', 'import_path', 'kwargs', 'score_centering'];

export function setLoss(written: Table, own: Own, age: Age): void {
  if (age === '0.4') return;
  const at = (key: string) => ['trainer', 'loss', key];
  const type = found(written, 'trainer.loss.type');
  const name = typeof type?.value === 'string' ? type.value : age === 'today' ? 'ipo' : 'default';
  const meant = losses[age][name];
  if (!meant) {
    const known = Object.keys(losses[age]).map((one) => `"${one}"`);
    const expected = `${known.join(' or ')}: the losses of this version of prime-rl that are computed here`;
    own.refuse({ paths: [at('type')], expected, received: JSON.stringify(type?.value) });
    return;
  }
  const said = tableOr(found(written, 'trainer.loss')?.value);
  if (age === 'today' && name === 'ipo' && said['kl_tau'] !== undefined && said['eps'] === undefined) {
    for (const key of ['mask_low', 'mask_high']) own.set(at(key), 0.1, at('kl_tau'));
    own.warn(
      'trainer.loss.kl_tau is of prime-rl until 18 September 2026, where eps was 0.1: that bound is taken. Write eps to have another.',
    );
  }
  for (const [key, value] of Object.entries(meant.ours)) {
    if (own.get(at(key)) === undefined || key === 'type') own.set(at(key), value, type?.at);
  }
  for (const [key, value] of Object.entries(said)) {
    for (const ours of meant.keys[key] ?? []) own.set(at(ours), value, at(key));
    if (meant.keys[key] !== undefined || ofAny.includes(key)) continue;
    const other = Object.entries(losses[age]).find(([, one]) => one.keys[key] !== undefined)?.[0];
    const beside = other === undefined ? 'nothing' : `type = "${other}" beside it`;
    const expected = `${beside}: a loss of type = "${name}" has no ${key}`;
    own.refuse({ paths: [at(key), ...(type ? [type.at] : [])], expected, received: JSON.stringify(value) });
  }
}
