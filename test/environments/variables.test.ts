import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { environments } from '../../backends/environments/index.ts';
import { scriptedPolicy } from '../../backends/environments/scripted.ts';
import { givenVariables, missingVariables } from '../../backends/environments/variables.ts';
import { processesOpen } from '../../host/processes-open.ts';
import type { Rollout } from '../../core/rl/rollout/rollout.ts';
import { modulePaths } from '../backends/python-bridge.ts';
import { installPython } from '../python-here.ts';
import { hasCode } from '../store/store.contract.ts';

function secretsFile(t: TestContext, text: string): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-secrets-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = path.join(folder, 'secrets.env');
  writeFileSync(file, text);
  return file;
}

describe('variables that a config lists for its environments', () => {
  test('what is set in the process counts more than what a file says', (t) => {
    const file = secretsFile(t, '# keys\nexport A_KEY="from the file"\nB_KEY=b\n');
    const { values } = givenVariables({ names: ['A_KEY'], files: [file] }, { A_KEY: 'from here', OTHER: 'x' });
    assert.deepEqual(values, { A_KEY: 'from here', B_KEY: 'b' });
  });

  test('credentials of the store, of Temporal and of metrics in a file stay out', (t) => {
    const file = secretsFile(t, 'WANDB_API_KEY=w\nAWS_SECRET_ACCESS_KEY=a\nJUDGE=j\n');
    const { values, kept } = givenVariables({ names: [], files: [file] }, {});
    assert.deepEqual([values, kept.toSorted()], [{ JUDGE: 'j' }, ['AWS_SECRET_ACCESS_KEY', 'WANDB_API_KEY']]);
  });

  test('one that is missing is refused by its name, and where it may be set is said', (t) => {
    const file = secretsFile(t, 'B_KEY=b\n');
    const variables = { names: ['A_KEY', 'B_KEY', 'C_KEY'], files: [file] };
    assert.deepEqual(missingVariables(variables, { C_KEY: '' }), ['A_KEY', 'C_KEY']);
    assert.throws(
      () => givenVariables(variables, {}),
      hasCode('ConfigInvalid', 'A_KEY, C_KEY, which env_vars (or --pass-env) lists'),
    );
    assert.throws(() => givenVariables(variables, {}), hasCode('ConfigInvalid', 'RATCHET_PYTHON_VARIABLES'));
  });

  test('a file that is not there, or has nothing in it, is refused by its path', (t) => {
    const empty = secretsFile(t, '# nothing yet\n');
    assert.throws(() => givenVariables({ names: [], files: [empty] }), hasCode('ConfigInvalid', empty));
    assert.throws(
      () => givenVariables({ names: [], files: ['/nowhere/x.env'] }),
      hasCode('ConfigInvalid', 'there is no such file'),
    );
  });

  test('an environment in this process is not opened without what it lists', async () => {
    const entry = { id: 'reverse-text', args: {}, variables: { names: ['NOT_SET_HERE_KEY'], files: [] } };
    await assert.rejects(environments.open(entry), hasCode('ConfigInvalid', 'NOT_SET_HERE_KEY'));
  });
});

const verifiers = await installPython('verifiers-v0-requirements.txt');

describe('the Python process of an environment', { skip: verifiers.why }, () => {
  test('sees what its config lists and nothing else, and no row has a value of it', async (t) => {
    const key = 'judge-key-that-is-secret';
    const file = secretsFile(t, `JUDGE_API_KEY=${key}\n`);
    const before = { ...process.env };
    const project = process.cwd();
    // The bridge keeps its logs in the folder where it works.
    process.chdir(path.dirname(file));
    Object.assign(process.env, {
      TOOL_KEY: 'tool',
      OTHER_KEY: 'other',
      PYTHONPATH: modulePaths[0]!,
      RATCHET_PYTHON_CHILDREN: '1',
    });
    t.after(async () => {
      process.chdir(project);
      for (const name of ['TOOL_KEY', 'OTHER_KEY', 'RATCHET_PYTHON_CHILDREN']) delete process.env[name];
      if (before['PYTHONPATH'] === undefined) delete process.env['PYTHONPATH'];
      else process.env['PYTHONPATH'] = before['PYTHONPATH'];
      for (const close of processesOpen) await close();
    });
    const folder = path.dirname(path.dirname(verifiers.python));
    const python = { module: 'toy_keys', api: 'v0', folder, verifiers: '0.3.1', version: '0' } as const;
    const open = (names: string[], files: string[]) =>
      environments.open({ id: 'toy-keys', args: {}, python, variables: { names, files } });

    const one = await open(['TOOL_KEY'], [file]);
    assert.equal(one.dataset.at(0).answer, `JUDGE_API_KEY=${key},TOOL_KEY=tool`);
    const other = await open(['OTHER_KEY'], []);
    assert.equal(other.dataset.at(0).answer, 'OTHER_KEY=other', 'in a process of its own');

    const example = one.dataset.at(0);
    const record = await one.rollout(
      example,
      scriptedPolicy(() => 'none'),
    );
    const rollout: Rollout = { group: 0, index: 0, exampleId: 0, ...record };
    const judged = await one.judge!(example, [rollout], { dataset: 'dataset' });
    const told = JSON.stringify(judged);
    assert.match(told, /the judge refused \[secret\]/);
    assert.equal(told.includes(key), false);
  });
});
