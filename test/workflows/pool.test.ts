/** Runs of one pool, whose workflow gives them trainers in turn. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { Context } from '@temporalio/activity';
import { askOpenPool, tellPool } from '../../activities/around/tell-pool.ts';
import type { KeptSettings, KnownTrainer, PoolStatus, TrainerStanding } from '../../core/fleet/pool-types.ts';
import {
  memoKeys,
  poolHolderQueryName,
  poolWorkflowId,
  queueOfPool,
  taskQueues,
  trainerStandingSignalName,
} from '../../core/names.ts';
import type { QueueSpec } from '../../config/run-spec.ts';
import { stepsOfHistory } from '../../bench/history.ts';
import { askPools } from '../../workers/temporal/ask-pools.ts';
import { evaluating, evaluationOf } from './fake-evaluation.ts';
import { FakeRun, type Fakes, Gate, holdingStep, specWith } from './fake-run.ts';
import { failureOf, timesContinued, until } from './look.ts';
import { testPools } from './fake-training.ts';
import { answersFor, begin, type BegunRun, closeServer, openServer, shortHistoryQueue } from './server.ts';

after(closeServer);

let pools = 0;

/** A pool of its own for each test. */
class TestPool {
  readonly name = testPools[pools++]!;

  queue(more: Partial<QueueSpec> = {}): { readonly queue: QueueSpec } {
    return { queue: { pool: this.name, team: 'default', priority: 0, startAt: null, labels: {}, ...more } };
  }

  async trainer(trainer: string, more: Partial<TrainerStanding> = {}): Promise<void> {
    const { client } = await openServer();
    const standing = { trainer, labels: {}, heldBy: null, leaves: false, ...more };
    await tellPool(client, this.name, trainerStandingSignalName, standing);
  }

