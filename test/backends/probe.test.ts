import assert from 'node:assert/strict';
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { probeModule } from '../../backends/environments/packages/probe.ts';

/** A working import may take longer than a stalled one is waited for. */
const patience = { standstillMs: 2_000, mostMs: 60_000 };

/** A stand-in for Python that runs a shell script. */
async function python(t: TestContext, script: string): Promise<string> {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-probe-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const file = path.join(folder, 'python');
  await writeFile(file, `#!/bin/sh\n${script}\n`);
  await chmod(file, 0o700);
  return file;
}

const answer = '{"ok": true, "file": "m.py", "load_environment": true, "taskset": null}';

test('an import that works is waited for longer than a stalled one', async (t) => {
  const busy = `end=$(($(date +%s) + 6)); while [ $(date +%s) -lt $end ]; do :; done; echo '${answer}'`;
  const probe = await probeModule(await python(t, busy), 'slow', 'v0', patience);
  assert.deepEqual(probe, JSON.parse(answer));
});

test('a stalled import is ended, with that as the reason', async (t) => {
  await assert.rejects(
    probeModule(await python(t, 'exec sleep 1000'), 'stuck', 'v0', patience),
    /^ConfigInvalid: import stuck ended its Python with SIGKILL \(it stood still for 2 s: no output/,
  );
});
