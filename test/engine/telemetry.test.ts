import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';

/** A session in a process of its own, whose home is empty: what telemetry leaves behind there is its identifier. */
async function filesLeftBy(program: string): Promise<string[]> {
  const home = await mkdtemp(path.join(os.tmpdir(), 'ratchet-home-'));
  try {
    const { ORT_DISABLE_TELEMETRY: _, ...env } = process.env;
    const args = ['--import', 'tsx', '--input-type=module', '-e', program];
    const places = { HOME: home, XDG_CACHE_HOME: home, TMPDIR: home, TSX_DISABLE_CACHE: '1' };
    await promisify(execFile)(process.execPath, args, { env: { ...env, ...places } });
    return await readdir(home, { recursive: true });
  } finally {
    await rm(home, { recursive: true, force: true });
  }
}

const openSession = `
  const { Sampler, createPreset } = await import('./engine/index.ts');
  const sampler = await Sampler.open(createPreset('preset:reverse-text-0.2m', { seed: 0 }).config, { threads: 1 });
  await sampler.release();
`;

test('the engine reports to nobody: the runtime leaves no identifier and opens no event store', async () => {
  const left = await filesLeftBy(openSession);
  assert.deepEqual(
    left.filter((name) => !/tsx/.test(name)),
    [],
  );
});
