import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { howToUse } from '../../cli/gepa/use-prompt.ts';
import type { PromptSearchInput } from '../../core/gepa/prompt-search.ts';

const folder = path.resolve('outputs/gepa/shop--small/1a2b');
const model: PromptSearchInput['model'] = { kind: 'endpoint', model: 'small', servers: [], sampling: {} };
const searched = { environments: [], model, savesResults: true };
const typed = { ids: ['./shop.ts'], options: { save: true, apiBaseUrl: 'http://localhost:8000/v1', envArgs: '{"n": 3}' } }; // prettier-ignore

test('the end of a search says what to type with its prompt', () => {
  assert.deepEqual(howToUse({ folder, isImproved: true }, searched, typed), [
    `use it: npx ratchet-rl eval run ./shop.ts -m small -b http://localhost:8000/v1 -a '{"n": 3}' --system-prompt outputs/gepa/shop--small/1a2b/best_prompt.txt`,
    '  or in a run file: [[env]] system_prompt = "outputs/gepa/shop--small/1a2b/best_prompt.txt"',
  ]);
  assert.match(howToUse({ folder, isImproved: false }, searched, typed).join(), /no prompt was better than the start/);
});

test('of several texts the system prompt alone has a setting', () => {
  const both = { ...searched, components: ['system_prompt', 'tool_descriptions'] as const };
  const [use, , others] = howToUse({ folder, isImproved: true }, both, typed);
  assert.match(use!, /--system-prompt \S+\/system_prompt\.txt$/);
  assert.match(others!, /best_components\.json/);
  const each = { ...searched, components: ['system_prompts'] as const };
  assert.deepEqual(howToUse({ folder, isImproved: true }, each, typed), [
    'the texts are in outputs/gepa/shop--small/1a2b/best_components.json',
  ]);
});
