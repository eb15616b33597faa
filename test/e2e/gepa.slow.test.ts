import assert from 'node:assert/strict';
import { readFile, realpath } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { WorkflowUpdateFailedError } from '@temporalio/client';
import { MockActivityEnvironment } from '@temporalio/testing';
import { createOpenPromptSearch } from '../../activities/prompt-search/open-search.ts';
import type { optimizePrompt } from '../../workflows/optimize-prompt.ts';
import { type GepaServer, type GepaStats, startGepaServer } from '../../bench/gepa-server.ts';
import { inputOf, startSearchOf } from '../../bench/gepa-workflow.ts';
import { searchInWorld, withExamples } from '../../bench/gepa-loop.ts';
import { makeWorld } from '../../bench/gepa-world.ts';
import { drawExamples } from '../../core/gepa/examples.ts';
import type {
  PromptSearchEvent,
  PromptSearchHandle,
  PromptSearchResult,
  PromptSearchStatus,
} from '../../core/gepa/prompt-search.ts';
import { startSearch } from '../../core/gepa/search.ts';
import { defaultSettings } from '../../core/gepa/settings.ts';
import { memoKeys } from '../../core/names.ts';
import { answersIn } from './gepa-answers.ts';
import { openSmallProject, type SmallProject } from './small-run.ts';
import { until } from '../eventually.ts';

const sizes = { maxCalls: 150, numTrain: 30, numVal: 20, isClassic: false };
const seed = 4;
const latencyMs = 40;

let project: SmallProject;
before(async () => {
  project = await openSmallProject({});
});
after(() => project?.close());

interface Searched {
  readonly result: PromptSearchResult;
  readonly stats: GepaStats;
}

let undisturbed: Searched;

test('a search finds through the workflow what the plain loop finds, and makes exactly the calls that it counts', async () => {
  undisturbed = await search('undisturbed', async () => undefined);
  const { result, stats } = undisturbed;
  const world = makeWorld(seed, { components: 1, train: sizes.numTrain, val: sizes.numVal, test: 0 });
  const drawn = drawExamples([{ dataset: sizes.numTrain, evalDataset: sizes.numVal }], {
    seed,
    train: sizes.numTrain,
    val: sizes.numVal,
    test: 0,
  });
  const settings = defaultSettings({
    seed,
    maxCalls: sizes.maxCalls,
    minibatchSize: 3,
    perfectScore: null,
    trainSize: sizes.numTrain,
    valSize: sizes.numVal,
  });
  const plain = searchInWorld(withExamples(world, drawn), settings).result;
  assert.deepEqual(
    [result.best, result.bestScore, result.candidates, result.calls, result.reflections, result.stopReason],
    [plain.best, plain.score, plain.candidates.length, plain.calls, plain.reflections, plain.stopReason],
  );
  assert.equal(await readFile(path.join(result.folder, 'best_prompt.txt'), 'utf8'), plain.texts['system_prompt']);
  assert.ok(result.calls <= sizes.maxCalls && result.isImproved, JSON.stringify(result));
  assert.equal(stats.task, result.calls, 'each call at the server is counted');
  assert.equal(stats.reflect, result.reflections);
});

test("a search's files are verifiers' own, and the newest are directly in outputs/gepa", async () => {
  const { result } = undisturbed;
  const read = (name: string) => readFile(path.join(result.folder, name), 'utf8');
  const rows = (await read('results.jsonl'))
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as { reward: number; info: Record<string, unknown> });
  assert.equal(rows.length, result.candidates);
  assert.equal(rows[0]!.info['schema_version'], 'verifiers.gepa.v1');
  assert.equal(rows.find(({ info }) => info['is_best'])!.info['candidate_idx'], result.best);
  assert.equal(rows[result.best]!.info['system_prompt'], await read('system_prompt.txt'));
  assert.equal((await read('pareto_frontier.jsonl')).trim().split('\n').length, sizes.numVal);
  const metadata = JSON.parse(await read('metadata.json')) as Record<string, unknown>;
  assert.deepEqual([metadata['best_idx'], metadata['total_metric_calls']], [result.best, result.calls]);
  const base = path.join(project.folder, 'outputs/gepa');
  assert.equal(
    await realpath(path.join(base, 'best_prompt.txt')),
    await realpath(path.join(result.folder, 'best_prompt.txt')),
  );
});

