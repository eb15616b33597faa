import type { RatchetConfig } from '../index.ts';
import { kindsOf } from '../learning.ts';
import { problem, type Relations } from './problem.ts';

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

/** Why all rows of a batch are trained at one temperature; null where each may have its own. */
export function oneTemperature(config: Pick<RatchetConfig, 'trainer' | 'loss' | 'env'>): string | null {
  const { trainer, loss } = config;
  if (trainer.kind === 'tinker') return 'a Tinker server trains log probabilities at temperature 1';
  if (trainer.kind === 'module') return 'a trainer of your own is told one temperature for a whole batch';
  if (loss === 'sft') return 'what is learned by heart is sampled as [teacher.sampling] says';
  const isScored = kindsOf(config).has('opd') || (trainer.loss.teacher_tau ?? 0) > 0;
  return isScored ? 'a teacher’s log probabilities are those of temperature 1' : null;
}

/** A temperature is one number, or has a course; and where it has one, rows of several temperatures have to be trained together. */
export function* courseRelations(config: RatchetConfig): Relations {
  const { temperature, temp_scheduler: course } = config.sampling;
  if (course === undefined) return;
  const reason = oneTemperature(config);
  if (reason !== null) yield problem('sampling.temp_scheduler', `nothing: ${reason}`, `type = "${course.type}"`);
  if (temperature === 1) return;
  const expected = 'nothing beside [sampling.temp_scheduler]: the temperature is one number or has a course';
  yield problem(['sampling.temperature', 'sampling.temp_scheduler'], expected, temperature);
}

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
