import { trainerTraits } from '../core/kinds/trainers.ts';
import { rules, ruleSources } from '../core/rl/advice/rules-of-thumb.ts';
import { gpuSettingsOf } from './gpu-settings.ts';
import type { KeyPath } from './toml/positions.ts';
import type { RunSpec } from './run-spec.ts';

/** A setting outside the range of a rule of thumb. Never an error: many runs have reasons. */
export interface SettingAdvice {
  /** Names of the setting in our own words. */
  readonly paths: readonly KeyPath[];
  readonly value: number;
  /** Form: `from 1e-5 to 1e-4`. */
  readonly range: string;
  /** Typical consequence outside the range. */
  readonly why: string;
  readonly source: string;
}

/** Checks a run's settings against the rules of thumb, before the run. Pure. */
export function adviseSettings(spec: RunSpec): SettingAdvice[] {
  return spec.maxSteps === 0 || spec.data ? [] : [...adviceOn(spec)];
}

type Source = (typeof ruleSources)[keyof typeof ruleSources];

/** `at`: dotted names of the setting. */
const advice = (at: string | readonly string[], value: number, range: string, why: string, source: Source) => ({
  paths: [at].flat().map((path) => path.split('.')),
  value,
  range,
  why,
  source,
});

function* adviceOn(spec: RunSpec): Iterable<SettingAdvice> {
  // Presets begin with random weights and need learning rates of their own; rules for pretrained models do not apply.
  if (!spec.model.startsWith('preset:')) yield* onPretrained(spec);
  const comparesGroups = spec.teacher?.role !== 'samples' && spec.loss.advantageTau > 0;
  if (comparesGroups) yield* onGroups(spec);
  const { batchSize, tokenBatchSize, kl, numIterations } = spec;
  if (numIterations > rules.iterationsMax) {
    const range = `1 for stability, 2 to ${rules.iterationsMax} to learn faster`;
    const why = 'later passes train on what another policy sampled';
    yield advice(['trainer.num_iterations', 'num_iterations'], numIterations, range, why, ruleSources.G);
  }
  const { numMiniBatches: parts, learningRate } = spec;
  if (parts > 1) {
    const range = `a learning_rate for ${parts} steps per batch: ${Number((learningRate / parts).toPrecision(3))}, if ${learningRate} was tuned for one`;
    const why = `each batch is ${parts} optimizer steps, which move the weights about ${parts} times as far as one: the effective rate is that much higher`;
    yield advice(['trainer.num_mini_batches', 'num_mini_batches'], parts, range, why, ruleSources.arithmetic);
  }
  if (tokenBatchSize === null && batchSize < rules.batchSizeMin) {
    const range = `at least ${rules.batchSizeMin}; 512 to 1024 for stability`;
    yield advice('batch_size', batchSize, range, 'gradients of few rollouts are noisy', ruleSources.P);
  }
  if (kl.beta >= rules.klBetaMax) {
    const why = 'the penalty holds the policy near its reference: safe, and slow to learn';
    yield advice('kl_penalty.beta', kl.beta, `below ${rules.klBetaMax}`, why, ruleSources.G);
  }
  yield* onAdapters(spec);
  yield* onMemory(spec);
  if (comparesGroups) yield* onFilter(spec);
}

function* onPretrained({ model, learningRate: value, lora, schedule, maxSteps }: RunSpec): Iterable<SettingAdvice> {
  const { low, high } = lora ? rules.learningRate.lora : rules.learningRate.full;
  const isSmall = (parametersInName(model) ?? Infinity) < rules.learningRateParametersMin;
  if (!isSmall && (value < low || value > high)) {
    const why =
      value > high
        ? 'above it training tends to become unstable'
        : 'below it a run of usual length hardly moves the policy';
    const range = `from ${low.toExponential()} to ${high.toExponential()} for ${lora ? 'LoRA' : 'all weights'}`;
    yield advice('learning_rate', value, range, why, ruleSources.V);
  }
  const { warmupSteps } = schedule;
  if (warmupSteps >= rules.warmupStepsMin || maxSteps * rules.warmupShareMax <= rules.warmupStepsMin) return;
  const why = 'the first steps are taken at the full learning rate, while the moments of Adam are still rough';
  const range = `${rules.warmupStepsMin} to 20 at least`;
  yield advice(['trainer.warmup_steps', 'warmup_steps'], warmupSteps, range, why, ruleSources.G);
}

