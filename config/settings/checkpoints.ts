import { z } from 'zod';
import { liveSettings } from '../../core/rl/live-settings.ts';
import { countOrAll, positive, resumeStep, whole } from '../toml/values.ts';
import type { RatchetConfig } from './index.ts';
import { inSpec, optionalTable, setting, specFields, table, type WrittenIn } from './setting.ts';

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

/** `[retention]`: how long `ratchet gc` keeps what a run stored; a team has the same keys in the file of roles. */

export const retention = {
  rollouts_days: setting(
    positive(),
    'days for which rollouts of made steps are kept that no resume needs; without it none',
  ),
  run_days: setting(
    positive(),
    'the run is over, and nothing was written into its folder for so many days: all of it may go; without it never',
  ),
};

export const retentionTable = optionalTable(retention);
export const RetentionSpec = z.strictObject(specFields(retention));
export type RetentionSpec = z.infer<typeof RetentionSpec>;

/** Missing: as its team has it, or else nothing is kept for its age and no run goes. */
export function retentionSpec(written: WrittenIn<typeof retention> | undefined): {
  readonly retention?: RetentionSpec;
} {
  return written === undefined ? {} : { retention: inSpec(retention, written) };
}
