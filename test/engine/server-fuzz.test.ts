import assert from 'node:assert/strict';
import { randomInt } from 'node:crypto';
import { test } from 'node:test';
import { FuzzServer, runCases } from './server-fuzzing.ts';

const seed = Number(process.env['RATCHET_FUZZ_SEED'] ?? randomInt(2 ** 31));

test('ten thousand requests of every kind, a thousand at once among them, leave the server as it was', async (t) => {
  t.diagnostic(`seed ${seed}; RATCHET_FUZZ_SEED repeats it`);
  const server = await FuzzServer.start();
  t.after(() => server.stop());
  const run = (from: number, to: number, atOnce: number): ReturnType<typeof runCases> =>
    runCases(server, { seed, from, to, atOnce });
  await run(0, 1000, 1000);
  await run(1000, 5000, 50);
  const before = await server.memory();
  await run(5000, 6000, 1000);
  const { statuses } = await run(6000, 10_000, 50);
  const after = await server.memory();
  t.diagnostic(`answers ${JSON.stringify(statuses)}, memory ${JSON.stringify({ before, after })}`);
  assert.equal(server.hasExited, false);
  assert.ok(after.live < 1.05 * before.live, `live memory grew from ${before.live} to ${after.live} bytes`);
  // The system keeps freed pages in the process for a while, and how many depends on the load, as does what is kept.
  assert.ok(after.rss - after.kept < 1.2 * before.rss, `the process grew from ${before.rss} to ${after.rss} bytes`);
});
