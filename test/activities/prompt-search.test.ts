/** A search's activities in a folder of their own, against models that are a few lines each. */
import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import { createAnswerSearch } from '../../activities/prompt-search/answer-search.ts';
import { createOpenPromptSearch } from '../../activities/prompt-search/open-search.ts';
import { createOpenTrial, recordTrial, type TrialInput } from '../../activities/prompt-search/record-trial.ts';
import { createClosePromptSearch } from '../../activities/prompt-search/write-results.ts';
import { RatchetError } from '../../core/errors.ts';
import type {
  OpenedTrial,
  PromptSearchHandle,
  PromptSearchInput,
  PromptSearchResult,
  PromptTrial,
} from '../../core/gepa/prompt-search.ts';
import {
  type AnsweredLease,
  answerOf,
  comparedOnTest,
  type LeasedWork,
  type PromptSlice,
  slicesOf,
  slowPace,
} from '../../core/gepa/leases.ts';
import { next, result, settle, startSearch } from '../../core/gepa/search.ts';
import type { SearchAnswer, SearchRequest, SearchState } from '../../core/gepa/search-state.ts';
import type { EndpointRequest } from '../../backends/inference/openai/endpoint.ts';
import type { ChatSample } from '../../backends/inference/index.ts';
import { unlimited } from '../../core/settings/budgets.ts';
import { BudgetLedger } from '../../runs/budgets/budget-ledger.ts';
import { resolveStoreUri } from '../../store/index.ts';
import { storeOf } from '../../runs/run-access.ts';
import { openTokenizer } from './runs.ts';

/** Rewards a word that is repeated backwards; the task model does so as soon as its prompt says "backwards". */
function models({ fails = () => false }: { fails?: (asked: number) => boolean } = {}) {
  const asked: EndpointRequest[] = [];
  const said = (text: string): ChatSample => ({
    text,
    finishReason: 'stop',
    promptTokenIds: null,
    tokenIds: null,
    logprobs: null,
    usage: null,
  });
  return {
    asked,
    dependencies: {
      inference: () => assert.fail('no version is searched for'),
      tokenizer: openTokenizer,
      endpoint: () => ({
        chat: async (request: EndpointRequest): Promise<ChatSample> => {
          asked.push(request);
          const [first] = request.messages;
          const isReflection = first!.role === 'user' && first!.content.includes('# Example 1');
          if (isReflection) return said('```\nWrite the word backwards.\n```');
          if (fails(asked.length)) throw new Error('the line went dead');
          const word = request.messages.at(-1)!.content;
          const knows = first!.role === 'system' && first!.content.includes('backwards');
          return said(knows ? Array.from(word).reverse().join('') : '');
        },
      }),
    },
  };
}

const server = { model: 'm', baseUrl: 'http://127.0.0.1:9/v1', apiKeyVar: null, headers: {} };
const apiModel = { kind: 'endpoint' as const, model: 'm', servers: [server], sampling: {} };
const reflecting = { model: 'm', servers: [server], fields: {} };

async function openSearch(t: TestContext, over: Partial<PromptSearchInput> = {}): Promise<PromptSearchHandle> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-gepa-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return opened({ store: resolveStoreUri(folder, folder), name: 'abcd1234', prefix: '' }, over);
}

/** The same search, begun again with other settings. */
function reopened({ place }: PromptSearchHandle, over: Partial<PromptSearchInput>): Promise<PromptSearchHandle> {
  return opened(place, over);
}

async function opened(
  results: PromptSearchInput['results'],
  over: Partial<PromptSearchInput>,
): Promise<PromptSearchHandle> {
  const input: PromptSearchInput = {
    environments: [{ id: 'reverse-text', name: 'reverse-text', args: {} }],
    model: apiModel,
    reflection: reflecting,
    maxCalls: 60,
    minibatchSize: 3,
    perfectScore: null,
    stateColumns: ['exact_match'],
    numTrain: 12,
    numVal: 10,
    numTest: 0,
    maxConcurrent: 8,
    seed: 0,
    isClassic: true,
    initialPrompt: null,
    results,
    savesResults: true,
    isSmallBudgetMeant: true,
    ...over,
  };
  const open = createOpenPromptSearch({ codeVersion: 'test', countRolloutWorkers: () => Promise.resolve(1) });
  return (await new MockActivityEnvironment().run(open, { input })) as PromptSearchHandle;
}

