import { inferenceTraits } from '../../../core/kinds/inference.ts';
import { trainerTraits } from '../../../core/kinds/trainers.ts';
import type { RatchetConfig } from '../index.ts';
import { kindsOf } from '../learning.ts';
import { problem, type Relations } from './problem.ts';

/** Settings beside the temperature that change the distribution, with their neutral values. */
export const neutralSampling = {
  top_p: 1,
  top_k: -1,
  min_p: 0,
  repetition_penalty: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
  min_tokens: 0,
} as const;

/** Why all rows of a batch are trained at one temperature; null if each may have its own. */
export function oneTemperature(config: Pick<RatchetConfig, 'trainer' | 'loss' | 'env'>): string | null {
  const { trainer, loss } = config;
  const { oneTemperature: ofTrainer } = trainerTraits(trainer);
  if (ofTrainer !== null) return ofTrainer;
  if (loss === 'sft') return 'what is learned by heart is sampled as [teacher.sampling] says';
  const isScored = kindsOf(config).has('opd') || (trainer.loss.teacher_tau ?? 0) > 0;
  return isScored ? 'a teacher’s log probabilities are those of temperature 1' : null;
}

/** A temperature is one number, or a schedule; a schedule needs a trainer that accepts rows of several temperatures. */
export function* courseRelations(config: RatchetConfig): Relations {
  const { temperature, temp_scheduler: course } = config.sampling;
  if (course === undefined) return;
  const reason = oneTemperature(config);
  if (reason !== null) yield problem('sampling.temp_scheduler', `nothing: ${reason}`, `type = "${course.type}"`);
  if (temperature === 1) return;
  const expected = 'nothing beside [sampling.temp_scheduler]: the temperature is one number or has a course';
  yield problem(['sampling.temperature', 'sampling.temp_scheduler'], expected, temperature);
}

/** Consequences of a server that reports only the sampler's log probabilities. */
export function* samplingWarnings({ sampling, env, inference, loss, max_steps }: RatchetConfig): Iterable<string> {
  if (max_steps === 0 || loss === 'sft' || inferenceTraits(inference).tellsPolicy) return;
  const keys = Object.keys(neutralSampling) as (keyof typeof neutralSampling)[];
  const tables = [sampling, ...env.map((one) => one.sampling ?? {})];
  const changed = keys.filter((key) => tables.some((table) => isChanged(key, table[key])));
  if (changed.length === 0) return;
  yield `sampling.${changed.join(', ')}: a server of kind "${inference.kind}" tells the log probabilities of what was left to draw from. The policy’s are computed by the trainer before each step, under the weights that it begins from: a forward pass more.`;
}

function isChanged(key: keyof typeof neutralSampling, value: number | undefined): boolean {
  return value !== undefined && value !== neutralSampling[key] && !(key === 'top_k' && value <= 0);
}
