/** `ratchet COMMAND | head`: a reader that goes away is no error. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

test('a command whose reader has gone away ends without a word', async () => {
  const program = fileURLToPath(new URL('../../cli/ratchet.mjs', import.meta.url));
  const command = spawn(process.execPath, [program, '--help'], { stdio: ['ignore', 'pipe', 'pipe'] });
  command.stdout.destroy();
  let complaint = '';
  command.stderr.on('data', (chunk: Buffer) => (complaint += chunk.toString()));
  const [code] = (await once(command, 'close')) as [number | null];
  assert.deepEqual({ code, complaint }, { code: 0, complaint: '' });
});
