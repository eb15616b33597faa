import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { openScorer } from '../../backends/rollouts/teacher.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { createPreset, saveModelFolder } from '../../engine/index.ts';
import { hasCode } from '../backends/store.contract.ts';
import { WordsInference } from './runs.ts';

test('a folder with another tokenizer does not score; where the policy’s is not on this machine it is taken on trust', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'teacher-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  await saveModelFolder(createPreset('preset:chars-0.4m', { seed: 1 }), folder);
  const text = `model = "preset:reverse-text-0.2m"\nloss = "opd"\nrollouts_per_example = 1\n[[env]]\nid = "reverse-text"\n[teacher]\nmodel = "${folder}"\n`;
  const parsed = parseRunConfig(text, { file: 'run.toml' });
  assert(parsed.ok, JSON.stringify(parsed));
  const open = (more: Partial<RunSpec>) =>
    openScorer({ inference: () => new WordsInference() }, { ...parsed.spec, ...more });
  await assert.rejects(open({}), hasCode('ConfigInvalid', 'another tokenizer than the policy', 'loss = "sft"'));
  assert.match((await open({ model: 'preset:chars-0.4m' })).name, /^teacher:weights:[0-9a-f]{16}$/);
  assert.match((await open({ model: path.join(folder, 'elsewhere') })).name, /^teacher:weights:/);
});
