import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import proto from '@temporalio/proto';
import { DefaultLogger, Runtime, Worker, type WorkflowBundleWithSourceMap } from '@temporalio/worker';
import { bundleWorkflows } from '../../workers/program/workflow-bundle.ts';

/** Histories as protobuf bytes: the JSON form of `fetchHistory` does not decode with every protobufjs in the tree. */
const folder = fileURLToPath(new URL('.', import.meta.url));
const recorded = readdirSync(folder).filter((name) => name.endsWith('.history.bin'));

let workflowBundle: WorkflowBundleWithSourceMap;
before(async () => {
  Runtime.install({ logger: new DefaultLogger('ERROR') });
  workflowBundle = await bundleWorkflows();
});

test('there are recorded histories of three async levels, of evaluations and of a search for a prompt', () => {
  const names = ['async-1', 'async-2', 'evaluate-file', 'evaluate', 'leased-search', 'on-policy', 'play-rounds'];
  assert.deepEqual(
    recorded.toSorted(),
    names.map((name) => `${name}.history.bin`).toSorted(),
  );
});

for (const name of recorded) {
  test(`a run recorded as ${name.replace('.history.bin', '')} replays: running runs survive this version`, async () => {
    const history = proto.temporal.api.history.v1.History.decode(readFileSync(folder + name));
    // Under its own id, after which children are named.
    await Worker.runReplayHistory({ workflowBundle }, history, name.replace('.history.bin', ''));
  });
}

test('a history whose steps came in another order is refused', async () => {
  const history = proto.temporal.api.history.v1.History.decode(readFileSync(`${folder}on-policy.history.bin`));
  const scheduled = history.events.filter((event) => event.activityTaskScheduledEventAttributes);
  const [, warmUp, broadcast] = scheduled.map((event) => event.activityTaskScheduledEventAttributes!);
  warmUp!.activityType = { name: 'saveCheckpoint' };
  broadcast!.activityType = { name: 'warmUp' };
  await assert.rejects(Worker.runReplayHistory({ workflowBundle }, history, 'changed'), /determinism/i);
});

test('schemas stay out of the workflow bundle', () => {
  assert.ok(!workflowBundle.code.includes('ZodType'), 'zod is in the bundle: a workflow imports a value of config/');
});
