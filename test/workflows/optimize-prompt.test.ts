/** A search for a better prompt: sitting after sitting, told to stop, given more calls, continued as new. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import type {
  PromptSearchEvent,
  PromptSearchInput,
  PromptSearchResult,
  PromptSearchStatus,
} from '../../core/gepa/prompt-search.ts';
import { next } from '../../core/gepa/search.ts';
import { answerTo, searchOf } from './fake-evaluation.ts';
import { type Call, type Fakes, Gate, type Output } from './fake-run.ts';
import { failureOf, timesContinued } from './look.ts';
import { begin, type BegunRun, closeServer, shortHistoryQueue } from './server.ts';

after(closeServer);

const searching = (fakes: Fakes = {}, of: Partial<PromptSearchInput> = {}, taskQueue?: string): Promise<BegunRun> =>
  begin({
    type: 'optimizePrompt',
    args: [searchOf('place', of)],
    fakes,
    ...(taskQueue === undefined ? {} : { taskQueue }),
  });

const statusOf = (run: BegunRun) => run.handle.query<PromptSearchStatus>('status');
const resultOf = (run: BegunRun) => run.handle.result() as Promise<PromptSearchResult>;
/** Of the newest execution. */
const toldBy = async ({ client, name }: BegunRun): Promise<string[]> => {
  const events = await client.workflow.getHandle(name).query<PromptSearchEvent[], [number]>('events', 0);
  return events.map(({ kind }) => kind);
};

/** Holds a sitting until it is let go on. */
function holding(gate: Gate, nthHeld = 2): Fakes {
  return {
    searchPrompts: async (_, { nth, usual }) => {
      if (nth === nthHeld) await gate.pass();
      return usual();
    },
  };
}

describe('a search for a prompt', { concurrency: 8 }, () => {
  test('continues sitting after sitting until its budget is used, never beyond it, and is closed with the best', async () => {
    const run = await searching();
    const { best, bestScore, calls, maxCalls, stopReason, comparison } = await resultOf(run);
    assert.ok(best > 0 && bestScore! > 0 && calls <= maxCalls);
    assert.deepEqual([stopReason, comparison, maxCalls], ['budget', null, 40]);
    assert.ok(run.inputs('writePrompts').length >= 1, 'what was found is written meanwhile');
    assert.equal((await statusOf(run)).doing, 'finished');
  });

  test('each sitting continues from the answers of the one before', async () => {
    const run = await searching();
    await resultOf(run);
    const answered = run.inputs('searchPrompts').map(({ state }) =>
      next(state)
        .map(({ id }) => id)
        .join(),
    );
    assert.equal(new Set(answered).size, answered.length, 'nothing was asked twice');
  });

  test('told to stop it finishes what is under way and validates the best', async () => {
    const gate = new Gate();
    const run = await searching(holding(gate, 4));
    await gate.reached;
    assert.match(await run.tell('stop'), /^The search ends/);
    const { stopReason } = await resultOf(run);
    gate.open();
    assert.equal(stopReason, 'asked');
    assert.ok((await toldBy(run)).includes('stopping'));
  });

  test('given more calls it continues with them; fewer are refused', async () => {
    const gate = new Gate();
    const run = await searching(holding(gate));
    await gate.reached;
    await assert.rejects(run.tell('raise-budget', 40), /Update failed/);
    await run.tell('raise-budget', 60);
    gate.open();
    const { calls } = await resultOf(run);
    assert.ok(calls > 40 && calls <= 60, `${calls} calls`);
  });

  test('a search that is closing cannot be stopped or raised', async () => {
    const gate = new Gate();
    const run = await searching({
      closePromptSearch: async (_, { usual }) => {
        await gate.pass();
        return usual();
      },
    });
    await gate.reached;
    await assert.rejects(run.tell('stop'), /Update failed/);
    await assert.rejects(run.tell('raise-budget', 1000), /Update failed/);
    gate.open();
    await resultOf(run);
  });

  test('a start that cannot be scored ends it by name, once that is written', async () => {
    const nothing = async (
      { usual }: Call<'searchPrompts'>,
      state: Parameters<typeof next>[0],
    ): Promise<Output<'searchPrompts'>> => ({
      ...(await usual()),
      answers: [next(state).map(({ id }) => ({ kind: 'failed' as const, id, paid: 0 }))],
      failed: 4,
      firstFailure: 'connection refused',
    });
    const run = await searching({ searchPrompts: ({ state }, call) => nothing(call, state) });
    assert.match(
      await failureOf(run.handle.result()),
      /^PromptNotEvaluated: The first prompt of reverse-text could not be scored on all validation examples: \d+ rollouts failed through infrastructure\. connection refused$/,
    );
    assert.equal(run.order('writePrompts', 'closePromptSearch').at(-1), 'writePrompts');
    assert.equal((await toldBy(run)).filter((kind) => kind === 'warning').length, 1, 'the first failure is told once');
  });

  test('the first and the best prompt are compared on examples that the search has not seen, where that is asked for', async () => {
    const run = await searching({}, { numTest: 2 });
    const { comparison } = await resultOf(run);
    assert.deepEqual(comparison, { examples: 2, before: 0.25, after: 0.75 });
    assert.deepEqual(run.order('comparePrompts', 'closePromptSearch'), ['comparePrompts', 'closePromptSearch']);
  });

  test('cancelled, it writes what it has', async () => {
    const gate = new Gate();
    const run = await searching(holding(gate, 3));
    await gate.reached;
    await run.handle.cancel();
    assert.match(await failureOf(run.handle.result()), /Cancelled/);
    assert.equal(run.inputs('closePromptSearch').length, 0);
    assert.ok(run.inputs('writePrompts').length >= 1);
  });

  test('a long history continues as new, and finds what one execution finds', async () => {
    const [short, whole] = await Promise.all([
      searching({}, { maxCalls: 150 }, shortHistoryQueue),
      searching({}, { maxCalls: 150 }),
    ]);
    const results = await Promise.all([resultOf(short), resultOf(whole)]);
    assert.ok((await timesContinued(short)) >= 1);
    const [one, other] = results.map(({ best, calls, candidates, bestScore }) => [best, calls, candidates, bestScore]);
    assert.deepEqual(one, other);
    assert.equal(short.inputs('openPromptSearch').length, 1);
  });

  test('a file is planned first', async () => {
    const run = await begin({ type: 'optimizePrompt', args: [{ config: 'prompts.toml', yes: true }] });
    await resultOf(run);
    assert.equal(run.inputs('planPromptSearch')[0]!.config, 'prompts.toml');
    assert.deepEqual(run.order('planPromptSearch', 'openPromptSearch'), ['planPromptSearch', 'openPromptSearch']);
  });

  test('a sitting whose worker went away is held again from the same state', async () => {
    const run = await searching({
      searchPrompts: ({ state }, { nth }) => {
        if (nth === 2) throw new Error('the worker went away');
        return {
          answers: [next(state).map((request) => answerTo(request))],
          adopted: 0,
          failed: 0,
          firstFailure: null,
          seconds: 0,
        };
      },
    });
    await resultOf(run);
    const [, second, third] = run.inputs('searchPrompts');
    assert.deepEqual(third!.state, second!.state);
  });
});
