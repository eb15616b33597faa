import { rules, ruleSources } from '../core/rl/rules-of-thumb.ts';
import { gpuSettingsOf } from './gpu-settings.ts';
import type { KeyPath } from './positions.ts';
import type { RunSpec } from './run-spec.ts';

/** A setting that lies outside of what a rule of thumb names. Never an error: many runs have reasons. */
export interface SettingAdvice {
  /** In our own words: the names of the setting. */
  readonly paths: readonly KeyPath[];
  readonly value: number;
  /** `from 1e-5 to 1e-4`. */
  readonly range: string;
  /** What tends to happen outside of it. */
  readonly why: string;
  /** Who says so. */
  readonly source: string;
}

/** What the rules of thumb say of a run's settings, before anything has run. Pure. */
export function adviseSettings(spec: RunSpec): SettingAdvice[] {
  if (spec.maxSteps === 0) return [];
  return [
    ...(isPretrained(spec) ? [...learningRate(spec), ...warmup(spec)] : []),
    ...(comparesGroups(spec) ? [...groupSize(spec), ...temperature(spec)] : []),
    ...batchSize(spec),
    ...beta(spec),
    ...loraAlpha(spec),
    ...memoryShare(spec),
    ...(comparesGroups(spec) ? filter(spec) : []),
  ];
}

/** Presets begin with random weights and learn with learning rates of their own; what is said of pretrained models is not said of them. */
function isPretrained({ model }: RunSpec): boolean {
  return !model.startsWith('preset:');
}

/** Whether rollouts learn from the rest of their group. From a teacher alone each learns by itself, and none is dropped for its group. */
function comparesGroups({ teacher, loss }: RunSpec): boolean {
  return teacher?.role !== 'samples' && loss.advantageTau > 0;
}

function learningRate({ learningRate: value, lora }: RunSpec): SettingAdvice[] {
  const { low, high } = lora ? rules.learningRate.lora : rules.learningRate.full;
  if (value >= low && value <= high) return [];
  const why =
    value > high
      ? 'above it training tends to become unstable'
      : 'below it a run of usual length hardly moves the policy';
  const range = `from ${low.toExponential()} to ${high.toExponential()} for ${lora ? 'LoRA' : 'all weights'}`;
  return [{ paths: [['learning_rate']], value, range, why, source: ruleSources.V }];
}

function warmup({ schedule: { warmupSteps: value }, maxSteps }: RunSpec): SettingAdvice[] {
  if (value >= rules.warmupStepsMin || maxSteps <= rules.warmupStepsMin) return [];
  return [
    {
      paths: [['trainer', 'warmup_steps'], ['warmup_steps']],
      value,
      range: `${rules.warmupStepsMin} to 20 at least`,
      why: 'the first steps are taken at the full learning rate, while the moments of Adam are still rough',
      source: ruleSources.G,
    },
  ];
}

function groupSize({ rolloutsPerExample: value }: RunSpec): SettingAdvice[] {
  if (value >= rules.groupSizeMin) return [];
  return [
    {
      paths: [['rollouts_per_example']],
      value,
      range: `at least ${rules.groupSizeMin}; 16 to 32 for stability`,
      why: 'the mean of a small group is a poor baseline, and its rewards are often all the same',
      source: ruleSources.P,
    },
  ];
}

function batchSize({ batchSize: value }: RunSpec): SettingAdvice[] {
  if (value >= rules.batchSizeMin) return [];
  return [
    {
      paths: [['batch_size']],
      value,
      range: `at least ${rules.batchSizeMin}; 512 to 1024 for stability`,
      why: 'gradients of few rollouts are noisy',
      source: ruleSources.P,
    },
  ];
}

function temperature({ sampling: { temperature: value } }: RunSpec): SettingAdvice[] {
  if (value >= rules.temperatureMin) return [];
  return [
    {
      paths: [['sampling', 'temperature']],
      value,
      range: `from ${rules.temperatureMin} to 1`,
      why: 'the rollouts of a group come out much alike, so there is nothing to compare',
      source: ruleSources.M,
    },
  ];
}

function beta({ kl: { beta: value } }: RunSpec): SettingAdvice[] {
  if (value < rules.klBetaMax) return [];
  return [
    {
      paths: [['kl_penalty', 'beta']],
      value,
      range: `below ${rules.klBetaMax}`,
      why: 'the penalty holds the policy near its reference: safe, and slow to learn',
      source: ruleSources.G,
    },
  ];
}

function loraAlpha({ lora, trainer }: RunSpec): SettingAdvice[] {
  if (!lora || trainer.kind === 'tinker') return []; // such a server's alpha is not the run's to choose
  const { low, high } = rules.loraAlphaShare;
  if (lora.alpha >= low * lora.r && lora.alpha <= high * lora.r) return [];
  return [
    {
      paths: [['lora', 'alpha'], ['lora_alpha']],
      value: lora.alpha,
      range: `from ${low * lora.r} to ${high * lora.r}, once to twice the rank`,
      why: `the adapters' output is scaled by alpha / r = ${Number((lora.alpha / lora.r).toPrecision(3))}, which acts on the learning rate`,
      source: ruleSources.M,
    },
  ];
}

function memoryShare(spec: RunSpec): SettingAdvice[] {
  const { gpuMemoryUtilization } = gpuSettingsOf(spec);
  const { low, high } = rules.gpuMemoryUtilization;
  if (gpuMemoryUtilization === null) return [];
  const { value, path } = gpuMemoryUtilization;
  if (value >= low && value <= high) return [];
  const why =
    value > high
      ? 'what the server needs beside weights, keys and values may not find room'
      : 'little room for keys and values: few rollouts at once';
  return [{ paths: [path], value, range: `from ${low} to ${high}`, why, source: ruleSources.M }];
}

function filter({
  filter: { minRewardVariance, minReward, maxReward },
  rolloutsPerExample: size,
}: RunSpec): SettingAdvice[] {
  if (size < 2) return []; // of one answer nothing is mixed
  const all = Array.from({ length: size - 1 }, (_, i) => (i + 1) / size);
  const kept = (least: number): number =>
    all.filter((mean) => mean * (1 - mean) >= least - 1e-12 && mean >= minReward && mean <= maxReward).length /
    all.length;
  if (kept(minRewardVariance) >= rules.mixedGroupsKeptMin) return [];
  const path =
    kept(0) >= rules.mixedGroupsKeptMin
      ? ['difficulty_filter', 'min_reward_variance']
      : ['difficulty_filter', maxReward < 0.5 ? 'max_reward' : 'min_reward'];
  const value = { min_reward_variance: minRewardVariance, max_reward: maxReward, min_reward: minReward }[path[1]!]!;
  const { rewardVarianceMax } = rules;
  const share = `of the ways in which ${size} right and wrong answers can be mixed it keeps ${Math.round(kept(minRewardVariance) * 100)}%`;
  const range =
    path[1] === 'min_reward_variance'
      ? `well below ${rewardVarianceMax}, the largest variance of rewards from 0 to 1`
      : 'bounds with most of 0 to 1 between them';
  return [
    {
      paths: [path],
      value,
      range,
      why: `the filter drops nearly everything: ${share}`,
      source: ruleSources.arithmetic,
    },
  ];
}
