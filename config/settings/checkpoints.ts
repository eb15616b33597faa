import { z } from 'zod';
import { liveSettings } from '../../core/rl/live-settings.ts';
import { countOrAll, resumeStep, whole } from '../toml/values.ts';
import type { RatchetConfig } from './index.ts';
import { optionalTable, setting, table } from './setting.ts';

/** `[checkpoints]`: versions that a run can resume from; and `[resume]`: the one to resume from. */

export const checkpoints = table({
  interval: setting(whole(1), 'steps between checkpoints', { default: 20, live: liveSettings['checkpoints.interval'] }),
  keep_last: setting(
    countOrAll('checkpoints'),
    'how many of the newest are kept; 5 where neither it nor `keep_cloud` is there',
  ),
  keep_cloud: setting(countOrAll('checkpoints'), 'Hosted Training’s name for it', {
    otherPlaceOf: 'checkpoints.keep_last',
  }),
  keep_interval: setting(whole(1), 'every multiple of this step is kept for good'),
});

/**
 * Three places for one setting, which is no part of the run: [resume] step, [ckpt] resume_step, [trainer.ckpt]
 * resume_step.
 */
export const resume = optionalTable({
  step: setting(resumeStep(), 'the committed step to continue from, in a new lineage', { default: -1 }),
});
export const otherResume = optionalTable({
  resume_step: setting(resumeStep(), 'another place for `[resume] step`', { otherPlaceOf: 'resume.step' }),
});

export const CheckpointSpec = z.strictObject({
  interval: z.int().positive(),
  /** Number of newest ones to keep, ≥ 1. */
  keepLast: z.int().positive(),
  /** Multiples of this step are kept permanently; null = none. */
  keepInterval: z.int().positive().nullable(),
});
export type CheckpointSpec = z.infer<typeof CheckpointSpec>;

/** Keeping all of them means keeping every multiple of the interval permanently. */
export function checkpointSpec({ checkpoints }: RatchetConfig): CheckpointSpec {
  const {
    interval,
    keep_cloud = 5,
    keep_last: keepLast = keep_cloud,
    keep_interval: keepInterval = null,
  } = checkpoints;
  if (keepLast === -1) return { interval, keepLast: 1, keepInterval: interval };
  return { interval, keepLast, keepInterval };
}

/** The step to resume from: −1 = the latest, null = none. */
export function resumeStepOf({ resume, ckpt, trainer }: RatchetConfig): number | null {
  return resume?.step ?? ckpt?.resume_step ?? trainer.ckpt?.resume_step ?? null;
}
