/** Python packages that Ratchet installs by itself are locked by their digests. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { installCommand, lockedArguments, lockOf } from '../../workers/install/python-environment.ts';

const folder = fileURLToPath(new URL('../../python', import.meta.url));
const requirements = readdirSync(folder).filter((name) => name.endsWith('-requirements.txt'));

for (const name of requirements) {
  test(`${name} has a lock with a digest for all that it brings along`, () => {
    const file = path.join(folder, name);
    const pins = readFileSync(file, 'utf8').trim().split('\n');
    // A package and the lines that belong to it.
    const entries = readFileSync(lockOf(file), 'utf8')
      .trim()
      .split(/\n(?=\S)/);
    for (const entry of entries) assert.match(entry, /^[\w.-]+(?:\[[\w,-]+\])?==\S+[^]*--hash=sha256:[0-9a-f]{64}/);
    for (const pin of pins)
      assert.ok(
        entries.some((entry) => entry.startsWith(`${pin} `)),
        pin,
      );
    assert.ok(entries.length > pins.length);
  });
}

test('nothing that is not in the lock is installed', () => {
  const args = lockedArguments('python/x.lock');
  for (const uv of [true, false]) {
    const [, words] = installCommand({ uv }, '/env', args);
    assert.deepEqual(words.slice(-3), ['--require-hashes', '-r', 'python/x.lock']);
  }
});
