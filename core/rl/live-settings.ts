import { nearestName } from '../suggest.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { Overrides } from './run-state.ts';

/**
 * What can be changed in a run while it runs: `ratchet set RUN name=value …`. A change holds from the next plan on, is in every
 * commit after it, and never reaches back into a step that is planned. Everything else belongs to the run file.
 */
export const liveSettings = {
  learning_rate: {
    key: 'learningRate',
    expected: 'a number above 0 and below 1',
    says: 'peak; the schedule continues over it',
  },
  max_steps: {
    key: 'maxSteps',
    expected: 'a whole number after the step under way',
    says: 'how many steps the run makes; linear and cosine schedules end there',
  },
  stop_after: {
    key: 'stopAfter',
    expected: 'a whole number after the step under way',
    says: 'the last step of this time; the schedule stays, and `ratchet train` continues from there',
  },
  max_grad_norm: { key: 'maxGradNorm', expected: 'a number above 0', says: 'gradients are scaled down to it' },
  'eval.interval': { key: 'evalInterval', expected: 'a whole number from 1', says: 'steps between evaluations' },
  'checkpoints.interval': {
    key: 'checkpointInterval',
    expected: 'a whole number from 1',
    says: 'steps between checkpoints',
  },
} as const satisfies Record<string, { key: keyof Overrides; expected: string; says: string }>;

type LiveSetting = keyof typeof liveSettings;
export const liveSettingNames = Object.keys(liveSettings) as readonly LiveSetting[];

/** Only until the run is started again with its file, whose word counts then. */
const untilNextStart: readonly LiveSetting[] = ['max_steps', 'stop_after'];

/** What must stay as it was for the life of a run (`activities/open-run.ts`): another value is another run. */
const fixedForLife = [
  'model',
  'seed',
  'batch_size',
  'rollouts_per_example',
  'env',
  'environments',
  'sft',
  'sampling',
  'lora',
  'advantage',
];
/** What a fork cannot change either: its checkpoint was made with it. */
const boundToCheckpoint = ['model', 'sft', 'lora'];

/** Settings of `name=value`, as numbers; `refused` says why one of them cannot be changed. */
type AskedSettings = Readonly<Record<string, number>>;

/** Of a run at a step: what the validator needs to know. */
export interface SettingsContext {
  readonly run: string;
  readonly spec: Pick<RunSpec, 'learningRate' | 'maxSteps' | 'optimizer' | 'eval' | 'checkpoints'>;
  readonly overrides: Overrides;
  /** The step under way, from 1: a last step must not lie before it. */
  readonly underWay: number;
}

/** Why these settings cannot be made, or null when they can: all of them or none. */
export function refuseSettings(asked: AskedSettings, context: SettingsContext): string | null {
  const names = Object.keys(asked);
  if (names.length === 0) return `Nothing to set. What can be: ${liveSettingNames.join(', ')}.`;
  for (const name of names) {
    if (!isLive(name)) return unknownSetting(name, context.run);
    const value = asked[name]!;
    if (!isValid(name, value, context)) return refuseValue(name, value, context);
    if (name === 'eval.interval' && context.spec.eval === null) {
      return 'eval.interval: this run has no [eval]. Stop it (ratchet stop), add [eval] to its file, and train it again.';
    }
  }
  return null;
}

/** A refusal that names what was expected. */
function refuseValue(name: LiveSetting, value: unknown, { underWay }: SettingsContext): string {
  const after = name === 'max_steps' || name === 'stop_after' ? ` (${underWay} is under way)` : '';
  return `${name}: expected ${liveSettings[name].expected}${after}; got ${JSON.stringify(value)}.`;
}

/** What to do about a name that a running run cannot change. `isOfFile`: whether a run file may say it. */
export function unknownSetting(name: string, run: string, isOfFile = true): string {
  const first = name.replaceAll('-', '_').split('.')[0]!;
  const can = `What can be changed while it runs: ${liveSettingNames.join(', ')}.`;
  if (boundToCheckpoint.includes(first)) {
    return `${name} is part of what the run is: its weights were made with it. Train another run: npx ratchet train FILE --name NEW. ${can}`;
  }
  if (fixedForLife.includes(first)) {
    return `${name} stays as it is for the life of a run, or its groups could not be compared. A run of its own may have another: npx ratchet fork ${run} --step N --name NEW --${name.replaceAll('_', '-')} VALUE. ${can}`;
  }
  const near = nearestName(name, liveSettingNames);
  if (near !== undefined) return `${name}: no such setting of a running run. Did you mean ${near}? ${can}`;
  if (!isOfFile) return `${JSON.stringify(name)}: there is no such setting. ${can}`;
  return `${name} cannot be changed while the run runs. Stop it (npx ratchet stop ${run}), change its file, and train it again: it continues from its newest commit. ${can}`;
}

/** The overrides after a change. */
export function withSettings(overrides: Overrides, asked: AskedSettings): Overrides {
  const changed = Object.entries(asked).map(([name, value]) => [liveSettings[name as LiveSetting].key, value]);
  return { ...overrides, ...(Object.fromEntries(changed) as Overrides) };
}

/** `learning_rate 0.001 → 0.0005`, one for each. */
export function describeSettings(asked: AskedSettings, { spec, overrides }: SettingsContext): string[] {
  return (Object.keys(asked) as LiveSetting[]).map((name) => {
    const before = currentValue(name, spec, overrides);
    const note = untilNextStart.includes(name) ? ' (until it is trained again with its file)' : '';
    return `${name} ${before ?? 'none'} → ${asked[name]}${note}`;
  });
}

/** What is in force; null where nothing is. */
function currentValue(name: LiveSetting, spec: SettingsContext['spec'], overrides: Overrides): number | null {
  const inFile: Record<LiveSetting, number | null> = {
    learning_rate: spec.learningRate,
    max_steps: spec.maxSteps,
    stop_after: null,
    max_grad_norm: spec.optimizer.maxGradNorm,
    'eval.interval': spec.eval?.interval ?? null,
    'checkpoints.interval': spec.checkpoints.interval,
  };
  return overrides[liveSettings[name].key] ?? inFile[name];
}

/** What was set and stays when the run is started again: not what only said when to stop. */
export function overridesThatStay(overrides: Overrides): Overrides {
  const { maxSteps: _maxSteps, stopAfter: _stopAfter, ...rest } = overrides;
  return rest;
}

function isLive(name: string): name is LiveSetting {
  return name in liveSettings;
}

function isValid(name: LiveSetting, value: unknown, { underWay }: SettingsContext): boolean {
  if (typeof value !== 'number') return false;
  if (name === 'learning_rate') return value > 0 && value < 1;
  if (name === 'max_grad_norm') return value > 0 && Number.isFinite(value);
  const least = name === 'max_steps' || name === 'stop_after' ? underWay : 1;
  return Number.isSafeInteger(value) && value >= least;
}
