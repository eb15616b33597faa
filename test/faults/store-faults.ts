/**
 * Rows in which one machine does not see the store, or a store answers wrongly. The run continues, and names the worker and the problem.
 */
import assert from 'node:assert/strict';
import { statusQuery } from '../../workflows/control/messages.ts';
import { eventually } from '../eventually.ts';
import type { Fate, SeenRequest } from '../backends/misbehaving-proxy.ts';
import { hideStore, seenIn, showStore } from './hidden-store.ts';
import { judgeByWeights } from './judge.ts';
import { newestClaim } from './process-faults.ts';
import type { Judged, Row, Rows, Struck } from './row.ts';
import { inTrouble, trouble } from './s3-faults.ts';

/** Process that does not see the store, by run. */
const blind = new Map<string, number>();

const withoutStore = (
  role: 'rollout worker' | 'GPU worker',
  columns: NonNullable<Row['columns']>['only'],
  pidOf: (struck: Struck) => Promise<number>,
): Row => ({
  stage: `two ${role}s, mounts apart`,
  action: 'hold',
  strike: (struck) => hideFrom(struck, role, pidOf),
  judge: judgeAndShow,
  columns: {
    only: columns,
    because: 'no worker of the kind has anything under way there that the columns beside it lack',
  },
});

/** Neighbouring columns read the same objects, so not every column has a cell. */
const answering = (fateOf: (request: SeenRequest) => Fate): Row => ({
  ...inTrouble((struck) => trouble(struck, fateOf)),
  columns: {
    only: ['warm-up', 'generate', 'score', 'train', 'commit', 'checkpoint'],
    because: 'the same objects are read there as in the columns beside it',
  },
});

export const storeFaults = {
  'rollout worker without the store, another one goes on': withoutStore(
    'rollout worker',
    ['lease', 'generate', 'generated', 'score', 'plan'],
    async ({ stage, column, fired }) =>
      column === 'lease' || column === 'plan' ? stage.pid('rollout worker') : fired.pid,
  ),
  'GPU worker without the store, another one takes over': {
    ...withoutStore(
      'GPU worker',
      ['generate', 'plan', 'train', 'trained', 'commit'],
      async ({ run }) => (await newestClaim(run)).pid,
    ),
    losesNothing: true,
  },
  'S3 answers with a flipped bit': answering(ofReads('flip answer')),
  'S3 answers 200 with nothing': answering(ofReads('empty answer')),
  'S3 answers with another object': answering(ofReads('other answer')),
  'S3 answers 404 for commits': answering(missingCommits),
} satisfies Rows;

/** Returns once the run's status names the worker and what it does not see. */
async function hideFrom(struck: Struck, role: string, pidOf: (struck: Struck) => Promise<number>): Promise<void> {
  const { stage, run, release, harmEnds } = struck;
  const pid = await pidOf(struck);
  blind.set(run.name, pid);
  hideStore(pid, stage.folder);
  release();
  const name = new RegExp(`${role} ${pid} on .*expected run\\.json there, found`);
  await eventually(
    'the run names the worker',
    async () => toldOf(struck),
    (told) => name.test(told),
    { everyMs: 200 },
  );
  harmEnds();
}

/**
 * Messages of the workers that the run lists as missing its store. A worker that was hit in its last work gets no more tasks, so it may not
 * be listed.
 */
async function toldOf({ stage, run }: Struck): Promise<string> {
  const handle = stage.client.workflow.getHandle(run.name);
  const { workersAway = [] } = await handle.query(statusQuery);
  return workersAway.map(({ why }) => why).join('\n');
}

/** Checks that other workers completed the run, that the hidden worker wrote nothing, and that it sees the store again by itself. */
async function judgeAndShow(judged: Judged): Promise<void> {
  const { stage, run } = judged;
  const pid = blind.get(run.name)!;
  assert.deepEqual(seenIn(pid, stage.folder), [], 'nothing was written where no store is');
  showStore(pid, stage.folder);
  judgeByWeights(judged);
}

function ofReads(fate: Fate): (request: SeenRequest) => Fate {
  return ({ operation }) => (operation === 'GetObject' ? fate : 'pass');
}

function missingCommits({ operation, url }: SeenRequest): Fate {
  const isRead = operation === 'GetObject' || operation === 'HeadObject';
  return isRead && /\/lineages\/[^/]+\/steps\//.test(url) ? { status: 404, code: 'NoSuchKey' } : 'pass';
}
