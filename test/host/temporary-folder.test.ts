import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { openTemporaryFolder } from '../../host/temporary-folder.ts';

test('folders that a killed process left are removed by the next one; those of others stay', async (t) => {
  const parent = await mkdtemp(path.join(tmpdir(), 'temporary-'));
  t.after(() => rm(parent, { recursive: true, force: true }));
  const mine = await openTemporaryFolder('call', parent);
  const [, space = ''] = /^ratchet-call-\d+-([0-9a-f]{8})-/.exec(path.basename(mine)) ?? [];
  const dead = Number(execFileSync(process.execPath, ['-p', 'process.pid'], { encoding: 'utf8' }));
  const left = [`ratchet-call-${dead}-${space}-Abc123`, `ratchet-torch-step-${dead}-${space}-Abc123`];
  const kept = [
    path.basename(mine),
    `ratchet-call-${process.ppid}-${space}-Abc123`,
    `ratchet-call-${dead}-00000000-Abc123`, // of another container
    `ratchet-call-${dead}-${space}`,
    'ratchet-store-Abc123',
  ];
  for (const name of [...left, ...kept.slice(1)]) await mkdir(path.join(parent, name));
  await writeFile(path.join(parent, left[0]!, 'model.sock'), '');
  const code = `import { openTemporaryFolder } from ${JSON.stringify(path.resolve('host/temporary-folder.ts'))};
    console.log(await openTemporaryFolder('other', process.argv[1]));`;
  const args = ['--import', 'tsx', '--input-type=module', '-e', code, parent];
  const others = execFileSync(process.execPath, args, { encoding: 'utf8' }).trim();
  assert.deepEqual((await readdir(parent)).toSorted(), [...kept, path.basename(others)].toSorted());
  assert(existsSync(mine));
});