type Models = ReturnType<typeof models>;

async function answered(
  handle: PromptSearchHandle,
  work: LeasedWork,
  { dependencies }: Models,
  environment = new MockActivityEnvironment(),
): Promise<AnsweredLease> {
  return (await environment.run(createAnswerSearch(dependencies), { handle, work })) as AnsweredLease;
}

/** All of a search by one worker, whose rollouts are quick. */
async function search(
  handle: PromptSearchHandle,
  worker: Models,
): Promise<{ state: SearchState; leases: AnsweredLease[] }> {
  let state = startSearch(handle.settings, handle.start);
  const leases: AnsweredLease[] = [];
  while (!result(state).isFinished) {
    const work: LeasedWork = { kind: 'search', state, begunAt: 0, pace: { seconds: 0, beside: 1 } };
    const lease = await answered(handle, work, worker);
    for (const batch of lease.answers) state = settle(state, batch);
    leases.push(lease);
  }
  return { state, leases };
}

/** The same search, its leases dealt out to these workers. */
async function searchLeased(
  handle: PromptSearchHandle,
  workers: readonly Models[],
  from = startSearch(handle.settings, handle.start),
): Promise<SearchState> {
  let dealt = 0;
  const whoseTurn = () => workers[dealt++ % workers.length]!;
  const answer = async (request: SearchRequest): Promise<readonly SearchAnswer[]> => {
    if (request.kind === 'reflect') {
      return (await answered(handle, { kind: 'reflections', requests: [request] }, whoseTurn())).answers.flat();
    }
    const slices = slicesOf(request, { inFlightMax: Infinity });
    const leases = await Promise.all(slices.map((slice) => playedBy(handle, slice, whoseTurn())));
    return [
      answerOf(
        request,
        leases.flatMap(({ played }) => played),
      ),
    ];
  };
  let state = from;
  while (!result(state).isFinished) state = settle(state, (await Promise.all(next(state).map(answer))).flat());
  return state;
}

function playedBy(
  handle: PromptSearchHandle,
  slice: PromptSlice,
  worker: Models,
  environment = new MockActivityEnvironment(),
): Promise<AnsweredLease> {
  return answered(handle, { kind: 'slices', slices: [slice] }, worker, environment);
}

/** Rollouts requested from a model, by its prompt. */
function rolloutsOf({ asked }: ReturnType<typeof models>): EndpointRequest[] {
  return asked.filter(({ messages }) => !messages[0]!.content.includes('# Example 1'));
}

test('a better prompt is found, a reflection sees what verifiers shows it, and the environment gets the prompt as its system', async (t) => {
  const both = models();
  const handle = await openSearch(t);
  const { state } = await search(handle, both);
  const found = result(state);
  assert.deepEqual([found.score, found.calls <= 60], [1, true]);
  const reflection = both.asked.find(({ messages }) => messages[0]!.content.includes('# Example 1'))!;
  for (const name of ['query', 'completion', 'expected_answer', 'reward', 'exact_match'])
    assert.match(reflection.messages[0]!.content, new RegExp(`^## ${name}$`, 'm'));
  const close = createClosePromptSearch();
  const closing = { handle, result: found, comparison: null, seconds: 1, iterations: 1, givenUp: 0, failed: 0 };
  const closed = (await new MockActivityEnvironment().run(close, closing)) as PromptSearchResult;
  assert.deepEqual([closed.isImproved, closed.startScore], [true, 0]);
});

test('a lease that is held again asks nobody for what is in the store', async (t) => {
  const handle = await openSearch(t);
  const first = models();
  const { state } = await search(handle, first);
  const again = models();
  const { state: same, leases } = await search(handle, again);
  assert.equal(again.asked.length, 0);
  assert.deepEqual(result(same), result(state));
  assert.equal(
    leases.reduce((sum, { adopted }) => sum + adopted, 0),
    first.asked.length,
  );
});

