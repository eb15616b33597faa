import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { takeSecretsFolder } from '../../host/secrets-folder.ts';
import { repositoryFolder } from '../e2e/small-run.ts';
import { temporaryFolder } from '../workers/fixtures/processes.ts';

/** A Secret as Kubernetes mounts it: links to a folder that is replaced as a whole. */
function mounted(t: TestContext, files: Readonly<Record<string, string>>): string {
  const folder = temporaryFolder(t);
  mkdirSync(path.join(folder, '..2026_11_30'));
  symlinkSync('..2026_11_30', path.join(folder, '..data'));
  for (const [name, text] of Object.entries(files)) {
    writeFileSync(path.join(folder, '..2026_11_30', name), text);
    symlinkSync(path.join('..data', name), path.join(folder, name));
  }
  return folder;
}

test('each file of a mounted Secret becomes a variable, without its last line break; the name of the folder is not kept', (t) => {
  const folder = mounted(t, { WANDB_API_KEY: 'one\n', NOTIFY_KEY: 'two\nlines\r\n', EMPTY: '' });
  const env: NodeJS.ProcessEnv = { RATCHET_SECRETS_FOLDER: folder, HOME: '/home/somebody' };
  takeSecretsFolder(env);
  assert.deepEqual(env, { HOME: '/home/somebody', WANDB_API_KEY: 'one', NOTIFY_KEY: 'two\nlines', EMPTY: '' });
});

test('without a folder, and with an empty one, nothing is set', (t) => {
  const env: NodeJS.ProcessEnv = { HOME: '/home/somebody' };
  takeSecretsFolder(env);
  takeSecretsFolder({ ...env, RATCHET_SECRETS_FOLDER: temporaryFolder(t) });
  assert.deepEqual(env, { HOME: '/home/somebody' });
});

test('what cannot be variables is refused by its file, without its content', (t) => {
  const refused = (files: Readonly<Record<string, string>>, message: RegExp, env: NodeJS.ProcessEnv = {}): void => {
    const folder = mounted(t, files);
    assert.throws(
      () => takeSecretsFolder({ ...env, RATCHET_SECRETS_FOLDER: folder }),
      (error: Error) => message.test(error.message) && !error.message.includes('s3cret'),
    );
  };
  refused({ 'tls.crt': 's3cret' }, /expected files named like variables, such as WANDB_API_KEY, found .*tls\.crt/);
  refused({ KEY: 's3cret' }, /KEY is set, and .*KEY sets it, too/, { KEY: 's3cret-other' });
  refused({ KEY: 's3cret\0' }, /found a byte 0/);
  refused({ KEY: 's3cret'.repeat(20_000) }, /KEY cannot be used/);
  const away = path.join(temporaryFolder(t), 'away');
  assert.throws(
    () => takeSecretsFolder({ RATCHET_SECRETS_FOLDER: away }),
    /expected a folder, got .*away: there is no/,
  );
});

test('a command has the variables of the folder before it reads any', (t) => {
  const folder = mounted(t, { TEMPORAL_TLS: 'maybe' });
  const env = { ...process.env, RATCHET_SECRETS_FOLDER: folder, TEMPORAL_ADDRESS: '127.0.0.1:1' };
  const run = (): string =>
    execFileSync(process.execPath, ['cli/ratchet.mjs', 'runs'], {
      cwd: repositoryFolder,
      env,
      encoding: 'utf8',
      stdio: 'pipe',
    });
  assert.throws(run, (error: Error & { stderr: string }) => /TEMPORAL_TLS: expected true or false/.test(error.stderr));
});
