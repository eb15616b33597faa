import type { JsonValue } from '../json-value.ts';
import { passThreshold as defaultThreshold } from './pass-at-k.ts';

/** `metadata.json` of an evaluation by verifiers or Ratchet; missing fields are null or empty. */
export interface ResultMetadata {
  readonly environment: string;
  readonly model: string;
  readonly numExamples: number | null;
  readonly rolloutsPerExample: number | null;
  /** Reward from which a rollout counts as right. */
  readonly passThreshold: number;
  /**
   * The writer's figure: the mean over all rows, failed rollouts with the reward that they were given; null if all
   * failed.
   */
  readonly avgReward: number | null;
  readonly passAtK: Readonly<Record<string, number>>;
  readonly passAllK: Readonly<Record<string, number>>;
  readonly seconds: number | null;
  /** US dollars. */
  readonly cost: number | null;
  /** Policy version, of a run's own evaluations. */
  readonly step: number | null;
  /** All chosen settings, by dotted names: `sampling_args.temperature`. Sorted by name. */
  readonly settings: Readonly<Record<string, JsonValue>>;
}

/** Settings that identify the evaluation, in display order. */
const settingNames = [
  'env_id',
  'env_args',
  'system_prompt',
  'model',
  'base_url',
  'num_examples',
  'rollouts_per_example',
  'shuffle',
  'shuffle_seed',
  'sampling_args',
  'pass_threshold',
  'version_info',
];

const olderNames: Readonly<Record<string, string>> = { env_id: 'env' };

/** Null unless it is an object. */
export function readMetadata(value: unknown): ResultMetadata | null {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return null;
  const metadata = value as Readonly<Record<string, JsonValue>>;
  const number = (name: string): number | null => (typeof metadata[name] === 'number' ? metadata[name] : null);
  const text = (name: string): string => (typeof metadata[name] === 'string' ? metadata[name] : '');
  const cost = metadata['cost'];
  // verifiers before 0.1.6 writes the day into `date` or `time`, and `env` for `env_id`.
  const milliseconds = number('time_ms');
  return {
    environment: text('env_id') || text('env'),
    model: text('model'),
    numExamples: number('num_examples'),
    rolloutsPerExample: number('rollouts_per_example'),
    passThreshold: number('pass_threshold') ?? defaultThreshold,
    avgReward: number('avg_error') === 1 ? null : number('avg_reward'),
    passAtK: numbersOf(metadata['pass_at_k']),
    passAllK: numbersOf(metadata['pass_all_k']),
    seconds: number('time') ?? (milliseconds === null ? null : milliseconds / 1000),
    cost: typeof cost === 'number' ? cost : (numbersOf(cost)['total_usd'] ?? null),
    step: number('step'),
    settings: Object.fromEntries(
      settingNames.flatMap((name) => flat(name, metadata[name] ?? metadata[olderNames[name] ?? ''])),
    ),
  };
}

/**
 * Leaves of an object under dotted names. Empty objects, texts and nulls are left out as defaults; an empty system
 * prompt is a choice.
 */
function flat(name: string, value: JsonValue | undefined): [string, JsonValue][] {
  if (value == null || (value === '' && name !== 'system_prompt')) return [];
  if (typeof value !== 'object' || Array.isArray(value)) return [[name, value]];
  return Object.keys(value)
    .sort()
    .flatMap((key) => flat(`${name}.${key}`, value[key]));
}

function numbersOf(value: JsonValue | undefined): Record<string, number> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return {};
  return Object.fromEntries(
    Object.entries(value).filter((entry): entry is [string, number] => typeof entry[1] === 'number'),
  );
}

/** A setting with differing values; `values` in the order of comparison, null if unset. */
interface SettingDifference {
  readonly name: string;
  readonly values: readonly (JsonValue | null)[];
}

export function differentSettings(all: readonly Pick<ResultMetadata, 'settings'>[]): SettingDifference[] {
  const names = [...new Set(all.flatMap(({ settings }) => Object.keys(settings)))];
  return names
    .map((name) => ({ name, values: all.map(({ settings }) => settings[name] ?? null) }))
    .filter(({ values }) => new Set(values.map((value) => JSON.stringify(value))).size > 1);
}
