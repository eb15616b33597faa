/** A search for a better prompt: attempt after attempt, stopped, given more calls, continued as new. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { defaultPayloadConverter } from '@temporalio/common';
import type {
  PromptSearchEvent,
  PromptSearchInput,
  PromptSearchResult,
  PromptSearchStatus,
} from '../../core/gepa/prompt-search.ts';
import { type PromptSlice, slowPace } from '../../core/gepa/leases.ts';
import { next } from '../../core/gepa/search.ts';
import { defaultSettings } from '../../core/gepa/settings.ts';
import { memoKeys } from '../../core/names.ts';
import { until } from '../eventually.ts';
import { answeredLease, leasedAs, leasing, searchOf, slicesLeased } from './fake-evaluation.ts';
import { type Fakes, Gate } from './fake-run.ts';
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
/** Events of the newest execution. */
const toldBy = async ({ client, name }: BegunRun): Promise<string[]> => {
  const events = await client.workflow.getHandle(name).query<PromptSearchEvent[], [number]>('events', 0);
  return events.map(({ kind }) => kind);
};

/** Holds an attempt until it is released. */
function holding(gate: Gate, nthHeld = 2): Fakes {
  return leasing({
    search: async (_, { nth, usual }) => {
      if (nth === nthHeld) await gate.pass();
      return usual();
    },
  });
}