  async set(settings: Readonly<Record<string, number | null>>): Promise<string> {
    await answersFor(new FakeRun(specWith(poolWorkflowId(this.name), {})));
    return (await this.#handle()).executeUpdate<string, [typeof settings]>('set', { args: [settings] });
  }

  async status(): Promise<PoolStatus> {
    const { client } = await openServer();
    const found = await askOpenPool<PoolStatus, []>(client, this.name, 'status');
    if (found === null) throw new Error(`the pool ${this.name} has no workflow`);
    return found;
  }

  async kept(trainer: string): Promise<KeptSettings | undefined> {
    const { client } = await openServer();
    return (await askOpenPool<KnownTrainer, [string]>(client, this.name, poolHolderQueryName, trainer))?.kept;
  }

  async settingsOfMemo(): Promise<unknown> {
    return (await (await this.#handle()).describe()).memo?.[memoKeys.poolSettings];
  }

  async terminate(): Promise<void> {
    await (await this.#handle()).terminate('as a test wants it');
  }

  async heldBy(run: BegunRun): Promise<void> {
    await until(`${run.name} holds a trainer`, async () => (await this.#found())?.trainers.some((one) => one.run === run.name) === true); // prettier-ignore
  }

  async asked(): Promise<void> {
    await until('a trainer is asked back', async () => (await this.#found())?.trainers.some((one) => one.giveBack !== null) === true); // prettier-ignore
  }

  async waits(run: BegunRun): Promise<void> {
    await until(`${run.name} waits`, async () => (await this.#found())?.waiting.some((one) => one.run === run.name) === true); // prettier-ignore
  }

  async #found(): Promise<PoolStatus | null> {
    return this.status().catch(() => null);
  }

  async #handle() {
    return (await openServer()).client.workflow.getHandle(poolWorkflowId(this.name));
  }
}

/** Digests of a run's versions: its weights. */
function digestsOf(run: BegunRun): string[] {
  return run.fake.commits().map(({ policy }) => policy.digest);
}

/** The digests that the same run has when nothing disturbs it. */
async function digestsAlone(maxSteps: number): Promise<string[]> {
  const run = await begin({ settings: { maxSteps } });
  await run.result();
  return digestsOf(run);
}

describe('a pool', { concurrency: 3 }, () => {
  test('a run of higher priority takes the trainer at a step boundary; the other waits, and goes on by itself with nothing lost', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    const gate = new Gate();
    const low = await begin({ settings: { maxSteps: 5, ...pool.queue() }, fakes: holdingStep(gate, 2) });
    await gate.reached;
    const inHigh = new Gate();
    const high = await begin({
      settings: { maxSteps: 2, ...pool.queue({ priority: 5 }) },
      fakes: holdingStep(inHigh, 1),
    });
    await pool.asked();
    assert.equal((await pool.status()).trainers[0]!.run, low.name); // until its step has ended
    gate.open();
    await inHigh.reached;
    await pool.waits(low);
    assert.equal(low.fake.head()!.commit.step, 2);
    await until(
      'it says what it waits for',
      async () =>
      (await low.status()).waitingOn.some(({ what }) => what.includes(`a trainer of the pool ${pool.name}: all of 1 trainer that fit are held: ${high.name} (priority 5)`)), // prettier-ignore
    );
    inHigh.open();
    await high.result();
    await low.result();
    assert.deepEqual(digestsOf(low), await digestsAlone(5));
    assert.deepEqual(digestsOf(high), await digestsAlone(2));
    assert.deepEqual(low.inputs('trainBatch').map(({ step }) => step), [1, 2, 3, 4, 5]); // prettier-ignore
    assert.deepEqual((await low.ended()).status.lost, { recoveries: 0, rollouts: 0, tokens: 0, seconds: 0 });
    assert.equal(low.inputs('leaseTrainer').length, 2);
    assert.ok(low.inputs('giveBackTrainer').length >= 1, 'it does not wait for a heartbeat');
    await until('nobody holds it', async () => (await pool.status()).trainers[0]!.run === null);
  });

  test('a trainer is given back after a step that makes a checkpoint: the one under way is finished, the next is planned with one', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    const gate = new Gate();
    const checkpoints = { ...specWith('any', {}).checkpoints, interval: 100 };
    const low = await begin({ settings: { maxSteps: 5, checkpoints, ...pool.queue() }, fakes: holdingStep(gate, 2) });
    await gate.reached;
    const inHigh = new Gate();
    const high = await begin({
      settings: { maxSteps: 1, ...pool.queue({ priority: 5 }) },
      fakes: holdingStep(inHigh, 1),
    });
    await pool.asked();
    gate.open();
    await inHigh.reached;
    assert.equal(low.fake.head()!.commit.step, 3);
    assert.deepEqual(low.inputs('trainBatch').map(({ step, seals = false }) => [step, seals]), [[1, false], [2, false], [3, true]]); // prettier-ignore
    inHigh.open();
    await Promise.all([high.result(), low.result()]);
    assert.deepEqual(low.fake.sealed, [0, 3, 5]);
  });

  test('runs of one priority take turns when a slice is over, ten times, and each has the weights that it has alone', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    await pool.set({ slice: 0.2, aging: 0 });
    const slow: Fakes = {
      trainBatch: async (_, { usual }) => {
        await new Promise((resolve) => void setTimeout(resolve, 250));
        return usual();
      },
    };
    const runs = await Promise.all(
      [1, 2].map(() => begin({ settings: { maxSteps: 12, ...pool.queue() }, fakes: slow })),
    );
    await Promise.all(runs.map((run) => run.result()));
    const alone = await digestsAlone(12);
    for (const run of runs) {
      assert.deepEqual(digestsOf(run), alone);
      assert.equal(run.inputs('trainBatch').length, 12);
      assert.ok(run.inputs('leaseTrainer').length >= 4, `${run.inputs('leaseTrainer').length} turns`);
    }
  });

  test('a pool that was ended is begun anew by its runs and trainers, and a run that holds a trainer keeps it', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    const gate = new Gate();
    const holds = await begin({ settings: { maxSteps: 2, ...pool.queue() }, fakes: holdingStep(gate, 1) });
    await gate.reached;
    const waits = await begin({ settings: { maxSteps: 1, ...pool.queue() } });
    await pool.waits(waits);
    await pool.terminate();
    await pool.waits(waits); // it looked, and told its standing again
    await pool.trainer('gpu-1', { heldBy: holds.name });
    await pool.heldBy(holds);
    assert.deepEqual((await pool.status()).waiting.map(({ run }) => run), [waits.name]); // prettier-ignore
    await until('the run has said how it stands', async () => {
      const { teams } = await pool.status();
      return teams.some(({ team, holds: held }) => team === 'default' && held === 1);
    });
    gate.open();
    await Promise.all([holds.result(), waits.result()]);
    assert.equal(holds.inputs('leaseTrainer').length, 1);
  });

  test('a pool that was ended has its quotas again from a trainer that kept them', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    await pool.set({ 'a.quota': 3, slice: 77 });
    const kept = await pool.kept('gpu-1');
    await pool.terminate();
    await pool.trainer('gpu-1', { kept });
    const { settings } = await pool.status();
    assert.deepEqual(settings, { slice: 77, aging: 3600, teams: { a: { quota: 3, weight: 1 } } });
    assert.deepEqual(await pool.settingsOfMemo(), settings);
    await pool.trainer('gpu-2', { kept: { settings: { slice: 'x' } } as never });
    assert.deepEqual((await pool.status()).trainers.map(({ trainer }) => trainer), ['gpu-1']); // prettier-ignore
  });

  test('a trainer that does not answer is passed over', async () => {
    const pool = new TestPool();
    await pool.trainer('gone');
    const run = await begin({ settings: { maxSteps: 1, ...pool.queue() } });
    await until(
      'it is no trainer any more',
      async () => (await pool.status().catch(() => null))?.trainers.length === 0,
    );
    await pool.waits(run);
    await pool.trainer('gpu-2');
    await run.result();
  });

  test('a lost trainer leaves the pool, and its run goes on with another one', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    await pool.trainer('gpu-2');
    const gate = new Gate();
    const run = await begin({ settings: { maxSteps: 2, ...pool.queue() }, fakes: holdingStep(gate, 1) });
    await gate.reached;
    gate.open();
    run.fake.loseTrainer();
    await run.result();
    assert.deepEqual((await pool.status()).trainers.map(({ trainer }) => trainer), ['gpu-2']); // prettier-ignore
    assert.equal((await run.told('recovery')).length, 1);
  });

  test('a cancelled run leaves, and one that was terminated when its trainer says that it is free', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    const gate = new Gate();
    const first = await begin({ settings: pool.queue(), fakes: holdingStep(gate, 1) });
    await gate.reached;
    const inSecond = new Gate();
    const second = await begin({ settings: pool.queue(), fakes: holdingStep(inSecond, 1) });
    await pool.waits(second);
    await first.handle.cancel();
    await failureOf(first.handle.result());
    await inSecond.reached;
    await second.handle.terminate();
    const third = await begin({ settings: { maxSteps: 1, ...pool.queue() } });
    await pool.waits(third);
    await pool.trainer('gpu-1', { heldBy: null });
    await third.result();
  });

  test('a run that continues as new keeps its turn', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    const run = await begin({ settings: { maxSteps: 12, ...pool.queue() }, taskQueue: shortHistoryQueue });
    await run.result();
    assert.ok((await timesContinued(run)) >= 1);
    assert.deepEqual(digestsOf(run), await digestsAlone(12));
    assert.equal((await pool.status()).trainers[0]!.trainer, 'gpu-1');
  });

  test('a start time and a quota are waited for, under a label; a set priority is told to the pool', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    await pool.set({ 'none.quota': 0 });
    const later = await begin({ settings: pool.queue({ startAt: '2999-01-01T00:00:00Z' }) });
    const full = await begin({ settings: pool.queue({ team: 'none' }) });
    const says = (run: BegunRun, text: string) =>
      until(text, async () => {
        const seen = await run.status().catch(() => null); // it is not open yet
        return seen?.waitingOn.some(({ what }) => what.includes(text)) === true;
      });
    await says(later, 'it starts at 2999-01-01 00:00 UTC');
    await says(full, 'its team none has a quota of 0');
    assert.match(await full.tell('set', { 'queue.priority': 7 }), /queue.priority 0 → 7\nfrom now on/);
    await until('the pool knows', async () => (await pool.status()).waiting.some(({ priority }) => priority === 7));
    await pool.set({ 'none.quota': 1 });
    await full.result();
    await later.handle.cancel();
    await failureOf(later.handle.result());
    await until('nobody waits', async () => (await pool.status()).waiting.length === 0);
  });