test('a search stops where its budget is used up, reflections included, and goes on from there once it has more', async (t) => {
  const whole = models();
  const undisturbed = await search(await openSearch(t), whole);
  const sampling = { max_tokens: 8 };
  const prices = { model: { input: 1, output: 1 }, reflection: { input: 1, output: 1 } };
  const over = { model: { ...apiModel, sampling }, reflection: { ...reflecting, fields: { max_tokens: 100 } }, prices };
  const before = models();
  const limitedTo = (money: number) => ({ ...over, budget: { ...unlimited, money } });
  const handle = await openSearch(t, limitedTo(0.012));
  await assert.rejects(search(handle, before), (error: Error) => {
    assert.match(
      String(error),
      /BudgetReached: The search's budget of 0\.012 of money is used up: .* larger money of its budget/,
    );
    return true;
  });
  const ledger = new BudgetLedger(storeOf(handle.place), handle.place.prefix);
  const { used, held } = (await ledger.newest())!;
  assert.ok(used.money > 0.008e9 && used.money <= 0.012e9, `${used.money}`);
  assert.equal(held.money, 0);
  const after = models();
  const { state } = await search(await reopened(handle, limitedTo(5)), after);
  assert.deepEqual(result(state), result(undisturbed.state));
  assert.equal(before.asked.length + after.asked.length, whole.asked.length, 'nothing is asked for twice');
  assert.ok(whole.asked.length > rolloutsOf(whole).length, 'reflections are among them');
  assert.ok((await ledger.newest())!.used.money > 0.012e9, 'what the first start used stays used');
});

