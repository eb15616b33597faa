import type { RatchetConfig } from '../index.ts';

/** What else than the temperature changes what is drawn from, with what leaves it as it is. */
export const neutralSampling = {
  top_p: 1,
  top_k: -1,
  min_p: 0,
  repetition_penalty: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
  min_tokens: 0,
} as const;

/** What it takes that a server tells the sampler's log probabilities alone. */
export function* samplingWarnings({ sampling, env, inference, loss, max_steps }: RatchetConfig): Iterable<string> {
  if (max_steps === 0 || loss === 'sft' || inference.kind === 'embedded' || inference.kind === 'module') return;
  const keys = Object.keys(neutralSampling) as (keyof typeof neutralSampling)[];
  const tables = [sampling, ...env.map((one) => one.sampling ?? {})];
  const changed = keys.filter((key) => tables.some((table) => isChanged(key, table[key])));
  if (changed.length === 0) return;
  yield `sampling.${changed.join(', ')}: a server of kind "${inference.kind}" tells the log probabilities of what was left to draw from. The policy’s are computed by the trainer before each step, under the weights that it begins from: a forward pass more.`;
}

function isChanged(key: keyof typeof neutralSampling, value: number | undefined): boolean {
  return value !== undefined && value !== neutralSampling[key] && !(key === 'top_k' && value <= 0);
}
