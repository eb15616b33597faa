import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../core/errors.ts';

/**
 * Named gaps between a write and its acknowledgement, where the fault tests let a process wait, fail or repeat its
 * work. They do nothing unless RATCHET_FAILPOINTS names a folder with a plan in it, `NAME.json`. Passings are counted
 * there over all processes, so that a fault happens once, even across restarts. Fired failpoints are recorded beside
 * the plan.
 *
 * Every activity has two, `trainStep.begun` and `trainStep.done` (all is stored, nothing is acknowledged). Within
 * activities:
 *
 * - `generate.part`: some rollouts of a chunk are stored, others run
 * - `call.stored`: the answer to a call of an agent is stored, and the agent has not got it
 * - `effect.begin`, `effect.begun`, `effect.made`, `effect.settled`: around what is written down of a call with an effect
 * - `agent.scoring`: an agent has ended, and its sandbox is about to be scored
 * - `play.generated`: all of a chunk have ended, its newest groups are not stored
 * - `play.stored`: groups are scored and stored, their run has no report yet
 * - `gepa.part`: some answers of a prompt search are stored
 * - `budget.reserving`, `budget.reserved`: before and after a worker takes a share of a budget, or gives some back
 * - `lease.stored`: a round is leased, by whichever activity
 * - `broadcast.leased`, `pack.leased`: the broadcast, or the batch before it, has leased a round, and its run has no answer
 * - `plan.stored`: what a step trains on is fixed, nothing is trained
 * - `train.applied`: the weights in memory are new, nothing is stored
 * - `canary.compared`: the servers that differ are not recorded yet
 * - in a step on a Tinker server: `tinker.gradients` (not applied yet), `tinker.stepped` (not saved), `tinker.saved`
 *   (not downloaded), `tinker.loaded` (a checkpoint, into a model without an owner yet)
 * - in a step of prime-rl's trainer: `prime-rl.given` (the batch is where it looks for it), `prime-rl.done` (its version and its figures are there)
 * - in a vLLM: `vllm.adapter` (one more is loaded, the old ones are not unloaded), `vllm.exchanged` (it has other
 *   weights, is paused and has no label)
 */
export interface FailpointPlan {
  /** The passing at which it fires, counted from 1. */
  readonly at: number;
  /**
   * hold = until NAME.released is there; fail = a failure that is tried again; repeat = the activity is done twice in a row,
   * at its `begun` or its `done`.
   */
  readonly action: 'hold' | 'fail' | 'repeat';
  /** Number of passings from there on; 1 when left out. */
  readonly times?: number;
}

/** Stored as NAME.fired.N when a failpoint fires for the N-th time. */
export interface FiredFailpoint {
  readonly pid: number;
  readonly time: string;
}

const releaseCheckMs = 20;

/** Whether the activity must be repeated. */
export async function failpoint(name: string): Promise<{ readonly isRepeated: boolean }> {
  const plan = readPlan(name);
  if (!plan) return { isRepeated: false };
  const { folder, at, action, times = 1 } = plan;
  const passing = countPassing(folder, name);
  if (passing < at || passing >= at + times) return { isRepeated: false };
  const fired: FiredFailpoint = { pid: process.pid, time: new Date().toISOString() };
  writeFileSync(path.join(folder, `${name}.fired.${passing - at + 1}`), JSON.stringify(fired));
  if (action === 'fail') throw new RatchetError('FaultInjected', `The failpoint ${name} was asked to fail.`);
  if (action === 'hold') while (!existsSync(path.join(folder, `${name}.released`))) await delay(releaseCheckMs);
  return { isRepeated: action === 'repeat' };
}

function readPlan(name: string): (FailpointPlan & { readonly folder: string }) | null {
  const folder = process.env['RATCHET_FAILPOINTS'];
  if (folder === undefined) return null;
  const file = path.join(folder, `${name}.json`);
  return existsSync(file) ? { folder, ...(JSON.parse(readFileSync(file, 'utf8')) as FailpointPlan) } : null;
}

/** The creator of the next folder gets the next number. */
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
