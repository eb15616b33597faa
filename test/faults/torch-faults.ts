/** Rows of runs that PyTorch trains. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { eventsQuery } from '../../workflows/control/messages.ts';
import { ranksOf } from '../engines/torch-ranks.ts';
import { untilGone } from '../engines/started-trainer-worker.ts';
import type { Column } from './columns.ts';
import { kill } from './process-faults.ts';
import type { Judged, Row, Rows, Struck } from './row.ts';

/** The other rank waits for one that was stopped: what the ranks were asked to do is then under way, and cannot end. */
const underWayMs = 1_000;

/** PyTorch starts anew after most of these, which takes a busy machine a minute. */
const limitMs = 900_000;

const because = 'nothing is under way on a rank there that the columns beside it lack';

const onRanks = (...only: readonly Column[]) =>
  ({ stage: 'torch', action: 'hold', losesNothing: true, limitMs, columns: { only, because } }) as const satisfies Partial<Row>; // prettier-ignore

export const torchFaults = {
  // Behind `plan` a step is computed, behind `train` its version and its checkpoint are written.
  'rank killed (PyTorch)': { ...onRanks('plan', 'train', 'trained', 'checkpoint'), strike: killRank },
  'rank stopped (PyTorch)': { ...onRanks('plan', 'train'), strike: stopRank },
  'out of memory (PyTorch)': { ...onRanks('plan'), strike: takeMemory, judge: judgeFewerRows },
  'GPU worker killed (PyTorch)': { ...onRanks('plan', 'train', 'trained', 'checkpoint'), strike: killWorker },
} satisfies Rows;

/** The second of the two, in the middle of its work. */
async function killRank({ stage, release }: Struck): Promise<void> {
  const pids = ranks(stage);
  process.kill(pids[1]!, 'SIGSTOP');
  release();
  await delay(underWayMs);
  process.kill(pids[1]!, 'SIGKILL');
  for (const pid of pids) await untilGone(pid);
}

async function stopRank({ stage, release, harmEnds }: Struck): Promise<void> {
  const pids = ranks(stage);
  process.kill(pids[1]!, 'SIGSTOP');
  release();
  for (const pid of pids) await untilGone(pid);
  harmEnds();
}

/** They keep what they have, and the next batch needs more. */
async function takeMemory({ stage, release }: Struck): Promise<void> {
  const pids = ranks(stage);
  for (const pid of pids) {
    const [, kilobytes] = /^VmSize:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))!;
    execFileSync('prlimit', ['--pid', String(pid), `--as=${Number(kilobytes) * 1024}`]);
  }
  release();
  for (const pid of pids) await untilGone(pid);
}

/** Fewer rows at a time are added up in another order: the bits are others, and all else is the same. */
async function judgeFewerRows({ run, summary, undisturbed }: Judged): Promise<void> {
  assert.deepEqual(summary.ledger.counts, undisturbed.summary.ledger.counts);
  const events = await run.handle.query(eventsQuery, 0);
  const said = events.filter(({ text }) => /out of memory; tried once more with \d+ rows at a time/.test(text));
  assert.equal(said.length, 1, 'the step was planned again with fewer rows');
}

async function killWorker({ stage, release }: Struck): Promise<void> {
  const pids = ranks(stage);
  process.kill(pids[1]!, 'SIGSTOP');
  release();
  await delay(underWayMs);
  await kill(stage, 'train worker');
  for (const pid of pids) await untilGone(pid);
}

function ranks(stage: Struck['stage']): readonly number[] {
  const pids = ranksOf(stage.pid('train worker'));
  assert.equal(pids.length, 2, 'the GPU worker has two ranks');
  return pids;
}
