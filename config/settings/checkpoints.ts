import { z } from 'zod';
import { liveSettings } from '../../core/rl/live-settings.ts';
import { countOrAll, resumeStep, whole } from '../values.ts';
import type { RatchetConfig } from './index.ts';
import { optionalTable, setting, table } from './setting.ts';

/** `[checkpoints]`: which versions a run can go on from; and `[resume]`: which one it goes on from. */

export const checkpoints = table({
  interval: setting(whole(1), 'steps between checkpoints', { default: 20, live: liveSettings['checkpoints.interval'] }),
  keep_last: setting(
    countOrAll('checkpoints'),
    'how many of the newest are kept; 5 where neither it nor `keep_cloud` is there',
  ),
  keep_cloud: setting(countOrAll('checkpoints'), 'Hosted Training’s name for it'),
  keep_interval: setting(whole(1), 'every multiple of this step is kept for good'),
});

/** Three places for the same, which is no part of the run: [resume] step, [ckpt] resume_step, [trainer.ckpt] resume_step. */
export const resume = optionalTable({
  step: setting(resumeStep(), 'the committed step to continue from, in a new lineage', { default: -1 }),
});
export const otherResume = optionalTable({ resume_step: setting(resumeStep(), 'another place for `[resume] step`') });

export const CheckpointSpec = z.strictObject({
  interval: z.int().positive(),
  /** How many of the newest are kept, ≥ 1. */
  keepLast: z.int().positive(),
  /** Every multiple of this step is kept for good; null = none. */
  keepInterval: z.int().positive().nullable(),
});
export type CheckpointSpec = z.infer<typeof CheckpointSpec>;

/** Keeping all of them is keeping every multiple of the interval for good. */
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

/** The step that the config asks to go on from: −1 = the latest, null = it does not say. */
export function resumeStepOf({ resume, ckpt, trainer }: RatchetConfig): number | null {
  return resume?.step ?? ckpt?.resume_step ?? trainer.ckpt?.resume_step ?? null;
}
