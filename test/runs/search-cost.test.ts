import assert from 'node:assert/strict';
import { test } from 'node:test';
import { encodeJson } from '../../store/objects.ts';
import type { StoredPromptSearch } from '../../core/gepa/prompt-search.ts';
import { AnswerJournal } from '../../runs/rollouts/answer-journal.ts';
import { layout } from '../../runs/layout.ts';
import { readMetrics } from '../../runs/metrics/metrics.ts';
import { recordSearchCost, trialRequest } from '../../runs/searches/search-cost.ts';
import { searchKeys } from '../../runs/searches/search-store.ts';
import { makeRun } from '../activities/runs.ts';

test('what a search took is a row of its run, and what its trial took another, each once', async (t) => {
  const { run, store } = await makeRun(t, {
    'cost.prompt': '1',
    'cost.completion': '2',
    'cost.reflection_prompt': '3',
  });
  const place = { store: run.store, name: run.name, prefix: layout.promptBranch('main', 'words', run.name, [4]) };
  const stored = {
    input: { isBranch: true, model: { kind: 'version', model: run.name, run }, environments: [{ name: 'words' }] },
    startTexts: {},
    openedAt: '2026-11-26T10:00:00Z',
  } as unknown as StoredPromptSearch;
  await store.put(searchKeys.search(place), encodeJson(stored));
  const journal = await AnswerJournal.open(place, stored);
  const scored = { index: 0, example: [0, 'dataset', 1] as const, outcome: 'ok' as const, reward: 1, metrics: {} };
  const usage = (promptTokens: number, completionTokens: number) => ({ promptTokens, completionTokens });
  await journal.add({ ...scored, request: '1', usage: usage(100, 10) });
  await journal.add({ ...scored, request: '1', usage: usage(999, 999) }); // the first answer counts
  await journal.add({ ...scored, request: '2' }); // by a Ratchet that did not count
  await journal.add({ request: '3', answer: 'x', text: null, usage: usage(1_000, 50) });
  await journal.add({ request: '4', answer: 'x', text: null, usage: null });
  await journal.add({ ...scored, request: `${trialRequest}v5.current`, usage: usage(7, 1) });
  for (let twice = 0; twice < 2; twice++) {
    await recordSearchCost(place, 'search');
    await recordSearchCost(place, 'trial');
  }
  assert.deepEqual(await readMetrics(store), [
    {
      step: 4,
      lineage: 'main',
      'search/words/cost/prompt_tokens': 100,
      'search/words/cost/completion_tokens': 10,
      'search/words/cost/reflection_prompt_tokens': 1_000,
      'search/words/cost/reflection_completion_tokens': 50,
      'search/words/cost/money': (100 + 2 * 10 + 3 * 1_000) / 1e6,
    },
    {
      step: 4,
      lineage: 'main',
      'trial/words/cost/prompt_tokens': 7,
      'trial/words/cost/completion_tokens': 1,
      'trial/words/cost/money': 9 / 1e6,
    },
  ]);
});