/** Size from a model's name: `smollm2-135m-instruct`, `Qwen3-0.6B`; null if absent. */
function parametersInName(model: string): number | null {
  const [, count, unit] = /(?:^|[-_/])(\d+(?:\.\d+)?)([mb])(?=$|[-_@.])/i.exec(model) ?? [];
  return count === undefined ? null : Number(count) * (unit!.toLowerCase() === 'm' ? 1e6 : 1e9);
}

/**
 * Rules for rollouts that learn from the rest of their group. If there is only a teacher, each learns by itself, and none is
 * dropped for its group. Agents by role (`rae`) are compared with those of earlier groups.
 */
function* onGroups({ rolloutsPerExample, advantage, sampling: { temperature } }: RunSpec): Iterable<SettingAdvice> {
  const isByRole = typeof advantage === 'object' && 'type' in advantage && advantage.type === 'rae';
  if (rolloutsPerExample < rules.groupSizeMin && !isByRole) {
    const range = `at least ${rules.groupSizeMin}; 16 to 32 for stability`;
    const why = 'the mean of a small group is a poor baseline, and its rewards are often all the same';
    yield advice('rollouts_per_example', rolloutsPerExample, range, why, ruleSources.P);
  }
  if (temperature >= rules.temperatureMin) return;
  const why = 'the rollouts of a group come out much alike, so there is nothing to compare';
  yield advice('sampling.temperature', temperature, `from ${rules.temperatureMin} to 1`, why, ruleSources.M);
}

function* onAdapters(spec: RunSpec): Iterable<SettingAdvice> {
  const { lora, trainer } = spec;
  if (!lora || trainerTraits(trainer).alpha !== null) return;
  const { alpha, r } = lora;
  yield* onRank(spec.model, r);
  const { low, high } = rules.loraAlphaShare;
  if (alpha >= low * r && alpha <= high * r) return;
  const range = `from ${low * r} to ${high * r}, once to twice the rank`;
  const why = `the adapters' output is scaled by alpha / r = ${Number((alpha / r).toPrecision(3))}, which acts on the learning rate`;
  yield advice(['lora.alpha', 'lora_alpha'], alpha, range, why, ruleSources.M);
}

/** Presets are small enough for smaller ranks. */
function* onRank(model: string, r: number): Iterable<SettingAdvice> {
  const { low, high } = rules.loraRank;
  if (model.startsWith('preset:') || (r >= low && r <= high)) return;
  const why =
    r < low ? 'few directions in which the model can change' : 'more to train and to keep, seldom more to learn';
  yield advice(['lora.r', 'lora_rank'], r, `from ${low} to ${high}`, why, ruleSources.M);
}

function* onMemory(spec: RunSpec): Iterable<SettingAdvice> {
  const { gpuMemoryUtilization } = gpuSettingsOf(spec);
  const { low, high } = rules.gpuMemoryUtilization;
  if (gpuMemoryUtilization === null) return;
  const { value, path } = gpuMemoryUtilization;
  if (value >= low && value <= high) return;
  const why =
    value > high
      ? 'what the server needs beside weights, keys and values may not find room'
      : 'little room for keys and values: few rollouts at once';
  yield advice(path.join('.'), value, `from ${low} to ${high}`, why, ruleSources.M);
}

function* onFilter({ filter, rolloutsPerExample: size }: RunSpec): Iterable<SettingAdvice> {
  if (size < 2) return; // a single answer has no mixed groups
  const { minRewardVariance, minReward, maxReward } = filter;
  const all = Array.from({ length: size - 1 }, (_, i) => (i + 1) / size);
  const kept = (least: number): number =>
    all.filter((mean) => mean * (1 - mean) >= least - 1e-12 && mean >= minReward && mean <= maxReward).length /
    all.length;
  if (kept(minRewardVariance) >= rules.mixedGroupsKeptMin) return;
  const why = `the filter drops nearly everything: of the ways in which ${size} right and wrong answers can be mixed it keeps ${Math.round(kept(minRewardVariance) * 100)}%`;
  if (kept(0) >= rules.mixedGroupsKeptMin) {
    const range = `well below ${rules.rewardVarianceMax}, the largest variance of rewards from 0 to 1`;
    yield advice('difficulty_filter.min_reward_variance', minRewardVariance, range, why, ruleSources.arithmetic);
    return;
  }
  const [key, value] = maxReward < 0.5 ? (['max_reward', maxReward] as const) : (['min_reward', minReward] as const);
  const range = 'bounds with most of 0 to 1 between them';
  yield advice(`difficulty_filter.${key}`, value, range, why, ruleSources.arithmetic);
}
