/** Runs, evaluations and searches that share rollout workers with little room: who comes next. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { tellPool } from '../../activities/around/tell-pool.ts';
import { memoKeys, queueOfPool, taskQueues, trainerStandingSignalName } from '../../core/names.ts';
import type { QueueSpec } from '../../config/run-spec.ts';
import { evaluationOf } from './fake-evaluation.ts';
import { type Fakes, Gate } from './fake-run.ts';
import { gpuWorkers, narrowPools, narrowPoolSlots } from './fake-training.ts';
import { until } from './look.ts';
import { begin, type BegunRun, closeServer, openServer } from './server.ts';

after(closeServer);

/** temporal.api.enums.v1.TaskQueueType */
const activityQueue = 2;

let pools = 0;

/** A piece of work that a rollout worker has begun. */
interface Begun {
  readonly of: string;
  readonly rollouts: number;
}

/** A pool of its own for each test. Its workers are held until all that is to wait for them waits. */
class NarrowPool {
  readonly name = narrowPools[pools++]!;
  readonly gate = new Gate();
  /** In the order in which workers began it, from when they were let go. */
  readonly begun: Begun[] = [];

  /** A trainer for each run: none waits for another one. */
  async open(): Promise<this> {
    const { client } = await openServer();
    for (const trainer of gpuWorkers) {
      const standing = { trainer, labels: {}, heldBy: null, leaves: false };
      await tellPool(client, this.name, trainerStandingSignalName, standing);
    }
    return this;
  }

  /** Samples one step of so many groups of four rollouts, in chunks of so many groups. */
  run(
    of: string,
    rounds: { readonly groups: number; readonly perChunk: number; readonly share?: number },
    more: Partial<QueueSpec> = {},
  ): Promise<BegunRun> {
    const queue = { pool: this.name, team: 'default', priority: 0, startAt: null, labels: {}, ...more };
    const fakes: Fakes = {
      leaseGroups: async (input, { usual }) => {
        const leased = await usual({ ...input, groupsPerChunk: rounds.perChunk });
        return rounds.share === undefined ? leased : { ...leased, share: rounds.share };
      },
      playGroups: ({ chunk }, { usual }) => this.play({ of, rollouts: 4 * (chunk.groups ?? 0) }, usual),
    };
    return begin({ settings: { maxSteps: 1, batchSize: 4 * rounds.groups, queue }, fakes });
  }

  async play<T>(one: Begun, usual: () => Promise<T>): Promise<T> {
    if (this.gate.isOpen) this.begun.push(one);
    await this.gate.pass();
    return usual();
  }

  /** Once so many pieces of work wait in the queue of the workers, beside those that are at one. */
  async waiting(pieces: number): Promise<void> {
    const { client } = await openServer();
    const { namespace } = client.options;
    const taskQueue = { name: queueOfPool(taskQueues.rollout, this.name) };
    await until(`${pieces} pieces wait`, async () => {
      const asked = { namespace, taskQueue, taskQueueType: activityQueue, reportStats: true };
      const { stats } = await client.workflowService.describeTaskQueue(asked);
      return Number(stats?.approximateBacklogCount ?? 0) === pieces;
    });
  }

  async begins(pieces: number): Promise<void> {
    await until(`${pieces} pieces were begun`, () => this.begun.length >= pieces);
  }

  /** Rollouts of others that were begun before the last piece of this one's, and its own. */
  untilLastOf(of: string): { readonly own: number; readonly others: number } {
    const last = this.begun.findLastIndex((one) => one.of === of);
    const upTo = this.begun.slice(0, last + 1);
    const sum = (isOwn: boolean): number =>
      upTo.filter((one) => (one.of === of) === isOwn).reduce((rollouts, one) => rollouts + one.rollouts, 0);
    return { own: sum(true), others: sum(false) };
  }
}

async function stop(...runs: readonly BegunRun[]): Promise<void> {
  await Promise.all(runs.map(({ handle }) => handle.terminate('as a test wants it')));
}

