/** A run with a user's environment that breaks: it pauses with the reason, and continues on request. */
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { Client, Connection } from '@temporalio/client';
import { NativeConnection, Worker } from '@temporalio/worker';
import { createRolloutActivities } from '../../activities/index.ts';
import { FailureMapping } from '../../activities/around/failures.ts';
import { createEnvironments, openEnvironment } from '../../backends/environments/index.ts';
import { openInference } from '../../backends/inference/index.ts';
import { taskQueues } from '../../core/names.ts';
import { loadTokenizer } from '../../engine/index.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { holdSecret } from '../../host/project-secret.ts';
import { localRoles, policyUrlAt } from '../../workers/stack/roles.ts';
import { startStack, type Stack } from '../../workers/stack/supervisor.ts';
import type { RunStatus } from '../../workflows/control/messages.ts';
import type { RunSummary } from '../../workflows/train-run.ts';
import { smallRun } from './small-run.ts';

const config = smallRun
  .replace('max_steps = 12', 'max_steps = 2')
  .replace('batch_size = 32', 'batch_size = 16')
  .replace(/\[eval\][^[]*/, '');

/** Present behaviour of the user's environment. */
let mood: 'works' | 'breaks' | 'long words break' | 'one reward for all' = 'works';
const environments = createEnvironments(async (entry) => {
  const words = await openEnvironment(entry);
  return {
    ...words,
    rollout(example, policy) {
      const isBroken = mood === 'breaks' || (mood === 'long words break' && entry.args['max_length'] === 5);
      return isBroken ? Promise.reject(new Error('the sandbox has no disk left')) : words.rollout(example, policy);
    },
    rubric: {
      functions: words.rubric.functions.map((judge) => ({
        ...judge,
        score: (rollout: Parameters<typeof judge.score>[0]) =>
          mood === 'one reward for all' ? 0.5 : judge.score(rollout),
      })),
    },
  };
});

let folder: string;
let stack: Stack;
let connection: Connection;
let client: Client;
let worker: Worker;
let working: Promise<void>;
let native: NativeConnection;
before(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-pauses-'));
  const outputs = path.join(folder, 'outputs');
  await mkdir(outputs);
  const policyPort = await choosePort(0);
  const roles = localRoles({ weightRoots: [outputs], policyPort, followsMetrics: false }).filter(
    ({ name }) => name !== 'rollout worker',
  );
  stack = await startStack({ projectFolder: folder, policyUrl: policyUrlAt(policyPort), roles, log: () => undefined });
  holdSecret(folder); // the rollout worker is this process
  connection = await Connection.connect({ address: stack.temporalAddress });
  client = new Client({ connection });
  native = await NativeConnection.connect({ address: stack.temporalAddress });
  worker = await Worker.create({
    connection: native,
    taskQueue: taskQueues.rollout,
    interceptors: { activity: [() => ({ inbound: new FailureMapping('of the tests') })] },
    activities: createRolloutActivities({
      inference: (spec) => openInference(spec.inference, policyUrlAt(policyPort)),
      tokenizer: loadTokenizer,
      environments,
    }),
  });
  working = worker.run();
});
after(async () => {
  worker?.shutdown();
  await working;
  await native?.close();
  await connection?.close();
  await stack?.stop();
  await rm(folder, { recursive: true, force: true });
});

async function start(name: string, text = config) {
  await writeFile(path.join(folder, `${name}.toml`), text);
  return client.workflow.start('trainRun', { workflowId: name, taskQueue: 'ratchet', args: [`${name}.toml`] });
}

async function untilPaused(handle: Awaited<ReturnType<typeof start>>): Promise<RunStatus> {
  for (;;) {
    const status = await handle.query<RunStatus>('status').catch(() => null); // no handler before the run is open
    if (status?.phase === 'paused') return status;
    await delay(100);
  }
}

test('an environment that breaks pauses the run with its traceback; resumed, it trains what is whole', async () => {
  mood = 'breaks';
  const handle = await start('broken');
  const { pausedBecause, step } = await untilPaused(handle);
  assert.equal(step, 0, 'nothing was trained');
  assert.match(pausedBecause ?? '', /^breaker: 16 of 16 rollouts failed \(100%.*16 × environment errors/);
  assert.match(pausedBecause ?? '', /Error: the sandbox has no disk left\n\s+at /);
  mood = 'works';
  await handle.executeUpdate('resume');
  const { ledger, step: last } = (await handle.result()) as RunSummary;
  assert.deepEqual([last, ledger.isSound, ledger.counts['failed']], [2, true, 4]);
});

test('rewards that are all equal pause the run as no-signal, with the histogram, and no step is made of them', async () => {
  mood = 'one reward for all';
  const handle = await start('flat');
  const { pausedBecause, step } = await untilPaused(handle);
  assert.equal(step, 0);
  assert.match(pausedBecause ?? '', /^no-signal: 8 sampling rounds for step 1 kept 0 of the 4 groups/);
  assert.match(pausedBecause ?? '', /Mean rewards of the groups: 0\.5-0\.6: 32\./);
  mood = 'works';
  await handle.executeUpdate('resume');
  const { ledger, step: last } = (await handle.result()) as RunSummary;
  assert.deepEqual([last, ledger.isSound], [2, true]);
  assert.ok((ledger.counts['filtered'] ?? 0) >= 32);
});

test('of two environments one breaks: the run pauses with its name, and the groups of the other were whole', async () => {
  mood = 'long words break';
  const seldom =
    '\n[[env]]\nid = "reverse-text"\nname = "long"\nargs = { min_length = 5, max_length = 5 }\nweight = 1\n[sft]';
  const handle = await start(
    'one-of-two',
    config.replace('batch_size = 16', 'batch_size = 32').replace('\n[sft]', seldom),
  );
  const { pausedBecause, step } = await untilPaused(handle);
  assert.equal(step, 0);
  assert.match(
    pausedBecause ?? '',
    /^breaker: long: (\d+) of \1 rollouts failed \(100%.*for step 1: \d+ × environment errors/,
  );
  assert.match(pausedBecause ?? '', /reverse-text had no failures\. Nothing of it was trained/);
  mood = 'works';
  await handle.executeUpdate('resume');
  const { ledger, step: last } = (await handle.result()) as RunSummary;
  assert.deepEqual([last, ledger.isSound], [2, true]);
  assert.ok((ledger.counts['failed'] ?? 0) >= 2 && (ledger.counts['trained'] ?? 0) >= 8, JSON.stringify(ledger.counts));
});
