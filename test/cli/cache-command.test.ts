import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { describeKept, keptHere } from '../../cli/commands/stored/cache.ts';

test('all that remains on the machine is listed with its size, in this folder and outside of it', async (t) => {
  const root = await mkdtemp(path.join(tmpdir(), 'ratchet-cache-'));
  t.after(() => rm(root, { recursive: true, force: true }));
  const write = async (name: string, bytes: number): Promise<void> => {
    await mkdir(path.dirname(path.join(root, name)), { recursive: true });
    await writeFile(path.join(root, name), Buffer.alloc(bytes));
  };
  await write('here/outputs/words/run.json', 1_500);
  await write('here/.ratchet/temporal.db', 2_000_000);
  await write('cache/temporal-cli-1.5.1/temporal', 3_000_000);
  await write('cache/models/small/model.safetensors', 5_000_000);
  await write('hub/models--a--b/blobs/x', 7_000_000);
  await write('home/.config/temporalio/temporal.toml', 10);
  await write('tmp/ratchet-rows-x/rows', 100);
  await write('tmp/other/rows', 100);
  await symlink('/', path.join(root, 'here/outputs/link'));
  const at = (name: string): string => path.join(root, name);
  const places = { projectFolder: at('here'), home: at('home'), cache: at('cache'), hub: at('hub'), temporary: at('tmp') }; // prettier-ignore
  const kept = await keptHere(places);
  assert.deepEqual(
    kept.map(({ path: file, what, isShared }) => [path.relative(root, file), what.split(' ')[0], isShared]),
    [
      ['here/outputs', 'runs,', false],
      ['here/.ratchet', 'database', false],
      ['cache/models', 'models', false],
      ['cache/temporal-cli-1.5.1', 'Temporal', false],
      ['hub', 'models', true],
      ['home/.config/temporalio', 'settings', true],
      ['tmp/ratchet-rows-x', 'temporary', false],
    ],
  ); // prettier-ignore
  assert.ok(kept[0]!.bytes < 10_000, 'a link is not followed');
  const lines = describeKept(kept);
  assert.match(lines[2]!, /^ *5\.0 MB {2}\S+cache\/models +models that Ratchet fetched itself$/);
  assert.match(lines[4]!, /other programs use it, too$/);
  assert.match(lines.at(-1)!, /^ *10\.0 MB {2}without what other programs use\./);
  assert.deepEqual(describeKept([]), ['nothing of Ratchet is on this machine']);
});
