import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../core/errors.ts';

/**
 * Named gaps between a write and its acknowledgement, where the fault tests make a process wait, fail or run twice. They
 * do nothing unless RATCHET_FAILPOINTS names a folder with a plan in it, `NAME.json`; what fired is noted there, so that it
 * happens once, also across restarts.
 */
export const failpoints = [
  'warm-up.exported',
  'lease.stored',
  'generate.part',
  'generate.stored',
  'score.stored',
  'filter.done',
  'plan.stored',
  'train.applied',
  'train.exported',
  'commit.stored',
  'broadcast.loaded',
  'checkpoint.sealed',
  'metrics.recorded',
  'evaluate.stored',
] as const;
export type Failpoint = (typeof failpoints)[number];

/** What a test asks of a failpoint. */
export interface FailpointPlan {
  /** At which passing, counted from 1 over all processes. */
  readonly at: number;
  /** hold = until the test writes NAME.released; fail = with a failure that is tried again. */
  readonly action: 'hold' | 'fail';
  /** Of how many passings from there on; 1 when left out. */
  readonly times?: number;
}

/** Written as NAME.fired.N when a failpoint fires for the N-th time. */
export interface FiredFailpoint {
  readonly pid: number;
  readonly time: string;
}

const releaseCheckMs = 20;

export async function failpoint(name: Failpoint): Promise<void> {
  const folder = process.env['RATCHET_FAILPOINTS'];
  if (folder === undefined) return;
  const planFile = path.join(folder, `${name}.json`);
  if (!existsSync(planFile)) return;
  const { at, action, times = 1 } = JSON.parse(readFileSync(planFile, 'utf8')) as FailpointPlan;
  const passing = countPassing(folder, name);
  if (passing < at || passing >= at + times) return;
  const fired: FiredFailpoint = { pid: process.pid, time: new Date().toISOString() };
  writeFileSync(path.join(folder, `${name}.fired.${passing - at + 1}`), JSON.stringify(fired));
  if (action === 'fail') throw new RatchetError('FaultInjected', `The failpoint ${name} was asked to fail.`);
  while (!existsSync(path.join(folder, `${name}.released`))) await delay(releaseCheckMs);
}

/** Whoever makes the next folder has the next number. */
function countPassing(folder: string, name: string): number {
  for (let passing = 1; ; passing++) {
    try {
      mkdirSync(path.join(folder, `${name}.passing.${passing}`));
      return passing;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
  }
}
