/** A search's activities in a folder of their own, against models that are a few lines each. */
import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import { createSearchPrompts } from '../../activities/prompt-search/search-prompts.ts';
import { createOpenPromptSearch } from '../../activities/prompt-search/open-search.ts';
import { createClosePromptSearch } from '../../activities/prompt-search/write-results.ts';
import { RatchetError } from '../../core/errors.ts';
import type {
  PromptSearchHandle,
  PromptSearchInput,
  PromptSearchResult,
  SearchAttempt,
} from '../../core/gepa/prompt-search.ts';
import { result, settle, startSearch } from '../../core/gepa/search.ts';
import type { SearchState } from '../../core/gepa/search-state.ts';
import type { EndpointRequest } from '../../backends/inference/endpoint.ts';
import type { ChatSample } from '../../backends/inference/index.ts';
import { resolveStoreUri } from '../../backends/store/index.ts';
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

async function openSearch(t: TestContext, over: Partial<PromptSearchInput> = {}): Promise<PromptSearchHandle> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-gepa-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const server = { model: 'm', baseUrl: 'http://127.0.0.1:9/v1', apiKeyVar: null, headers: {} };
  const input: PromptSearchInput = {
    environments: [{ id: 'reverse-text', name: 'reverse-text', args: {} }],
    model: { kind: 'endpoint', model: 'm', servers: [server], sampling: {} },
    reflection: { model: 'm', servers: [server], fields: {} },
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
    results: { store: resolveStoreUri(folder, folder), name: 'abcd1234', prefix: '' },
    savesResults: true,
    isSmallBudgetMeant: true,
    ...over,
  };
  const open = createOpenPromptSearch({ codeVersion: 'test' });
  return (await new MockActivityEnvironment().run(open, { input })) as PromptSearchHandle;
}

async function search(
  handle: PromptSearchHandle,
  { dependencies }: ReturnType<typeof models>,
): Promise<{ state: SearchState; attempts: SearchAttempt[] }> {
  let state = startSearch(handle.settings, handle.start);
  const attempts: SearchAttempt[] = [];
  while (!result(state).isFinished) {
    const sit = createSearchPrompts(dependencies);
    const attempt = (await new MockActivityEnvironment().run(sit, { handle, state, begunAt: 0 })) as SearchAttempt;
    for (const batch of attempt.answers) state = settle(state, batch);
    attempts.push(attempt);
  }
  return { state, attempts };
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

test('an attempt that is held again asks nobody for what is in the store', async (t) => {
  const handle = await openSearch(t);
  const first = models();
  const { state } = await search(handle, first);
  const again = models();
  const { state: same, attempts } = await search(handle, again);
  assert.equal(again.asked.length, 0);
  assert.deepEqual(result(same), result(state));
  assert.equal(
    attempts.reduce((sum, { adopted }) => sum + adopted, 0),
    first.asked.length,
  );
});

test('a rollout that infrastructure took is no 0: it is asked for again, counted, and said', async (t) => {
  const both = models({ fails: (asked) => asked === 2 });
  const { state, attempts } = await search(await openSearch(t), both);
  const tasks = both.asked.filter(({ messages }) => !messages[0]!.content.includes('# Example 1')).length;
  assert.equal(result(state).calls, tasks, 'each try is a call');
  assert.ok(result(state).candidates[0]!.scores.every((score) => score === 0));
  assert.equal(attempts[0]!.failed, 1);
  assert.match(attempts[0]!.firstFailure!, /the line went dead/);
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
  await assert.rejects(search(handle, refusing), { code: 'InferenceRejected', message: /there is no model m/ });
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
