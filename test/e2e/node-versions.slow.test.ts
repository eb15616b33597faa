import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { promisify } from 'node:util';
import { cacheFolder } from '../../host/cache-folder.ts';
import { repositoryFolder } from './small-run.ts';

const run = promisify(execFile);

/** The newest of each line, as packages: what people have who keep up. */
const otherNodes = ['22', '24'];

/** The oldest that may be used. */
const oldestNode = '20.19.0';

for (const version of otherNodes) {
  test(`the run whose every process is killed once ends with the same weights on Node ${version}`, (context) =>
    passesOn(context, version, 'test/e2e/kills.e2e.test.ts'));
}

for (const version of [oldestNode, ...otherNodes]) {
  test(`every role works as the program that is built on Node ${version}`, (context) =>
    passesOn(context, version, 'test/e2e/built-workers.e2e.test.ts'));
}

async function passesOn(context: TestContext, version: string, file: string): Promise<void> {
  const node = await installNode(context, version);
  if (node === null) return;
  const args = ['--import', 'tsx', '--test', '--test-reporter=tap', file];
  // The runner sets this inside a test file, so that nested runners notice; the child is a separate runner.
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const { stdout } = await run(node, args, { cwd: repositoryFolder, env, maxBuffer: 2 ** 26 }).catch(
    (error: { stdout: string }) => error,
  );
  assert.match(stdout, /# pass [1-9]\d*\n# fail 0\n# cancelled 0\n# skipped 0\n/, stdout);
}

/** Node as a package, kept in the per-user cache. Without a registry the test is skipped, and says so. */
async function installNode(context: TestContext, version: string): Promise<string | null> {
  const folder = path.join(cacheFolder(), 'nodes', version);
  const packageName = `node-${os.platform()}-${os.arch()}`;
  const node = path.join(folder, 'node_modules', packageName, 'bin', 'node');
  if (existsSync(node)) return node;
  await mkdir(folder, { recursive: true });
  try {
    await run('npm', ['install', '--no-save', '--ignore-scripts', '--prefix', folder, `${packageName}@${version}`]);
    return node;
  } catch (error) {
    context.skip(`Node ${version} cannot be installed here: ${String(error).split('\n').slice(0, 3).join(' ')}`);
    return null;
  }
}
