/** Rollouts of several turns in a search for a prompt, where their worker goes away. */
import assert from 'node:assert/strict';
import { Readable } from 'node:stream';
import { test, type TestContext } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import { createAnswerSearch } from '../../activities/prompt-search/answer-search.ts';
import { createOpenPromptSearch } from '../../activities/prompt-search/open-search.ts';
import { createEnvironments, type EnvironmentEntry } from '../../backends/environments/index.ts';
import { listDataset, multiTurn, rubric } from '../../backends/environments/kit.ts';
import type { AnsweredLease, PromptSlice } from '../../core/gepa/leases.ts';
import type { PromptSearchHandle, PromptSearchInput } from '../../core/gepa/prompt-search.ts';
import { present } from '../../core/present.ts';
import type { RunState } from '../../core/rl/run-state.ts';
import { sandboxesFor } from '../../play/sandboxes/rollout-sandboxes.ts';
import { LeaseStore, sandboxKeys } from '../../runs/sandboxes/lease-store.ts';
import { StoredSnapshots } from '../../runs/sandboxes/stored-snapshots.ts';
import { until } from '../eventually.ts';
import { makeRun, openTokenizer, WordsInference } from './runs.ts';

const turnsOfEach = 4;
const words = (from: number) =>
  listDataset(() =>
    Array.from({ length: 30 }, (_, i) => ({
      prompt: [{ role: 'user' as const, content: `word ${from + i}` }],
      answer: '',
    })),
  );
/** Says "more" until four turns have been said; a reward is the letters that were. */
const environments = createEnvironments(async () =>
  multiTurn({
    name: 'talk',
    dataset: words(0),
    evalDataset: words(100),
    maxTurns: turnsOfEach,
    setup: () => 0,
    respond: ({ state, turns }) => ({ state: state + turns.at(-1)!.text.length, say: 'more' }),
    rubric: rubric<number>([{ name: 'letters', weight: 1, score: ({ state }) => state }]),
  }),
);

test('snapshots of the sandbox of a rollout are removed when its score is stored, and those of others are not', async (t) => {
  const resume = { command: ['agent', '--resume'], every: 1 };
  const program = { sandbox: { pool: {} }, resume } as unknown as NonNullable<EnvironmentEntry['program']>;
  const { opened, play, store } = await searches(t, program);
  const asked = await opened('search');
  const leases = new LeaseStore(store);
  const save = async (index: number): Promise<string> => {
    // The workflow of an activity in a test is `test`.
    const of = { store, run: 'search', workflow: 'test', lineage: 'search ', group: asked.slice.id, index };
    const { snapshotPrefix } = sandboxesFor({ program }, of)!;
    return (await new StoredSnapshots(leases, 'worker').put(`${snapshotPrefix}1`, Readable.from([Buffer.from('work')]))).key; // prettier-ignore
  };
  await save(0);
  await save(1);
  const other = await save(2); // of another lease
  await play(asked, new WordsInference());
  await until('the snapshots of both are gone', async () => {
    const keys = await leases.store.list(sandboxKeys.snapshots());
    return keys.length === 1 && keys[0]!.endsWith(other);
  });
});

test('a rollout that was broken off as its worker went away goes on from the turns that it had finished', async (t) => {
  const { opened, play } = await searches(t);

  const alone = new WordsInference();
  const undisturbed = await play(await opened('undisturbed'), alone);
  assert.equal(alone.asked.length, 2 * turnsOfEach);

  const asked = await opened('drained');
  const [leaving, next] = [new WordsInference(), new WordsInference()];
  const worker = new MockActivityEnvironment();
  leaving.beforeAnswer = async (call) => {
    if (call <= turnsOfEach + 2) return;
    worker.cancel('WORKER_SHUTDOWN');
    throw new Error('the worker is gone');
  };
  await assert.rejects(play(asked, leaving, worker));
  const { scores, adopted } = await play(asked, next);
  assert.deepEqual(scores, undisturbed.scores);
  // One rollout was finished; of the other two turns were, and the third was under way.
  assert.deepEqual([adopted, next.asked.length], [1, turnsOfEach - 2]);
  const said = [...leaving.asked.slice(0, turnsOfEach + 2), ...next.asked];
  assert.deepEqual(
    said.map(({ promptTokenIds, seed }) => [promptTokenIds, seed]),
    alone.asked.map(({ promptTokenIds, seed }) => [promptTokenIds, seed]),
  );
});

async function searches(t: TestContext, program?: EnvironmentEntry['program']) {
  const { run, spec } = await makeRun(t);
  const file = { key: 'w', sha256: '0', bytes: 0 };
  const policy: RunState['policy'] = { step: 1, digest: 'd', weights: 'w/', file, sums: file };
  const slice = { id: '0.child.0', set: 'train', keepsTraces: false, from: 0, examples: [3, 5] } as const;
  const opened = async (name: string): Promise<{ handle: PromptSearchHandle; slice: PromptSlice }> => {
    const input: PromptSearchInput = {
      environments: [{ id: 'talk', name: 'talk', args: {}, ...present({ program }) }],
      model: { kind: 'version', model: 'words', run, policy, sampling: spec.sampling },
      reflection: { model: 'm', servers: [], fields: {} },
      maxCalls: 60,
      minibatchSize: 3,
      perfectScore: null,
      stateColumns: [],
      numTrain: 12,
      numVal: 10,
      numTest: 0,
      maxConcurrent: 1,
      seed: 0,
      isClassic: true,
      initialPrompt: 'Say something.',
      results: { store: run.store, name, prefix: '' },
      savesResults: false,
      isSmallBudgetMeant: true,
    };
    const open = createOpenPromptSearch({
      codeVersion: 'test',
      countRolloutWorkers: () => Promise.resolve(1),
      environments,
    });
    const handle = (await new MockActivityEnvironment().run(open, { input })) as PromptSearchHandle;
    return { handle, slice: { ...slice, texts: handle.start } };
  };
  const play = async (
    { handle, slice: one }: Awaited<ReturnType<typeof opened>>,
    inference: WordsInference,
    worker = new MockActivityEnvironment(),
  ): Promise<{ readonly scores: readonly (number | null)[]; readonly adopted: number }> => {
    const dependencies = { inference: () => inference, tokenizer: openTokenizer, environments };
    const lease = { handle, work: { kind: 'slices', slices: [one] } } as const;
    const { played, adopted } = (await worker.run(createAnswerSearch(dependencies), lease)) as AnsweredLease;
    return { scores: played[0]!.scores, adopted };
  };
  return { opened, play, store: run.store };
}