describe('rollout workers that are shared', { concurrency: 3 }, () => {
  test('a run with a batch many times larger holds nobody up: what waits is begun by turns, as many rollouts of each', async () => {
    const pool = await new NarrowPool().open();
    const large = await pool.run('large', { groups: 128, perChunk: 4 });
    await pool.waiting(32 - narrowPoolSlots);
    const small = await pool.run('small', { groups: 12, perChunk: 1 });
    await pool.waiting(12 + 32 - narrowPoolSlots);
    pool.gate.open();
    await pool.begins(12 + 32 - narrowPoolSlots);
    const { own, others } = pool.untilLastOf('small');
    assert.equal(own, 48);
    // First come, first served would be 480. One chunk of 16 more or less is how fine the turns are.
    assert.ok(others >= 16 && others <= 80, `48 rollouts of the small run beside ${others} of the large one`);
    await stop(large, small);
  });

  test('a run with three times the share has three times as many rollouts begun', async () => {
    const pool = await new NarrowPool().open();
    const heavy = await pool.run('heavy', { groups: 60, perChunk: 1, share: 3 });
    await pool.waiting(60 - narrowPoolSlots);
    const light = await pool.run('light', { groups: 60, perChunk: 1, share: 1 });
    await pool.waiting(60 + 60 - narrowPoolSlots);
    pool.gate.open();
    await pool.begins(40);
    const ofHeavy = pool.begun.slice(0, 40).filter(({ of }) => of === 'heavy').length;
    assert.ok(ofHeavy >= 27 && ofHeavy <= 33, `${ofHeavy} of 40`);
    await stop(heavy, light);
  });

  test('a run of higher priority comes first, and those of equal priority share what it leaves', async () => {
    const pool = await new NarrowPool().open();
    const low = await pool.run('low', { groups: 20, perChunk: 1 });
    await pool.waiting(20 - narrowPoolSlots);
    const other = await pool.run('other', { groups: 6, perChunk: 1 });
    await pool.waiting(6 + 20 - narrowPoolSlots);
    const high = await pool.run('high', { groups: 10, perChunk: 1 }, { priority: 1 });
    await pool.waiting(10 + 6 + 20 - narrowPoolSlots);
    pool.gate.open();
    await pool.begins(10 + 6 + 20 - narrowPoolSlots);
    const ofHigh = pool.untilLastOf('high');
    assert.equal(ofHigh.own, 40);
    // Places are filled side by side: what is handed out right after the last one may begin before it.
    assert.ok(
      ofHigh.others <= 4 * (narrowPoolSlots - 1),
      `${ofHigh.others} rollouts of others before the last of the first`,
    );
    const { own, others } = pool.untilLastOf('other');
    assert.equal(own, 24);
    assert.ok(others - 40 >= 16 && others - 40 <= 36, `24 rollouts of one beside ${others - 40} of the other`);
    await stop(low, other, high);
  });

  test('an evaluation of thousands that was started for the pool holds up no run', async () => {
    const pool = await new NarrowPool().open();
    const evaluation = await begin({
      type: 'evaluate',
      args: [evaluationOf('large', 'words')],
      memo: { [memoKeys.pool]: pool.name },
      fakes: {
        openEvaluation: async (_, { usual }) => ({
          ...(await usual()),
          examples: 600,
          chunkExamples: 20,
          chunks: 30,
          rolloutsPerExample: 1,
          inFlight: 10_000,
          atOnce: 1,
        }),
        evaluateChunk: (_, { usual }) => pool.play({ of: 'evaluation', rollouts: 20 }, usual),
      },
    });
    await pool.waiting(30 - narrowPoolSlots);
    const run = await pool.run('run', { groups: 12, perChunk: 1 });
    await pool.waiting(12 + 30 - narrowPoolSlots);
    pool.gate.open();
    await pool.begins(12 + 30 - narrowPoolSlots);
    const { own, others } = pool.untilLastOf('run');
    assert.equal(own, 48);
    assert.ok(others >= 20 && others <= 100, `48 rollouts of the run beside ${others} of the evaluation`);
    await stop(evaluation, run);
  });
});
