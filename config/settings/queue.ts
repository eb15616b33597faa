import { z } from 'zod';
import { poolDefault, teamDefault } from '../../core/fleet/pool-types.ts';
import { priorityMax } from '../../core/limits.ts';
import { poolNamePattern } from '../../core/names.ts';
import { liveSettings } from '../../core/rl/live-settings.ts';
import { whole } from '../toml/values.ts';
import { inSpec, optionalTable, setting, specFields, type WrittenIn } from './setting.ts';

/** `[queue]`: the pool of trainers and rollout workers that a run takes its turns with. */

const nameOf = (what: string) =>
  z
    .string()
    .regex(poolNamePattern)
    .meta({ expected: `the name of ${what}: up to 64 letters, digits, dots, dashes and underscores` });

const startTime = () =>
  z.iso.datetime({ offset: true }).meta({
    expected: 'a time with its zone as a text, such as "2026-12-01T22:00:00Z" or "2026-12-01T22:00:00+01:00"',
  });

const labels = () =>
  z
    .record(z.string().regex(poolNamePattern), z.string().regex(poolNamePattern))
    .meta({ expected: 'a table of labels, such as { gpu = "h100" }' });

const queue = {
  pool: setting(nameOf('a pool'), 'the pool whose trainers and rollout workers the run uses: `ratchet worker --pool`', {
    default: poolDefault,
  }),
  team: setting(nameOf('a team'), 'whose quota and share of the pool count', { default: teamDefault }),
  priority: setting(
    whole(-priorityMax, priorityMax),
    'a run of higher priority gets trainers and rollout workers first, and takes a trainer at the next step boundary of a run of lower priority',
    { default: 0, live: liveSettings['queue.priority'] },
  ),
  start_at: setting(startTime(), 'the run gets no trainer before this time'),
  labels: setting(labels(), 'a trainer must have all of them: `ratchet worker --label`', { default: {} }),
};

export const queueTable = optionalTable(queue);
export const QueueSpec = z.strictObject(specFields(queue));
export type QueueSpec = z.infer<typeof QueueSpec>;

/** Missing: the run takes any GPU worker of no pool that is free. */
export function queueSpec(written: WrittenIn<typeof queue> | undefined): { readonly queue?: QueueSpec } {
  return written === undefined ? {} : { queue: inSpec(queue, written) };
}
