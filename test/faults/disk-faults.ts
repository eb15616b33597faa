/** The row in which a run's disk is full: the run waits, says for what, and continues when there is room. */
import assert from 'node:assert/strict';
import { setTimeout as delay } from 'node:timers/promises';
import { describeWaiting, retrying } from '../../cli/follow/follow-run.ts';
import { layout } from '../../runs/layout.ts';
import { rowKey } from '../../runs/metrics/metrics.ts';
import type { MetricsRow } from '../../core/rl/metric-rows.ts';
import { sha256 } from '../../store/file-store.ts';
import type { Store } from '../../store/types.ts';
import { statusQuery } from '../../workflows/control/messages.ts';
import { gapOf } from './columns.ts';
import { judgeByWeights } from './judge.ts';
import type { Judged, Rows, Struck } from './row.ts';
import { eventually } from '../eventually.ts';

/** How long the disk stays full after the run has said so: every activity is tried again a few times. */
const fullMs = 3_000;
const askAgainMs = 200;

/** Contents of each run's folder while the disk was full. */
const seenFull = new Map<string, ReadonlyMap<string, string>>();

export const diskFaults = {
  'disk full': {
    stage: 'small disk',
    action: 'hold',
    strike: fillForAWhile,
    losesNothing: true,
    judge: judgeWhatWasWritten,
  },
} satisfies Rows;

async function fillForAWhile({ stage, run, column, release, harmEnds }: Struck): Promise<void> {
  const disk = stage.surroundings.disk!;
  disk.fill();
  release();
  await eventually(
    'a full disk',
    async () => {
      const waiting = await describeWaiting(run.handle);
      // A run that waits for its branch writes nothing itself.
      return gapOf(column).hasBranch === true ? waiting + (await describeRetries(stage, run)) : waiting;
    },
    (waiting) => waiting.includes('No space left'),
    { everyMs: askAgainMs },
  );
  await delay(fullMs);
  seenFull.set(run.name, await immutableObjects(run.store));
  disk.free();
  harmEnds();
}

async function describeRetries({ client }: Struck['stage'], { name }: Struck['run']): Promise<string> {
  const { prompts } = await client.workflow.getHandle(name).query(statusQuery);
  const workflows = prompts.flatMap(({ branch }) => branch?.workflow ?? []);
  const told = workflows.map((workflow) => retrying(client.workflow.getHandle(workflow)));
  return (await Promise.all(told)).flat().join();
}

/** No object was seen half-written: each is today what it was then. No line of the metrics is missing or broken. */
async function judgeWhatWasWritten(judged: Judged): Promise<void> {
  judgeByWeights(judged);
  const { run, summary } = judged;
  const now = await immutableObjects(run.store);
  const then = seenFull.get(run.name)!;
  for (const [key, digest] of then) if (now.has(key)) assert.equal(now.get(key), digest, key); // retention removed the others
  const metrics = Buffer.from((await run.store.read(layout.metrics()))!).toString('utf8');
  const steps = metrics.split('\n').flatMap(stepOfRow);
  assert.deepEqual(
    steps,
    Array.from({ length: summary.step }, (_, i) => i + 1),
    'one row of metrics for every step',
  );
}

/** A part of a line, left by a full disk, is no row. Evaluations and searches have rows beside those of the steps. */
function stepOfRow(line: string): number[] {
  try {
    const row = JSON.parse(line) as MetricsRow;
    return rowKey(row).endsWith('/train') ? [row.step] : [];
  } catch {
    return [];
  }
}

/** Rewritten while an evaluation or a search continues, from the objects beside them. */
const projections = /^evals\/.*\/(?:results\.jsonl|metadata\.json)$|^gepa\/[^/]+\/[^/]+\/[^/]+\.(?:txt|jsonl|json|md)$/;

/** All but what grows, by sha256. */
async function immutableObjects(store: Store): Promise<Map<string, string>> {
  const grows = (key: string) => key === layout.metrics() || key.startsWith(layout.allLogs()) || projections.test(key);
  const keys = (await store.list('')).filter((key) => !grows(key));
  const objects = await Promise.all(keys.map(async (key) => [key, await store.read(key)] as const));
  return new Map(objects.flatMap(([key, bytes]) => (bytes ? [[key, sha256(bytes)] as const] : [])));
}
