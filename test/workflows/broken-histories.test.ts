/** Workflows whose history their own code cannot replay, on a real server: what they are begun anew with. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { poolWorkflowId } from '../../core/names.ts';
import { slowPlayS } from '../../core/rl/sampling/window.ts';
import type { PoolStatus } from '../../core/fleet/pool-types.ts';
import { BrokenHistories } from '../../workers/stack/broken-histories.ts';
import { versionOf } from '../../workers/stack/take-over.ts';
import { evaluating } from './fake-evaluation.ts';
import { FakeRun, type Output, specWith } from './fake-run.ts';
import { testPools } from './fake-training.ts';
import { soon, until } from './look.ts';
import { begin, type BegunRun, brittleQueue, closeServer, freshName, openServer } from './server.ts';

const said: string[] = [];
const ends = new AbortController();
let healing: Promise<void> | null = null;

/** Looks for broken histories, as an orchestrator does, until the last test is over. */
function heal(): Promise<void> {
  healing ??= (async () => {
    const { name, client, handle } = await begin({
      settings: { maxSteps: 1 },
      taskQueue: brittleQueue,
      taskTimeout: '2s',
    });
    await handle.result();
    const version = versionOf(await client.workflow.getHandle(name).describe())!;
    watching = new BrokenHistories({ client: () => client, version, say: (line) => void said.push(line) }).watch(ends.signal, 250); // prettier-ignore
  })();
  return healing;
}

let watching = Promise.resolve();

after(async () => {
  ends.abort();
  await watching;
  await closeServer();
});

/** Result of the last execution, whatever became of those before. */
async function endOf<T>({ client }: BegunRun, id: string): Promise<T> {
  const handle = client.workflow.getHandle(id);
  await until('the end', async () => (await handle.describe()).status.name === 'COMPLETED');
  return (await client.workflow.getHandle(id, (await handle.describe()).runId).result()) as T;
}

interface Summary {
  readonly step: number;
  readonly ledger: { readonly isSound: boolean };
}

const executionOf = async ({ client }: BegunRun, id: string): Promise<string> =>
  (await client.workflow.getHandle(id).describe()).runId;

const takingS = (generateS: number, played: Output<'playGroups'>): Output<'playGroups'> => ({
  ...played,
  parts: played.parts.map((part) => ({ ...part, generateS })),
});

describe('histories that cannot be replayed', { concurrency: 4 }, () => {
  test('a run continues from its newest commit, says so, and commits each step once', async () => {
    await heal();
    const run = await begin({
      settings: { maxSteps: 6 },
      taskQueue: brittleQueue,
      taskTimeout: '2s',
      memo: { brittle: true },
    });
    const first = await executionOf(run, run.name);
    const { step, ledger } = await endOf<Summary>(run, run.name);
    assert.deepEqual([step, ledger.isSound], [6, true]);
    assert.notEqual(await executionOf(run, run.name), first);
    const { events } = await run.ended();
    const told = events.filter(({ kind }) => kind === 'recovery').map(({ text }) => text);
    assert.equal(told.length, 1);
    assert.match(told[0]!, /^Temporal's history of run-\S+ could not be replayed; it continues after step \d with a new one$/); // prettier-ignore
    assert.deepEqual(run.fake.commits().map((commit) => commit.step), [0, 1, 2, 3, 4, 5, 6]); // prettier-ignore
    assert.ok(
      said.includes(`${run.name}: its history cannot be replayed; it continues from its newest commit`),
      said.join('\n'),
    );
  });

  test('what generates the rounds of a run is ended, and the run gives them to another', async () => {
    await heal();
    const name = `brittle-playrounds-${freshName()}`;
    const run = await begin({
      fake: new FakeRun(specWith(name, { maxSteps: 8, maxAsyncLevel: 2, heartbeatTimeoutS: 2 })),
      // A run generates chunks that take less time itself.
      fakes: { playGroups: async (_, { usual }) => takingS(slowPlayS, await usual()) },
      taskQueue: brittleQueue,
      taskTimeout: '2s',
    });
    const first = await executionOf(run, name);
    await soon('the end', run.handle.result());
    assert.equal(await executionOf(run, name), first);
    assert.equal(run.fake.commits().length, 9);
    const query = `WorkflowType='playRounds' AND WorkflowId BETWEEN '${name}.' AND '${name}.~'`;
    const flows: string[] = [];
    await until('the first is listed as ended', async () => {
      flows.length = 0;
      for await (const { status } of run.client.workflow.list({ query })) flows.push(status.name);
      return flows.includes('TERMINATED');
    });
    assert.ok(flows.length > 1, flows.join(', '));
  });

  test('a pool has its settings again', async () => {
    await heal();
    const { client } = await openServer();
    const pool = testPools.at(-1)!;
    const handle = client.workflow.getHandle(poolWorkflowId(pool));
    await client.workflow.start('pool', { workflowId: handle.workflowId, taskQueue: brittleQueue, args: [{ name: pool }], memo: { brittle: true } }); // prettier-ignore
    await handle.executeUpdate('set', { args: [{ slice: 77 }] });
    const first = (await handle.describe()).runId;
    await until('it is begun anew', async () => {
      void handle.executeUpdate('set', { args: [{ slice: 77 }] }).catch(() => undefined); // it never answers once it is broken
      return (await handle.describe()).runId !== first;
    });
    await until('it has its settings', async () => (await handle.query<PoolStatus>('status').catch(() => null))?.settings.slice === 77); // prettier-ignore
    await handle.terminate();
  });

  test('a part that breaks is begun anew with the run that it tells its result', async () => {
    await heal();
    const name = `brittle-evaluate-${freshName()}`;
    const settings = { maxSteps: 3, eval: evaluating({ interval: 3 }) };
    const run = await begin({
      fake: new FakeRun(specWith(name, settings)),
      taskQueue: brittleQueue,
      taskTimeout: '2s',
    });
    const { step } = await endOf<Summary>(run, name);
    const evaluated = run.inputs('recordEvaluation').map(({ policy }) => policy.step);
    assert.deepEqual([step, [...new Set(evaluated)].toSorted((a, b) => a - b)], [3, [0, 3]]);
  });
});
