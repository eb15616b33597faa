/** The meaning of a loss's bounds: both sides of a ratio, its upper side, excluded ratios, or moved probabilities. */
type Bounds = 'clip' | 'cap' | 'mask' | 'move' | null;

/** Traits of a policy loss; its formula is at LossSpec (config/settings/learning.ts). */
interface LossTraits {
  readonly bounds: Bounds;
  /** Whether it has kl_tau · (ln ρ)². */
  readonly hasPenalty: boolean;
  /** Whether its ratios may have a cap, max_ratio. */
  readonly capsRatios: boolean;
  /** Whether its ratio is that of a whole row. */
  readonly comparesRows: boolean;
}

const plain = { hasPenalty: false, capsRatios: false, comparesRows: false };

/** Every policy loss, by its name in a run file. */
export const losses = {
  cispo: { ...plain, bounds: 'cap' },
  grpo: { ...plain, bounds: 'clip', capsRatios: true },
  importance_sampling: { ...plain, bounds: 'mask' },
  dppo: { ...plain, bounds: 'move', hasPenalty: true },
  ipo: { ...plain, bounds: 'move', hasPenalty: true, capsRatios: true },
  gspo: { ...plain, bounds: 'clip', comparesRows: true },
  dro: { ...plain, bounds: null, hasPenalty: true },
  custom: { ...plain, bounds: null },
} as const satisfies Readonly<Record<string, LossTraits>>;

export type PolicyLossType = keyof typeof losses;
export const policyLosses = Object.keys(losses) as [PolicyLossType, ...PolicyLossType[]];

/** Cross entropy is no policy loss and has no traits. */
export function lossTraits(type: PolicyLossType | 'cross_entropy'): LossTraits {
  return type === 'cross_entropy' ? { ...plain, bounds: null } : losses[type];
}