describe('a search for a prompt', { concurrency: 8 }, () => {
  test('continues lease after lease until its budget is used, never beyond it, and is closed with the best', async () => {
    const run = await searching();
    const { best, bestScore, calls, maxCalls, stopReason, comparison } = await resultOf(run);
    assert.ok(best > 0 && bestScore! > 0 && calls <= maxCalls);
    assert.deepEqual([stopReason, comparison, maxCalls], ['budget', null, 40]);
    assert.ok(run.inputs('writePrompts').length >= 1, 'what was found is written meanwhile');
    assert.equal((await statusOf(run)).doing, 'finished');
  });

  test('each lease of the whole search continues from the answers of the one before', async () => {
    const run = await searching();
    await resultOf(run);
    const answered = leasedAs(run, 'search').map(({ state }) =>
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
    const run = await searching({
      answerSearch: (lease) => {
        assert.equal(lease.work.kind, 'slices', 'the start is never left to one worker');
        const { played, ...answered } = answeredLease(lease);
        const lost = played.map((one) => ({ ...one, scores: one.scores.map(() => null) }));
        return { ...answered, played: lost, failed: played[0]!.scores.length, firstFailure: 'connection refused' };
      },
    });
    assert.match(
      await failureOf(run.handle.result()),
      /^PromptNotEvaluated: The first prompt of reverse-text could not be scored on all validation examples: \d+ rollouts failed through infrastructure\. connection refused$/,
    );
    assert.equal(run.order('writePrompts', 'closePromptSearch').at(-1), 'writePrompts');
    assert.equal((await toldBy(run)).filter((kind) => kind === 'warning').length, 1, 'the first failure is told once');
  });

  test('the first and the best prompt are compared on examples that the search has not seen, where that is asked for', async () => {
    const run = await searching({}, { numTest: 2 });
    const { comparison, best } = await resultOf(run);
    assert.ok(best > 0);
    assert.deepEqual(comparison, { examples: 2, before: 0, after: Math.min(1, best / 4) });
    const compared = leasedAs(run, 'slices').filter(({ slices }) => slices[0]!.id.startsWith('test.'));
    assert.equal(compared.length, 1, 'rollouts are known to be quick: one lease plays all');
    assert.deepEqual(
      compared[0]!.slices.flatMap(({ id, examples }) => examples.map((one) => `${id}#${one}`)),
      ['test.start', `test.text-${best}`].flatMap((id) => [0, 1].map((one) => `${id}#${one}`)),
    );
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

  test('a search that had continued as new is restarted by an upgrade with the state it carried', async () => {
    const run = await searching({}, { maxCalls: 150 }, shortHistoryQueue);
    const { best, calls } = await resultOf(run);
    const { events } = await run.client.workflow.getHandle(run.name).fetchHistory();
    const [payload] = events?.[0]?.workflowExecutionStartedEventAttributes?.input?.payloads ?? [];
    const carried = defaultPayloadConverter.fromPayload<object>(payload!);
    assert.ok('state' in carried);
    const memo = { [memoKeys.takenOverFrom]: 'x' };
    const again = await begin({ type: 'optimizePrompt', fake: run.fake, args: [carried], memo });
    const found = await resultOf(again);
    assert.deepEqual([found.best, found.calls], [best, calls]);
  });

  test('a file is planned first', async () => {
    const run = await begin({ type: 'optimizePrompt', args: [{ config: 'prompts.toml', yes: true }] });
    await resultOf(run);
    assert.equal(run.inputs('planPromptSearch')[0]!.config, 'prompts.toml');
    assert.deepEqual(run.order('planPromptSearch', 'openPromptSearch'), ['planPromptSearch', 'openPromptSearch']);
  });

  test('a lease of the whole search whose worker went away is held again from the same state', async () => {
    const run = await searching(
      leasing({
        search: (_, { nth, usual }) => {
          if (nth === 2) throw new Error('the worker went away');
          return usual();
        },
      }),
    );
    await resultOf(run);
    const [, second, third] = leasedAs(run, 'search');
    assert.deepEqual(third!.state, second!.state);
  });

  test('a lease of the whole search that is told to end and loses its worker is asked for again, to its end', async () => {
    const gate = new Gate();
    const run = await searching(
      leasing({
        search: async (_, { nth, usual }) => {
          if (nth !== 3) return usual();
          await gate.pass();
          throw new Error('the worker went away');
        },
      }),
    );
    await gate.reached;
    await run.tell('stop');
    gate.open();
    const { stopReason } = await resultOf(run);
    assert.equal(stopReason, 'asked');
  });

  test('slow rollouts are leased, and the search finds what one worker finds', async () => {
    const [spread, whole] = await Promise.all([searching(slowly()), searching()]);
    const results = await Promise.all([resultOf(spread), resultOf(whole)]);
    const [one, other] = results.map((found) => ({ ...found, seconds: 0 }));
    assert.deepEqual(one, other);
    assert.equal(leasedAs(spread, 'search').length, 0);
    const leased = slicesLeased(spread).flatMap(({ id, from, examples }) =>
      examples.map((_, i) => `${id}#${from + i}`),
    );
    assert.equal(new Set(leased).size, leased.length, 'nothing was leased twice');
    assert.equal(leased.length, results[0].calls);
  });

  test('a search of slow rollouts has at most four events of history for each of them', async () => {
    let nth = 0;
    const run = await searching(
      slowly(() => delay(50 + 37 * (nth++ % 7))), // leases that end one after another
      { maxCalls: 120, numTrain: 20, numVal: 20 },
    );
    const { calls } = await resultOf(run);
    const { events } = await run.handle.fetchHistory();
    assert.ok(calls > 60 && events!.length <= 4 * calls, `${events!.length} events of ${calls} rollouts`);
  });

  test('a rollout that hangs holds up its own request alone', async () => {
    const gate = new Gate();
    const isHeld = ({ id, from }: PromptSlice): boolean => from === 0 && id.includes('.validation.');
    let held = '';
    const run = await searching({
      ...slowly(async (slice) => {
        if (held !== '' || !isHeld(slice)) return;
        held = slice.id;
        await gate.pass();
      }),
      openPromptSearch: async ({ input }, { usual }) => {
        const { seed, maxCalls, numTrain, numVal } = input;
        const sizes = { seed, maxCalls, trainSize: numTrain, valSize: numVal };
        return { ...(await usual()), settings: defaultSettings({ ...sizes, proposals: 1 }) };
      },
    });
    await gate.reached;
    const iteration = Number.parseInt(held, 10);
    const others = () => slicesLeased(run).map(({ id }) => id);
    await until('the other slices of its request', () => others().filter((id) => id === held).length === 2);
    await until('the next iteration', () => others().includes(`${iteration + 1}.child.0`));
    const { inPlay, waitingOn } = await statusOf(run);
    assert.ok(inPlay!.rollouts >= 1 && inPlay!.leases >= 1);
    assert.ok(waitingOn.includes(`2 validation rollouts of iteration ${iteration}`), waitingOn.join());
    gate.open();
    const { calls, maxCalls } = await resultOf(run);
    assert.ok(calls <= maxCalls);
  });

  test('no more rollouts are in play than it may have', async () => {
    const counted = { now: 0, most: 0 };
    const run = await searching(
      slowly(async ({ examples }) => {
        counted.now += examples.length;
        counted.most = Math.max(counted.most, counted.now);
        await delay(100);
        counted.now -= examples.length;
      }),
      { maxConcurrent: 2 },
    );
    await resultOf(run);
    assert.equal(counted.most, 2);
  });

  test('a server that refuses the first prompts ends it, with what the server said', async () => {
    const refused = { scores: [null], refused: 'there is no model m' };
    const run = await searching(leasing({ slices: (_, usual) => ({ ...usual(), played: [refused] }) }));
    assert.equal(await failureOf(run.handle.result()), 'InferenceRejected: there is no model m');
  });

  test('told to stop with leases in play it finishes what is under way and validates the best', async () => {
    const gate = new Gate();
    const run = await searching(slowly(async ({ id }) => (id.includes('.child.') ? gate.pass() : undefined)));
    await gate.reached;
    await run.tell('stop');
    gate.open();
    const { stopReason, iterations } = await resultOf(run);
    assert.deepEqual([stopReason, iterations], ['asked', 1]);
  });

  test('a long history of leases continues as new, and finds what one execution finds', async () => {
    const of = { maxCalls: 60 };
    const [short, whole] = await Promise.all([searching(slowly(), of, shortHistoryQueue), searching({}, of)]);
    const results = await Promise.all([resultOf(short), resultOf(whole)]);
    assert.ok((await timesContinued(short)) >= 1);
    const [one, other] = results.map(({ best, calls, candidates, bestScore }) => [best, calls, candidates, bestScore]);
    assert.deepEqual(one, other);
    assert.equal(leasedAs(short, 'search').length, 0, 'what is known of its rollouts is carried over');
  });

  test('rollouts that turn out slow while one worker has them are leased', async () => {
    const run = await searching(
      leasing({ search: (_, { nth, usual }) => (nth === 1 ? { ...usual(), answers: [], pace: slowPace } : usual()) }),
    );
    await resultOf(run);
    const kinds = run.inputs('answerSearch').map(({ work }) => work.kind);
    const first = kinds.indexOf('search');
    assert.deepEqual(kinds.slice(first, first + 2), ['search', 'slices']);
  });
});

/** Rollouts that report three seconds each; `during` is awaited while one is in flight. */
function slowly(during: (slice: PromptSlice) => Promise<void> = () => Promise.resolve()): Fakes {
  return {
    answerSearch: async (lease) => {
      if (lease.work.kind === 'slices') await Promise.all(lease.work.slices.map(during));
      return answeredLease(lease, 3);
    },
  };
}
