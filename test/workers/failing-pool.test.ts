/** A pool whose workflow task fails for ever, on a real Temporal server. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { bundleWorkflowCode, DefaultLogger, Runtime, Worker } from '@temporalio/worker';
import { ProcessLease } from '../../activities/around/process-lease.ts';
import { poolWorkflowId, taskQueues } from '../../core/names.ts';
import { PoolMembership } from '../../workers/roles/pool-membership.ts';
import { ensureTemporalCli } from '../../workers/temporal/temporal-cli.ts';
import { until } from '../eventually.ts';
import { startIn } from '../workflows/server.ts';

/** Answers until it hears of a second trainer; then its code throws in every task. */
const poolCode = `
const { condition, defineQuery, defineSignal, setHandler, workflowInfo } = require('@temporalio/workflow');
exports.pool = async function pool() {
  let heard = 0;
  setHandler(defineSignal('trainer-standing'), () => void (heard += 1));
  setHandler(defineQuery('who-has'), () => (heard === 0 ? null : { heldBy: null }));
  await condition(() => heard > 1);
  throw new TypeError('this code cannot go on');
};
`;

test('a pool that cannot go on is begun anew by a trainer that asks it', async (t) => {
  Runtime.install({ logger: new DefaultLogger('ERROR'), telemetryOptions: { logging: { filter: 'OFF' } } });
  const folder = mkdtempSync(path.join(import.meta.dirname, '../../node_modules/.cache/failing-pool-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  writeFileSync(path.join(folder, 'pool.cjs'), poolCode);
  const cli = await ensureTemporalCli({ log: () => undefined });
  const server = await startIn(folder, cli.path);
  t.after(() => server.teardown());
  const workflowBundle = await bundleWorkflowCode({
    workflowsPath: path.join(folder, 'pool.cjs'),
    logger: new DefaultLogger('ERROR'),
  });
  const worker = await Worker.create({ connection: server.nativeConnection, taskQueue: taskQueues.orchestrator, workflowBundle }); // prettier-ignore
  await worker.runUntil(async () => {
    const { client } = server;
    const said: string[] = [];
    const lease = new ProcessLease(os.hostname());
    const membership = new PoolMembership({ client: () => client, joined: { pool: 'gpus', labels: {} }, lease, say: (line) => void said.push(line) }); // prettier-ignore
    const staying = membership.stay(50);
    const pool = client.workflow.getHandle(poolWorkflowId('gpus'));
    const executionNow = async (): Promise<string> => (await pool.describe()).runId;
    await until('it has joined', async () => (await pool.query('who-has').catch(() => null)) !== null);
    const first = await executionNow();
    await pool.signal('trainer-standing', {}); // the first was the trainer’s own
    await until('it is begun anew', async () => (await executionNow()) !== first);
    await membership.leave();
    await staying;
    assert.equal((await client.workflow.getHandle(poolWorkflowId('gpus'), first).describe()).status.name, 'TERMINATED');
    assert.ok(
      said.some((line) => /could not go on, and begins anew/.test(line)),
      said.join('\n'),
    );
  });
});