test('a search whose rollout worker and orchestrator are killed twice each finds the same, and asks again only for what was in flight', async () => {
  const killed = await search('killed', async (server, folder) => {
    for (const [request, name] of [
      [40, 'rollout worker'],
      [70, 'orchestrator worker'],
      [100, 'rollout worker'],
      [130, 'orchestrator worker'],
    ] as const) {
      server.holdFrom(request);
      await untilOnlyHeld(server, folder);
      const pid = project.stack.pids()[name]!;
      process.kill(pid, 'SIGKILL');
      await until(`another ${name}`, () => project.stack.pids()[name] !== pid);
      server.goOn();
    }
  });
  const { folder: _, place: __, seconds: ___, bestPrompt, ...same } = killed.result;
  const { folder: ____, place: _____, seconds: ______, bestPrompt: expectedPrompt, ...expected } = undisturbed.result;
  assert.deepEqual({ ...same, id: '' }, { ...expected, id: '' });
  assert.equal(bestPrompt!.sha256, expectedPrompt!.sha256);
  const distinct = ({ distinct_task, distinct_reflect }: GepaStats) => [distinct_task, distinct_reflect];
  assert.deepEqual(distinct(killed.stats), distinct(undisturbed.stats), 'nothing else was asked');
  const calls = ({ task, reflect }: GepaStats) => task + reflect;
  const inFlight = killed.stats.cut_off;
  assert.ok(inFlight > 0);
  assert.equal(calls(killed.stats), calls(undisturbed.stats) + inFlight, 'what had been answered was not asked again');
  assert.ok((project.stack.restarts()['rollout worker'] ?? 0) >= 2, project.log.join(' | '));
});

test('the same search again in the same folder asks for nothing', async () => {
  const before = undisturbed;
  const { result, stats } = await search('undisturbed', async () => undefined, true);
  assert.deepEqual(result, before.result);
  assert.deepEqual([stats.task, stats.reflect], [0, 0]);
});

test('a search that continues as new continues where it was', async () => {
  const input = begunWith.get('undisturbed')!;
  const open = createOpenPromptSearch({ codeVersion: 'test', countRolloutWorkers: () => Promise.resolve(1) });
  const handle = (await new MockActivityEnvironment().run(open, { input })) as PromptSearchHandle;
  const control = { events: [], sequence: 7, givenUp: 0, failed: 0, firstFailure: null };
  const carried = {
    handle,
    state: startSearch(handle.settings, handle.start),
    control,
    startedAt: Date.now(),
    pace: null,
  };
  const started = await project.client.workflow.start<typeof optimizePrompt>('optimizePrompt', {
    workflowId: 'gepa.carried',
    taskQueue: 'ratchet',
    memo: { [memoKeys.takenOverFrom]: 'x' }, // without it no client may begin one with such a state
    args: [carried],
  });
  assert.deepEqual(await started.result(), undisturbed.result);
  const events = await started.query<readonly PromptSearchEvent[], [number]>('events', 7);
  assert.equal(events[0]!.sequence, 8);
  assert.equal(events.at(-1)!.kind, 'finished');
});

