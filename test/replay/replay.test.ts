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

test('there are recorded histories of three async levels, of evaluations, of a search for a prompt and of a sweep', () => {
  const ofRuns = ['async-1', 'async-2', 'on-policy', 'play-rounds'];
  const others = ['evaluate-file', 'evaluate', 'leased-search', 'halving.sweep', 'halving-01', 'ends-paused.sweep'];
  assert.deepEqual(
    recorded.toSorted(),
    [...ofRuns, ...others].map((name) => `${name}.history.bin`).toSorted(),
  );
});

test('the recorded sweep was paused and resumed, and one of its runs went on from its commit', () => {
  const events = readHistory('halving.sweep').events;
  const updates = events.flatMap(({ workflowExecutionUpdateAcceptedEventAttributes: accepted }) =>
    accepted ? [accepted.acceptedRequest?.input?.name] : [],
  );
  assert.deepEqual(updates, ['pause', 'resume']);
  const children = events.flatMap(({ startChildWorkflowExecutionInitiatedEventAttributes: child }) =>
    child ? [child.workflowId] : [],
  );
  assert.deepEqual(children, ['halving-01', 'halving-02', 'halving-01']);
});

test('the recorded sweep that waited for nothing was resumed after its last run', () => {
  const { events } = readHistory('ends-paused.sweep'); // by code before the patch sweep-ends-while-paused
  const resumed = events.findLastIndex((event) => event.workflowExecutionUpdateAcceptedEventAttributes);
  const ended = events.findLastIndex((event) => event.childWorkflowExecutionCompletedEventAttributes);
  assert.ok(resumed > ended && ended > 0);
});

for (const name of recorded) {
  test(`a run recorded as ${name.replace('.history.bin', '')} replays: running runs survive this version`, async () => {
    const history = readHistory(name.replace('.history.bin', ''));
    // Under its own id, after which children are named.
    await Worker.runReplayHistory({ workflowBundle }, history, name.replace('.history.bin', ''));
  });
}

test('a history whose steps came in another order is refused', async () => {
  const history = readHistory('on-policy');
  const scheduled = history.events.filter((event) => event.activityTaskScheduledEventAttributes);
  const [, warmUp, broadcast] = scheduled.map((event) => event.activityTaskScheduledEventAttributes!);
  warmUp!.activityType = { name: 'saveCheckpoint' };
  broadcast!.activityType = { name: 'warmUp' };
  await assert.rejects(Worker.runReplayHistory({ workflowBundle }, history, 'changed'), /determinism/i);
});

test('schemas stay out of the workflow bundle', () => {
  assert.ok(!workflowBundle.code.includes('ZodType'), 'zod is in the bundle: a workflow imports a value of config/');
});

function readHistory(name: string) {
  return proto.temporal.api.history.v1.History.decode(readFileSync(`${folder}${name}.history.bin`));
}
