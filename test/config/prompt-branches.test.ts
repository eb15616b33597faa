/** `[gepa]` in a run file: branches that look for better system prompts. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { kindOf } from '../../config/parse-config-file.ts';
import { accept, refuse } from './read-run.ts';

const run = 'model = "preset:x"\nmax_steps = 100\n[[env]]\nid = "reverse-text"\n';
const reflection = 'reflection_model = "gpt-4.1-mini"\nurl = "https://api.openai.com/v1"\n';

const problemsOf = (gepa: string): string[] => refuse(`${run}[gepa]\n${gepa}`).map(({ path }) => path);

test('[gepa] says when a run branches, who writes prompts, and what becomes of them; without it there is nothing', () => {
  assert.ok(!('gepa' in accept(run).spec));
  const { gepa } = accept(
    `${run}[gepa]\n${reflection}interval = 50\nat_steps = [30, 10, 30]\nadopt = "if_better"\n`,
  ).spec;
  assert.deepEqual([gepa?.interval, gepa?.atSteps, gepa?.adopt], [50, [10, 30], 'if_better']);
  assert.deepEqual(gepa?.environments, ['reverse-text']);
  assert.equal(gepa?.apiKeyVar, 'OPENAI_API_KEY');
  const own = accept(`${run}[gepa]\nreflection_model = "m"\nurl = "http://127.0.0.1:9/v1"\n`).spec.gepa;
  assert.deepEqual([own?.apiKeyVar, own?.interval, own?.adopt], [null, null, 'ask']);
});

test('what cannot be meant is refused where it stands', () => {
  assert.deepEqual(problemsOf(`${reflection}environments = ["other"]\n`), ['gepa.environments[0]']);
  assert.deepEqual(problemsOf(`${reflection}at_steps = [100]\n`), ['gepa.at_steps[0]']);
  assert.deepEqual(problemsOf(`${reflection}max_calls = 100\n`), ['gepa.max_calls']);
  assert.deepEqual(problemsOf(`${reflection}intervall = 3\n`), ['gepa.intervall']);
  assert.deepEqual(problemsOf('interval = 3\n').toSorted(), ['gepa.reflection_model', 'gepa.url']);
  assert.deepEqual(problemsOf(`${reflection}api_key_var = "sk-abcdefghijklmnop1234567890"\n`), ['gepa.api_key_var']);
});

test('a run file with [gepa] stays a run file; one with nothing of a run is a search', () => {
  assert.equal(kindOf(`${run}[gepa]\n${reflection}`, 'run.toml').kind, 'run');
  assert.equal(kindOf('model = "x"\n[gepa]\nmax_calls = 9\n[[env]]\nenv_id = "wiki-search"\n', 'g.toml').kind, 'gepa');
});
