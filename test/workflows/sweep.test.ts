/** A sweep: its runs to each rung, what goes on, and what a death, a pause or a cancel leave. */
import assert from 'node:assert/strict';
import { hostname } from 'node:os';
import { after, describe, test } from 'node:test';
import { changeLines } from '../../cli/sweep/follow-sweep.ts';
import { RatchetError } from '../../core/errors.ts';
import { sweepWorkflowId, taskQueues } from '../../core/names.ts';
import type { SweepInput, SweepResult, SweepStatus } from '../../core/sweep/sweep.ts';
import { sweepRuns } from '../../core/sweep/table.ts';
import { historyOfChanges, starterOf } from '../../workers/temporal/history-of-changes.ts';
import { askUpdate } from '../../workers/temporal/update-run.ts';
import { FakeRun, type Fakes, Gate, holdingStep, specWith } from './fake-run.ts';
import { failureOf, soon, until } from './look.ts';
import { answersFor, closeServer, freshName, openServer, shortHistoryQueue } from './server.ts';

after(closeServer);

interface Of {
  readonly rows?: number;
  readonly seeds?: readonly number[];
  readonly input?: Partial<SweepInput>;
  /** The metric of a run at a step. */
  readonly value?: (run: { readonly row: number; readonly seed: number | null }, step: number) => number | null;
  /** What people changed in the runs of a row. */
  readonly changed?: Readonly<Record<number, readonly string[]>>;
  /** Of single runs, by row. */
  readonly fakes?: Readonly<Record<number, Fakes>>;
  readonly taskQueue?: string;
}

/** Rows whose metric is the row's number times the step, by default. */
async function begin(of: Of = {}) {
  const { rows = 4, seeds = [], value = ({ row }, step) => row * step } = of;
  const name = freshName();
  const settings = Array.from({ length: rows }, (_, i) => ({ learning_rate: (i + 1) / 1000 }));
  const runs = sweepRuns(name, settings, seeds);
  const input: SweepInput = {
    name,
    store: 'file:///nowhere/',
    config: 'words.toml',
    rows: settings,
    runs,
    metric: { name: 'train/reward', goal: 'max', lastSteps: 1 },
    maxSteps: 4,
    halving: { eta: 2, rungs: 3, minSteps: null },
    atOnce: 2,
    ...of.input,
  };
  const fakes = new Map(runs.map((run) => [run.name, new FakeRun(specWith(run.name, { maxSteps: input.maxSteps }))]));
  for (const run of runs) await answersFor(fakes.get(run.name)!, of.fakes?.[run.row]);
  const measureSweepRun: Fakes['measureSweepRun'] = ({ run, step }) => {
    const made = fakes.get(run.name)!.head()?.commit.step ?? null;
    const found = runs.find((one) => one.name === run.name)!;
    const changed = of.changed?.[found.row];
    return {
      step: made,
      value: made === null || made < step ? null : value(found, step),
      ...(changed === undefined ? {} : { changed }),
    };
  };
  const own = new FakeRun(specWith(name, {}));
  const { client } = await answersFor(own, { measureSweepRun });
  const start = () =>
    client.workflow.start('sweep', {
      workflowId: sweepWorkflowId(name),
      taskQueue: of.taskQueue ?? taskQueues.orchestrator,
      args: [input],
    });
  const handle = await start();
  return {
    name,
    client,
    handle,
    fakes,
    start,
    result: async (of = handle) => (await soon('the end of a sweep', of.result())) as SweepResult,
    status: () => client.workflow.getHandle(sweepWorkflowId(name)).query<SweepStatus>('status'),
    tell: (update: string, args: readonly unknown[] = []) =>
      client.workflow.getHandle(sweepWorkflowId(name)).executeUpdate<string, [unknown]>(update, { args: [args[0]] }),
    /** Steps that each run trained, in order. */
    trained: () => [...fakes.values()].map((fake) => fake.inputs('trainBatch').map(({ step }) => step)),
  };
}