test('the comparison at the end counts in the budget of the search, and stops where that is used up', async (t) => {
  const sampling = { max_tokens: 8 };
  const prices = { model: { input: 1, output: 1 }, reflection: { input: 1, output: 1 } };
  const over = { numTest: 9, model: { ...apiModel, sampling }, prices };
  const limitedTo = (money: number) => ({ ...over, budget: { ...unlimited, money } });
  const handle = await openSearch(t, limitedTo(5));
  const examples = Array.from({ length: handle.numTest }, (_, position) => position);
  const compared = comparedOnTest(handle.start, handle.start);
  const slices = compared.flatMap((one) =>
    slicesOf({ ...one, set: 'test', keepsTraces: false, examples }, { inFlightMax: Infinity }),
  );
  const few = await reopened(handle, limitedTo(0.0005));
  await assert.rejects(answered(few, { kind: 'slices', slices }, models()), /BudgetReached: The search's budget/);
  const ledger = new BudgetLedger(storeOf(handle.place), handle.place.prefix);
  const before = (await ledger.newest())!.used.money;
  const { played } = await answered(await reopened(handle, limitedTo(5)), { kind: 'slices', slices }, models());
  assert.equal(played.length, slices.length);
  const { used, held } = (await ledger.newest())!;
  assert.ok(before > 0 && used.money > before, `${before} ${used.money}`);
  assert.equal(held.money, 0);
});

test('a rollout that infrastructure took is no 0: it is asked for again, counted, and said', async (t) => {
  const both = models({ fails: (asked) => asked === 2 });
  const { state, leases } = await search(await openSearch(t), both);
  const tasks = both.asked.filter(({ messages }) => !messages[0]!.content.includes('# Example 1')).length;
  assert.equal(result(state).calls, tasks, 'each try is a call');
  assert.ok(result(state).candidates[0]!.scores.every((score) => score === 0));
  assert.equal(leases[0]!.failed, 1);
  assert.match(leases[0]!.firstFailure!, /the line went dead/);
});

test('a first prompt that cannot be scored ends the search, within its budget', async (t) => {
  const both = models({ fails: () => true });
  const { state } = await search(await openSearch(t), both);
  assert.equal(result(state).stopReason, 'start_not_evaluated');
  assert.ok(result(state).calls <= 60);
});

test('a server that refuses the very first prompts is no weather', async (t) => {
  const handle = await openSearch(t);
  const refusing = models();
  refusing.dependencies.endpoint = () => ({
    chat: async () => {
      throw new RatchetError('InferenceRejected', 'there is no model m');
    },
  });
  const [request] = next(startSearch(handle.settings, handle.start));
  assert.ok(request?.kind === 'evaluate');
  const { played } = await playedBy(handle, { ...request, from: 0 }, refusing);
  assert.match(played[0]!.refused!, /refuses every request: .*there is no model m/);
});

test('a folder with another search is refused, with what differs', async (t) => {
  const handle = await openSearch(t);
  await assert.rejects(openSearch(t, { results: handle.place, seed: 1 }), {
    code: 'ConfigInvalid',
    message: /seed differ/,
  });
});

test('a budget that tries next to nothing is refused with the arithmetic', async (t) => {
  await assert.rejects(openSearch(t, { isSmallBudgetMeant: false, maxCalls: 40 }), {
    message: /10 .* \+ 3 × \(3 .* \+ 10 .*\) = 49/,
  });
});

test('descriptions of tools and the prompt of each environment are written anew, and rollouts are played with them', async (t) => {
  const toldOf = (request: EndpointRequest): string => JSON.stringify(request.tools ?? []);
  const both = models();
  const asked: EndpointRequest[] = [];
  const dependencies = {
    ...both.dependencies,
    endpoint: () => ({
      close: () => undefined,
      chat: async (request: EndpointRequest) => {
        asked.push(request);
        const [first] = request.messages;
        const isOfTool = first!.content.includes('may call a tool, `search_pages`');
        const said = await both.dependencies.endpoint().chat(request);
        return { ...said, text: isOfTool ? '```\nUse this first.\n```' : said.text };
      },
    }),
  };
  const handle = await openSearch(t, {
    environments: [
      { id: 'wiki-search', name: 'wiki-search', args: {} },
      { id: 'reverse-text', name: 'reverse-text', args: {} },
    ],
    components: ['system_prompts', 'tool_descriptions'],
    stateColumns: [],
    maxCalls: 120,
    isClassic: false,
    merges: true,
  });
  const parts = Object.keys(handle.start);
  assert.deepEqual(parts.slice(0, 2), ['system_prompt:wiki-search', 'system_prompt:reverse-text']);
  assert.ok(parts.includes('tool:wiki-search/search_pages'), parts.join());
  assert.notEqual(handle.settings.merge, null);
  const { state } = await search(handle, { ...both, dependencies });
  const prompts = asked.filter(({ messages }) => messages[0]!.content.includes('# Example 1'));
  assert.ok(prompts.some(({ messages }) => messages[0]!.content.includes('may call a tool, `search_pages`')));
  const described = asked.filter((request) => toldOf(request).includes('Use this first.'));
  assert.ok(described.length > 0, 'the model is told the new description');
  assert.ok(described.every((request) => toldOf(request).includes('"search_pages"')));
  const backwards = asked.filter(
    ({ messages: [first] }) => first!.role === 'system' && /backwards/.test(first!.content),
  );
  assert.ok(backwards.length > 0);
  const found = result(state);
  const closing = { handle, result: found, comparison: null, seconds: 1, iterations: 1, givenUp: 0, failed: 0 };
  const { folder } = (await new MockActivityEnvironment().run(
    createClosePromptSearch(),
    closing,
  )) as PromptSearchResult;
  const best = JSON.parse(await readFile(path.join(folder, 'best_components.json'), 'utf8')) as Record<string, string>;
  assert.deepEqual(Object.keys(best), parts);
  assert.match(await readFile(path.join(folder, 'best_prompt.txt'), 'utf8'), /^### system_prompt:wiki-search\n/);
});

test('an environment without tools has no descriptions of them to write anew', async (t) => {
  await assert.rejects(openSearch(t, { components: ['tool_descriptions'] }), /reverse-text says of none/);
});

test('workers share the rollouts of a search, and it comes out as with one', async (t) => {
  const alone = await search(await openSearch(t), models());
  const workers = [models(), models(), models()];
  const state = await searchLeased(await openSearch(t), workers);
  assert.deepEqual(result(state), result(alone.state));
  const shares = workers.map((worker) => rolloutsOf(worker).length);
  assert.equal(
    shares.reduce((sum, share) => sum + share, 0),
    result(state).calls,
  );
  assert.ok(Math.min(...shares) >= result(state).calls / 6, `shares ${shares.join()}`);
});

test('what a worker had stored of a lease when it vanished is not played again, and counts once', async (t) => {
  const undisturbed = await searchLeased(await openSearch(t), [models()]);
  const handle = await openSearch(t, { maxConcurrent: 1 });
  const [first, second] = [models(), models()];
  const { chat } = first.dependencies.endpoint();
  const worker = new MockActivityEnvironment();
  const stored = 3;
  first.dependencies.endpoint = () => ({
    chat: async (request) => {
      if (rolloutsOf(first).length < stored) return chat(request);
      worker.cancel();
      throw new Error('the worker is gone');
    },
  });
  const start = startSearch(handle.settings, handle.start);
  const [request] = next(start);
  assert.ok(request?.kind === 'evaluate');
  const slice = { ...request, from: 0 };
  await assert.rejects(playedBy(handle, slice, first, worker));
  const again = await playedBy(handle, slice, second);
  assert.deepEqual([again.adopted, rolloutsOf(second).length], [stored, request.examples.length - stored]);
  const state = await searchLeased(handle, [second]);
  assert.deepEqual(result(state), result(undisturbed));
  assert.equal(stored + rolloutsOf(second).length, result(state).calls);
});

test('a trial of a winner is shared among workers, one of which vanishes: it comes out as with one, and nothing is asked again', async (t) => {
  const file = { key: 'w', sha256: '0', bytes: 0 };
  const policy = { step: 2, digest: 'd', weights: 'w/', file, sums: file };
  const prompt = 'Write the word backwards.';
  const searched = async () => {
    const handle = await openSearch(t, { numTest: 9, maxConcurrent: 1 });
    await search(handle, models());
    const { place } = handle;
    return { place, policy, prompt: await storeOf(place).put('found.txt', Buffer.from(prompt)) };
  };
  const compare = (asked: TrialInput): Promise<PromptTrial> => new MockActivityEnvironment().run(recordTrial, asked);
  const open = async (asked: TrialInput): Promise<OpenedTrial> => {
    const opening = createOpenTrial({ countRolloutWorkers: () => Promise.resolve(2) });
    return (await new MockActivityEnvironment().run(opening, asked)) as OpenedTrial;
  };
  const alone = models();
  const undisturbed = await searched();
  const whole = await open(undisturbed);
  const all = whole.asked.flatMap((one) => slicesOf(one, { inFlightMax: Infinity }));
  await answered(whole.handle, { kind: 'slices', slices: all }, alone);
  const expected = await compare(undisturbed);
  assert.deepEqual([expected.examples, expected.before, expected.after, alone.asked.length], [9, 0, 1, 18]);

  const asked = await searched();
  const trial = await open(asked);
  const slices = trial.asked.flatMap((one) => slicesOf(one, { inFlightMax: Infinity }));
  const [vanishing, other] = [models(), models()];
  const { chat } = vanishing.dependencies.endpoint();
  const worker = new MockActivityEnvironment();
  vanishing.dependencies.endpoint = () => ({
    chat: async (request) => {
      if (vanishing.asked.length < 2) return chat(request);
      worker.cancel();
      throw new Error('the worker is gone');
    },
  });
  const [first, ...rest] = slices;
  const long = { ...first!, examples: trial.asked[0]!.examples };
  await assert.rejects(playedBy(trial.handle, long, vanishing, worker));
  await assert.rejects(compare(asked), { code: 'CheckpointDamaged' }, 'what was not played is not compared');
  for (const slice of [long, ...rest.filter(({ id }) => id !== long.id)]) await playedBy(trial.handle, slice, other);
  assert.deepEqual(await compare(asked), expected);
  assert.equal(vanishing.asked.length + other.asked.length, 18);
});

test('a lease of the whole search whose rollouts turn out slow ends, and what it had in flight is not counted', async (t) => {
  const handle = await openSearch(t);
  const both = models();
  const { chat } = both.dependencies.endpoint();
  let hung = 0;
  both.dependencies.endpoint = () => ({
    chat: async (request) => {
      if (both.asked.length === 12 && hung++ === 0) {
        await new Promise((_, reject) => request.signal!.addEventListener('abort', () => reject(new Error('cut off'))));
      }
      return chat(request);
    },
  });
  const state = startSearch(handle.settings, handle.start);
  const pace = { seconds: 0.01, beside: 1 };
  const attempt = await answered(handle, { kind: 'search', state, begunAt: 0, pace }, both);
  assert.deepEqual(attempt.pace, slowPace);
  const before = attempt.answers.reduce(settle, state);
  assert.equal(result(before).calls, 10, 'the start is answered, the minibatch is not');
  const after = await searchLeased(handle, [both], before);
  assert.deepEqual(result(after), result(await searchLeased(await openSearch(t), [models()])));
  assert.equal(rolloutsOf(both).length, result(after).calls, 'what was finished of the minibatch is not played again');
});
