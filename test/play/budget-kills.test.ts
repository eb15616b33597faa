import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { BudgetLedger } from '../../runs/budgets/budget-ledger.ts';
import { storeOf } from '../../runs/run-access.ts';
import { resolveStoreUri } from '../../store/index.ts';

const program = fileURLToPath(new URL('budget-worker.ts', import.meta.url));
const limit = 3_000;

test('workers that are killed between a reservation and its settlement never exceed the budget', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-budget-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const store = resolveStoreUri('.', folder);
  const given = path.join(folder, 'given.txt');
  const begin = (): ChildProcess =>
    spawn(process.execPath, ['--import', 'tsx', program, store, String(limit), given], { stdio: 'inherit' });
  const sum = (): number =>
    existsSync(given)
      ? readFileSync(given, 'utf8')
          .split('\n')
          .reduce((n, one) => n + Number(one), 0)
      : 0;

  const [first, second, third] = [begin(), begin(), begin()];
  for (const [killed, tokens] of [
    [first, 300],
    [second, 900],
  ] as const) {
    while (sum() < tokens) await delay(5);
    killed.kill('SIGKILL');
  }
  const [fourth] = [begin()];
  const ends = await Promise.all([third, fourth].map(exitCode));
  assert.deepEqual(ends, [0, 0]);
  const ledger = await new BudgetLedger(storeOf({ store, name: 'words' }), '').newest();
  const { used, held } = ledger!;
  assert.ok(sum() <= limit, `${sum()} of ${limit}`);
  assert.ok(sum() <= used.tokens + held.tokens && used.tokens + held.tokens <= limit);
  assert.ok(sum() > limit / 2, `what the dead held is a small part: ${sum()} were used`);
});

async function exitCode(child: ChildProcess): Promise<number | null> {
  if (child.exitCode === null) await once(child, 'exit');
  return child.exitCode;
}
