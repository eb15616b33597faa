/** A secret that is typed goes the way of what is written: it is refused before anything keeps it. And a server that is corrected is asked. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { parseEvalFile } from '../../config/evaluations/parse-eval-file.ts';
import { parseGepaFile } from '../../config/searches/parse-gepa-file.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import type { Table } from '../../config/toml/tables.ts';
import type { EvaluationInput } from '../../core/eval/evaluation.ts';
import { placeIn } from '../../load/evaluations/evaluation-folders.ts';
import { hasOtherServers } from '../../cli/eval/prepare.ts';

const canary = 'CANARY0123';
const program = fileURLToPath(new URL('../../cli/ratchet.mjs', import.meta.url));

function temporary(t: TestContext): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-typed-'));
  t.after(() => rmSync(folder, { recursive: true }));
  return folder;
}

function refusal(settings: Table) {
  const parsed = parseEvalFile('[[eval]]\nid = "wordle"\n', { file: 'command line', settings });
  return parsed.ok ? null : parsed.problems;
}

test('a typed secret is refused, with what to do and without the secret', () => {
  const typed: Table[] = [
    { api_base_url: `http://u:${canary}@127.0.0.1:1/v1` },
    { api_base_url: `https://${canary}@api.test/v1` },
    { api_base_url: `http://127.0.0.1:1/v1?api_key=${canary}` },
    { api_base_url: `http://127.0.0.1:1/v1?x=1&token=${canary}` },
    { headers: { Authorization: `Bearer ${canary}` } },
    { headers: { authorization: `Basic ${canary}` } },
    { headers: { 'X-API-Key': canary } },
    { headers: { Cookie: canary } },
    { env_args: { judge_url: `http://u:${canary}@h/` } },
    { sampling: { extra_headers: { Authorization: canary } } },
  ];
  for (const settings of typed) {
    const problems = refusal(settings);
    assert.equal(problems?.length, 1, JSON.stringify(settings));
    assert.match(problems[0]!.suggestion!, /environment variable/);
    assert.doesNotMatch(JSON.stringify(problems), new RegExp(canary));
  }
  assert.equal(refusal({ api_base_url: 'http://127.0.0.1:1/v1', headers: { 'X-Team': 'a@b' } }), null);

  const url = `http://u:${canary}@h/v1`;
  const gepa = parseGepaFile('model = "m"\n[env]\nid = "wordle"\n', { file: 'f', overrides: { api_base_url: url } });
  const run = parseRunConfig('model = "preset:chars-0.4m"\n[[env]]\nid = "wordle"\n', {
    file: 'f',
    overrides: { 'inference.kind': 'openai', 'inference.url': `http://h/v1?api_key=${canary}` },
  });
  for (const parsed of [gepa, run]) {
    assert.ok(!parsed.ok);
    assert.match(JSON.stringify(parsed.problems), /not repeated here/);
    assert.doesNotMatch(JSON.stringify(parsed.problems), new RegExp(canary));
  }
});

test('an evaluation that continues with other servers is known to', async (t) => {
  const folder = temporary(t);
  const asking = (baseUrl: string): EvaluationInput =>
    ({
      model: { kind: 'endpoint', model: 'm', sampling: {}, servers: [{ model: 'm', baseUrl, apiKeyVar: null, headers: {} }] }, // prettier-ignore
      results: placeIn(folder, 'one'),
    }) as unknown as EvaluationInput;
  assert.equal(await hasOtherServers(asking('http://a/v1')), false, 'there is none');
  mkdirSync(path.join(folder, 'one', 'evaluation'), { recursive: true });
  const stored = { schemaVersion: 1, input: asking('http://a/v1'), request: 'w/1' };
  writeFileSync(path.join(folder, 'one', 'evaluation', 'attempt_1.json'), JSON.stringify(stored));
  assert.equal(await hasOtherServers(asking('http://a/v1')), false);
  assert.equal(await hasOtherServers(asking('http://b/v1')), true);
});

test('what the command writes is nobody’s outside of the group, whatever the umask', async (t) => {
  const folder = temporary(t);
  await new Promise<void>((resolve, reject) => {
    const words = [process.execPath, program, 'init'];
    const child = execFile('/bin/sh', ['-c', 'umask 0; exec "$@"', 'sh', ...words], { cwd: folder }, (error) =>
      error ? reject(error) : resolve(),
    );
    child.stdin?.end();
  });
  const written = readdirSync(folder, { recursive: true, encoding: 'utf8' });
  assert.notEqual(written.length, 0);
  for (const name of written) {
    const file = path.join(folder, name);
    if (existsSync(file)) assert.equal(statSync(file).mode & 0o007, 0, name);
  }
});