describe('a sweep', { concurrency: 8 }, () => {
  test('trains all rows to the first rung and the best to the end, no step twice', async () => {
    const sweep = await begin();
    const { best, decided, steps, runs } = await sweep.result();
    assert.equal(best, 3);
    assert.deepEqual(
      decided.map(({ step, survivors }) => [step, survivors]),
      [
        [1, [2, 3]],
        [2, [3]],
        [4, [3]],
      ],
    );
    assert.deepEqual(sweep.trained(), [[1], [1], [1, 2], [1, 2, 3, 4]]);
    assert.deepEqual(steps, { made: 8, full: 16 });
    assert.deepEqual(
      runs.map(({ state, step }) => [state, step]),
      [
        ['dropped', 1],
        ['dropped', 1],
        ['dropped', 2],
        ['finished', 4],
      ],
    );
    // A rung is the last step of this time: it has a checkpoint, and the schedule stays that of the whole run.
    const last = [...sweep.fakes.values()][3]!;
    assert.deepEqual(
      last.commits().map(({ step, state }) => [step, state.overrides.stopAfter]),
      [
        [0, 1],
        [1, 1],
        [2, 2],
        [3, 4],
        [4, 4],
      ],
    );
  });

  test('without halving trains every run to the end, with settings and a seed of its own', async () => {
    const seeds = [1, 2];
    const sweep = await begin({ rows: 2, seeds, input: { halving: null, maxSteps: 2 } });
    const { best, steps, decided } = await sweep.result();
    assert.deepEqual([best, steps], [1, { made: 8, full: 8 }]);
    assert.deepEqual([decided[0]!.ranking[0]!.seeds, decided[0]!.ranking[0]!.standardError], [2, 0]);
    const opened = [...sweep.fakes.values()].map(
      (fake) => fake.inputs('openRun')[0] as { run?: string; overrides?: object },
    );
    assert.deepEqual(
      opened.map(({ overrides }) => overrides),
      [
        { learning_rate: '0.001', seed: '1' },
        { learning_rate: '0.001', seed: '2' },
        { learning_rate: '0.002', seed: '1' },
        { learning_rate: '0.002', seed: '2' },
      ],
    );
    assert.deepEqual(
      opened.map(({ run }) => run),
      [...sweep.fakes.keys()],
    );
  });

  test('goes on without a run that fails, and never prefers it', async () => {
    const fails: Fakes = {
      warmUp: () => {
        throw new RatchetError('ConfigInvalid', 'no such rate');
      },
    };
    const sweep = await begin({ fakes: { 3: fails } });
    const { best, runs } = await sweep.result();
    assert.equal(best, 2);
    assert.deepEqual([runs[3]!.state, runs[3]!.value], ['failed', null]);
    assert.match(runs[3]!.failure!, /no such rate/);
  });

  test('ends with what is missing when no run has the metric', async () => {
    const sweep = await begin({ rows: 2, value: () => null });
    const failure = await failureOf(sweep.handle.result());
    assert.match(failure, /SweepUndecided: No run of .* has train\/reward at step 1/);
  });

  test('trains no more runs at once than it may', async () => {
    const gates = [0, 1, 2].map(() => new Gate());
    const sweep = await begin({
      rows: 3,
      input: { halving: null, maxSteps: 1 },
      fakes: Object.fromEntries(gates.map((gate, row) => [row, holdingStep(gate)])),
    });
    await Promise.all([gates[0]!.reached, gates[1]!.reached]);
    assert.deepEqual(
      (await sweep.status()).runs.map(({ state }) => state),
      ['training', 'training', 'waiting'],
    );
    gates[0]!.open();
    await gates[2]!.reached;
    for (const gate of gates) gate.open();
    assert.equal((await sweep.result()).best, 2);
  });

  test('paused, begins no further run until it is resumed', async () => {
    const gate = new Gate();
    const sweep = await begin({ rows: 2, input: { atOnce: 1 }, fakes: { 0: holdingStep(gate) } });
    await gate.reached;
    assert.match(await sweep.tell('pause'), /running → paused: asked to/);
    assert.match(
      await sweep.tell('pause', ['lunch']),
      /^It was paused already \(asked to\); the reason is now: lunch\./,
    );
    gate.open();
    await until('the first run at its rung', async () => (await sweep.status()).runs[0]!.state === 'at its rung');
    const { phase, pausedBecause, runs } = await sweep.status();
    assert.deepEqual([phase, pausedBecause, runs[1]!.state], ['paused', 'lunch', 'waiting']);
    assert.match(await sweep.tell('resume'), /paused \(lunch\) → running/);
    const named = { noun: 'sweep', name: sweep.name, look: 'ratchet sweep NAME --status' } as const;
    await assert.rejects(askUpdate(sweep.handle, named, { update: 'resume', args: [null] }), {
      name: 'ConfigInvalid',
      message: `${sweep.name}: nothing changed. The sweep is not paused.`,
    });
    assert.equal((await sweep.result()).best, 1);
  });

  test('paused as its last run trains, ends with it: nothing is left to resume', async () => {
    const gate = new Gate();
    const sweep = await begin({ rows: 2, input: { atOnce: 1, halving: null }, fakes: { 1: holdingStep(gate) } });
    await gate.reached;
    assert.match(await sweep.tell('pause', ['lunch']), /None is left to begin: then the sweep ends\.$/);
    const before = await sweep.status();
    assert.deepEqual([before.phase, before.pausedBecause], ['paused', 'lunch']);
    gate.open();
    const { best, phase, pausedBecause } = await sweep.result();
    assert.deepEqual([best, phase, pausedBecause], [1, 'finished', null]);
    assert.ok(
      changeLines(before, await sweep.status()).includes('ended while it was paused (lunch): no run was left to begin'),
    );
  });

  test('paused before its last rung, says what goes on, and begins it once it is resumed', async () => {
    const gate = new Gate();
    const halving = { eta: 2, rungs: 2, minSteps: null };
    const sweep = await begin({ rows: 2, input: { atOnce: 1, halving }, fakes: { 1: holdingStep(gate) } });
    await gate.reached;
    assert.match(await sweep.tell('pause'), /Continue with: npx ratchet-rl sweep .* --resume$/);
    gate.open();
    await until('the decision', async () => (await sweep.status()).decided.length === 1);
    const { phase, runs } = await sweep.status();
    assert.deepEqual([phase, ...runs.map(({ state }) => state)], ['paused', 'dropped', 'waiting']);
    await sweep.tell('resume');
    assert.equal((await sweep.result()).best, 1);
  });

  test('cancelled, cancels its runs; begun again, it trains only what is missing', async () => {
    const gate = new Gate();
    const sweep = await begin({ fakes: { 1: holdingStep(gate) } });
    await gate.reached;
    await until(
      'others at their rung',
      async () => (await sweep.status()).runs.filter(({ state }) => state === 'at its rung').length === 3,
    );
    await sweep.handle.cancel();
    assert.match(await failureOf(sweep.handle.result()), /^CancelledFailure/);
    const held = [...sweep.fakes.keys()][1]!;
    await until(
      'the run cancelled',
      async () => (await sweep.client.workflow.getHandle(held).describe()).status.name === 'CANCELLED',
    );
    gate.open();
    const again = await sweep.result(await sweep.start());
    assert.deepEqual([again.best, again.steps.made], [3, 8]);
    const [first, second, ...rest] = sweep.trained();
    assert.deepEqual([first, new Set(second), ...rest], [[1], new Set([1]), [1, 2], [1, 2, 3, 4]]);
  });

  test('terminated, leaves its runs at work, and finds them when it is begun again', async () => {
    const gate = new Gate();
    const sweep = await begin({ rows: 2, fakes: { 0: holdingStep(gate) } });
    await gate.reached;
    await sweep.handle.terminate();
    const again = await sweep.start();
    await until('it looks for the run', async () => (await sweep.status()).runs[1]!.state === 'at its rung');
    gate.open();
    assert.equal((await sweep.result(again)).best, 1);
    assert.deepEqual(sweep.trained(), [[1], [1, 2, 3, 4]]);
  });

  test('comes to the same end in executions that continue one another', async () => {
    const sweep = await begin({ rows: 8, seeds: [1, 2], taskQueue: shortHistoryQueue });
    const { best, steps, decided } = await sweep.result();
    assert.deepEqual(
      decided.map(({ step, survivors }) => [step, survivors]),
      [
        [1, [4, 5, 6, 7]],
        [2, [6, 7]],
        [4, [6, 7]],
      ],
    );
    assert.deepEqual([best, steps.made], [7, 2 * (8 + 4 + 2 * 2)]);
    const { client } = await openServer();
    const first = client.workflow.getHandle(sweepWorkflowId(sweep.name), sweep.handle.firstExecutionRunId);
    assert.equal((await first.describe()).status.name, 'CONTINUED_AS_NEW');
  });

  test('does not train on what a person has stopped', async () => {
    const gate = new Gate();
    const sweep = await begin({
      rows: 2,
      input: { halving: null, maxSteps: 3 },
      fakes: { 1: holdingStep(gate) },
    });
    await gate.reached;
    const stopped = [...sweep.fakes.keys()][1]!;
    await sweep.client.workflow.getHandle(stopped).executeUpdate('stop');
    gate.open();
    const { best, runs } = await sweep.result();
    assert.deepEqual([best, runs[1]!.state, runs[1]!.step], [0, 'stopped', 1]);
  });

  test('says which of its runs people steered', async () => {
    const sweep = await begin({ rows: 2, changed: { 1: ['learning_rate=0.5 after step 0'] } });
    const { runs } = await sweep.result();
    assert.deepEqual(runs.map(({ changed }) => changed ?? []), [[], ['learning_rate=0.5 after step 0']]); // prettier-ignore
  });

  test('belongs to whoever started it, and so do its runs', async () => {
    const sweep = await begin({ rows: 2 });
    await sweep.result();
    const starter = `${process.pid}@${hostname()}`;
    assert.deepEqual(await starterOf(sweep.handle), { who: starter, team: null });
    const [run = ''] = sweep.fakes.keys();
    const { runId } = await sweep.client.workflow.getHandle(run).describe();
    const [started] = await historyOfChanges(() => sweep.client).around({ workflow: run, execution: runId });
    assert.deepEqual([started?.what, started?.identity], ['start', starter]);
  });
});