  test('a step of a run in a pool is as many events as of any other', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    const run = await begin({
      settings: { maxSteps: 4, checkpoints: { ...specWith('any', {}).checkpoints, interval: 100 }, ...pool.queue() },
      fakes: { commitStep: async (_, { usual }) => ({ ...(await usual()), isPublished: true }) },
    });
    await run.result();
    const steps = stepsOfHistory((await run.handle.fetchHistory()).events ?? []);
    assert.deepEqual(steps.slice(1, 3).map(({ events }) => events), [31, 31]); // prettier-ignore
  });

  test('rollouts and evaluations of a run are played by the rollout workers of its pool, with its priority and for its share', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    const asked = new Set<string>();
    const noting = async <T>(usual: () => Promise<T>): Promise<T> => {
      const { taskQueue, activityType, priority } = Context.current().info;
      asked.add([activityType, taskQueue, priority?.priorityKey, priority?.fairnessKey].join(' '));
      return usual();
    };
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 2, eval: evaluating(), ...pool.queue({ priority: 1 }) },
      fakes: {
        ...holdingStep(gate, 1),
        playGroups: (_, { usual }) => noting(usual),
        evaluateChunk: (_, { usual }) => noting(usual),
      },
    });
    await gate.reached;
    await until('the version before is evaluated, too', () => asked.size === 2);
    await run.tell('set', { 'queue.priority': -1 }); // an evaluation under way keeps its priority
    gate.open();
    const { evals } = await run.result();
    assert.equal(evals.length, 2);
    const queue = queueOfPool(taskQueues.rollout, pool.name);
    const all = ['evaluateChunk', 'playGroups'].flatMap((name) => [2, 4].map((key) => `${name} ${queue} ${key} ${run.name}`)); // prettier-ignore
    assert.deepEqual([...asked].toSorted(), all);
  });

  test('a run that waits for a trainer samples with a quarter of the weight that it has with one', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    const [gate, inHigh] = [new Gate(), new Gate()];
    /** Of a rollout, whatever the size of its chunk. */
    const weights = new Set<number>();
    const low = await begin({
      settings: { maxSteps: 6, maxAsyncLevel: 2, ...pool.queue() },
      fakes: {
        ...holdingStep(gate, 2),
        playGroups: ({ chunk }, { usual }) => {
          weights.add(Context.current().info.priority!.fairnessWeight! * chunk.groups!);
          return usual();
        },
      },
    });
    await gate.reached;
    const [whole] = weights;
    const high = await begin({ settings: { maxSteps: 1, ...pool.queue({ priority: 5 }) }, fakes: holdingStep(inHigh, 1) }); // prettier-ignore
    await pool.asked();
    gate.open();
    await inHigh.reached;
    await until('it samples while it waits', () => weights.size > 1);
    inHigh.open();
    await Promise.all([low.result(), high.result()]);
    assert.deepEqual([...weights], [whole, whole! / 4]);
  });

  test('a run that is asked for its trainer samples the step before it gives it back with its whole share', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    const [served, inHigh] = [new Gate(), new Gate()];
    const weights = new Map<number, number>();
    const checkpoints = { ...specWith('any', {}).checkpoints, interval: 100 };
    const low = await begin({
      settings: { maxSteps: 4, checkpoints, ...pool.queue() },
      fakes: {
        broadcastWeights: async ({ policy }, { usual }) => {
          if (policy.step === 1) await served.pass();
          return usual();
        },
        playGroups: ({ round }, { usual }) => {
          weights.set(round.step, Context.current().info.priority!.fairnessWeight!);
          return usual();
        },
      },
    });
    await served.reached; // v1 is no checkpoint
    const high = await begin({ settings: { maxSteps: 1, ...pool.queue({ priority: 5 }) }, fakes: holdingStep(inHigh, 1) }); // prettier-ignore
    await pool.asked();
    served.open();
    await inHigh.reached;
    await until('the next turn is sampled for', () => weights.has(3));
    inHigh.open();
    await Promise.all([low.result(), high.result()]);
    const whole = weights.get(1)!;
    assert.deepEqual([weights.get(2), weights.get(3)], [whole, whole / 4]);
  });

  test('evaluations that were started for a pool play there, each of a file, and are seen with what they wait for', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    await pool.trainer('nobody');
    const gate = new Gate();
    const queues = new Set<string>();
    const run = await begin({
      type: 'evaluate',
      args: [{ title: 'two', inputs: [evaluationOf('one', 'words'), evaluationOf('two', 'words')] }],
      memo: { [memoKeys.pool]: pool.name },
      fakes: {
        evaluateChunk: async (_, { usual }) => {
          queues.add(Context.current().info.taskQueue);
          await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    const { client } = await openServer();
    const parts = ['one', 'two'].map((name) => `${run.name}.words.${name}`);
    const seen = async () => {
      const [found] = await askPools(client, pool.name);
      assert.ok(found && !('trouble' in found), JSON.stringify(found));
      return found;
    };
    await until('both are seen', async () => (await seen()).played.length === 3);
    const { played, gone, workers } = await seen();
    assert.deepEqual(played.map(({ workflow }) => workflow).toSorted(), [run.name, ...parts]); // prettier-ignore
    assert.deepEqual([...new Set(played.map(({ kind }) => kind))], ['evaluation']); // prettier-ignore
    assert.deepEqual(gone, ['nobody']);
    assert.equal(workers.length, 1);
    gate.open();
    await run.handle.result();
    assert.deepEqual([...queues], [queueOfPool(taskQueues.rollout, pool.name)]);
    await until('none is left', async () => (await seen()).played.length === 0);
  });

  test('wrong messages and settings are refused in words', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    assert.match(await failureOf(pool.set({ quota: 1 })), /no such setting of a pool; what can be set: slice, aging, TEAM.quota, TEAM.weight/); // prettier-ignore
    assert.equal(await pool.set({ slice: 60, 'a.quota': 2 }), 'slice=60 aging=3600 a.quota=2 a.weight=1');
    const { client } = await openServer();
    const handle = client.workflow.getHandle(poolWorkflowId(pool.name));
    await handle.signal(trainerStandingSignalName, { trainer: 5 });
    assert.deepEqual((await pool.status()).trainers.map(({ trainer }) => trainer), ['gpu-1']); // prettier-ignore
    const gate = new Gate();
    const of = await begin({ settings: { maxSteps: 1 }, fakes: holdingStep(gate) });
    await gate.reached;
    assert.match(await failureOf(of.tell('set', { 'queue.priority': 7 })), /this run is of no pool/);
    gate.open();
    await of.result();
  });
});