test('slow rollouts of a search are spread over two workers, and one that is killed costs only what it had in flight', async (t) => {
  const small = { maxCalls: 60, numTrain: 12, numVal: 8, isClassic: false };
  const quick = await startGepaServer({ latencyMs: 5 });
  const slow = await startGepaServer({ latencyMs: 2_100 });
  const two = await openSmallProject({}, { rollout: 2 });
  try {
    const folder = path.join(two.folder, 'outputs/gepa/gepa-world--sim');
    const begun = (server: GepaServer, id: string) =>
      startSearchOf(two.client, two.folder, inputOf({ seed, ...small }, { server, folder, id }));
    const expected = await (await begun(quick, 'quick')).result();
    const handle = await begun(slow, 'slow');
    await until('20 task calls', async () => (await slow.stats()).task >= 20);
    const { inPlay } = await handle.query<PromptSearchStatus>('status');
    assert.ok(inPlay!.rollouts > 0 && inPlay!.leases > 0, JSON.stringify(inPlay));
    process.kill(two.stack.pids()['rollout worker 2']!, 'SIGKILL');
    const found = await handle.result();
    const outcome = ({
      best,
      bestScore,
      bestPrompt,
      calls,
      candidates,
      iterations,
      stopReason,
    }: PromptSearchResult) => {
      return { best, bestScore, prompt: bestPrompt!.sha256, calls, candidates, iterations, stopReason };
    };
    assert.deepEqual(outcome(found), outcome(expected));
    const { task, reflect, distinct_task, cut_off } = await slow.stats();
    const answered = found.calls + found.reflections;
    assert.equal(task + reflect, answered + cut_off, 'what had been answered was not asked again');
    assert.ok(cut_off < small.maxCalls / 4 && distinct_task <= found.calls, JSON.stringify({ task, cut_off }));
    // The worker that took the place of the killed one has an identity of its own.
    const { shares, leases, events } = await leasesOf(handle);
    t.diagnostic(`${events} events, ${leases} leases, ended by ${[...shares.values()].join(', ')}`);
    assert.ok(shares.size >= 2, 'whoever has room takes the next one');
    assert.ok(events <= 4 * found.calls, `${events} events of ${found.calls} rollouts`);
  } finally {
    await Promise.all([quick.close(), slow.close()]);
    await two.close();
  }
});

/** How many leases there were in a search's history, and how many each worker ended, by its identity. */
async function leasesOf(handle: Awaited<ReturnType<typeof startSearchOf>>) {
  const events = (await handle.fetchHistory()).events!;
  const leased = new Set(
    events.flatMap(({ eventId, activityTaskScheduledEventAttributes: scheduled }) =>
      scheduled?.activityType?.name === 'answerSearch' ? [Number(eventId)] : [],
    ),
  );
  const shares = new Map<string, number>();
  for (const { activityTaskCompletedEventAttributes: ended } of events) {
    if (!ended || !leased.has(Number(ended.scheduledEventId))) continue;
    const identity = ended.identity ?? '';
    shares.set(identity, (shares.get(identity) ?? 0) + 1);
  }
  return { shares, leases: leased.size, events: events.length };
}

test('a search is given more calls and stopped while it runs: the best so far is validated', async () => {
  const server = await startGepaServer({ latencyMs });
  try {
    const folder = path.join(project.folder, 'outputs/gepa/gepa-world--sim');
    const input = inputOf({ seed, ...sizes, maxCalls: 5_000 }, { server, folder, id: 'stopped' });
    const handle = await startSearchOf(project.client, project.folder, input);
    await until('40 task calls', async () => (await server.stats()).task >= 40);
    await assert.rejects(handle.executeUpdate('raise-budget', { args: [10] }), WorkflowUpdateFailedError);
    assert.match(await handle.executeUpdate('raise-budget', { args: [6_000] }), /6000 calls/);
    await handle.executeUpdate('stop');
    const { stopReason, calls, maxCalls, best, isImproved } = await handle.result();
    assert.deepEqual([stopReason, calls < 2_000, isImproved], ['asked', true, best > 0], String(maxCalls));
    assert.equal((await server.stats()).task, calls);
  } finally {
    await server.close();
  }
});

/** Waits until all of the server's answers are stored, and it holds some requests. */
async function untilOnlyHeld(server: GepaServer, folder: string): Promise<void> {
  for (;;) {
    const { task, reflect, held, inflight, cut_off: lost } = await server.stats();
    const answered = task + reflect - inflight - lost;
    if (held > 0 && held === inflight && (await answersIn(folder)) === answered) return;
    await delay(20);
  }
}

async function search(
  id: string,
  during: (server: GepaServer, folder: string) => Promise<void>,
  isRepeated = false,
): Promise<Searched> {
  const server = await startGepaServer({ latencyMs });
  try {
    const folder = path.join(project.folder, 'outputs/gepa/gepa-world--sim');
    const input = inputOf({ seed, ...sizes }, { server, folder, id });
    // A server at another address: the folder's search began with the first.
    const known = isRepeated ? begunWith.get(id)! : input;
    begunWith.set(id, known);
    const handle = await startSearchOf(project.client, project.folder, known);
    await during(server, path.join(folder, id));
    return { result: await handle.result(), stats: await server.stats() };
  } finally {
    await server.close();
  }
}

const begunWith = new Map<string, ReturnType<typeof inputOf>>();
