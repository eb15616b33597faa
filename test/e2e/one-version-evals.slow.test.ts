/** Evaluations of a run whose inference server samples from one version: they take turns with the training, or come after it. */
import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { after, before, test } from 'node:test';
import type { WorkflowHandle } from '@temporalio/client';
import type { Regression } from '../../core/eval/regression.ts';
import { makeSecret } from '../../host/project-secret.ts';
import {
  eventsQuery,
  regressionFoundSignal,
  resumeUpdate,
  type RunEvent,
  statusQuery,
} from '../../workflows/control/messages.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { type OneVersionServer, oneVersionServer } from './one-version-server.ts';
import { openSmallProject, smallRun, type SmallProject } from './small-run.ts';
import { until } from '../eventually.ts';

let project: SmallProject;
let server: OneVersionServer;
before(async () => {
  project = await openSmallProject({});
  server = await oneVersionServer(project.policyUrl, makeSecret(project.folder));
});
after(async () => {
  await project?.close();
  await server?.close();
});

/** A short run whose `[eval]` says this besides. */
async function start(
  name: string,
  evaluation: string,
  maxSteps: number,
  { top = '', asksItself = false } = {},
): Promise<WorkflowHandle<typeof trainRun>> {
  const text = smallRun
    .replace('learning_rate = 1e-3\n', top.includes('learning_rate') ? '' : 'learning_rate = 1e-3\n')
    .replace('max_steps = 12', `max_steps = ${maxSteps}`)
    .replace('max_async_level = 0', top === '' ? 'max_async_level = 0' : top)
    .replace('steps = 60', 'steps = 20')
    .replace('interval = 6\nnum_examples = 16', `interval = 2\nnum_examples = 200\n${evaluation}`);
  const inference = `\n[inference]\nkind = "openai"\nurl = ${JSON.stringify(server.url)}\n`;
  await writeFile(path.join(project.folder, `${name}.toml`), asksItself ? text : text + inference);
  return project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: 'ratchet',
    workflowTaskTimeout: '5s',
    args: [`${name}.toml`],
  });
}

/** How one of four steps goes, and which versions the server was asked for, in turn. */
async function run(name: string, evaluation: string) {
  const from = server.sampled.length;
  const handle = await start(name, evaluation, 4);
  const { evals } = await handle.result();
  return {
    steps: evals.map(({ step }) => step),
    events: await handle.query(eventsQuery, 0),
    versions: server.sampled.slice(from),
  };
}

const textOf = (events: readonly RunEvent[], kind: string): string[] =>
  events.filter((event) => event.kind === kind).map(({ text }) => text);

test('a server that holds one version is left to an evaluation while it runs, and that is said once', async () => {
  const { steps, events, versions } = await run('alone', '');
  assert.deepEqual(steps, [0, 2, 4]);
  assert.deepEqual(new Set(versions).size, versions.length, `it never goes back to a version: ${versions.join(' ')}`);
  const [warning, ...others] = textOf(events, 'warning');
  assert.match(warning!, /one version at a time: no training rollout is sampled while an evaluation runs/);
  assert.deepEqual(others, []);
  for (const text of textOf(events, 'eval')) assert.match(text, /training paused \d+\.\ds for it$/);
});

test('sampling one step ahead, a server that holds one version is brought to each version once', async () => {
  const from = server.loaded.length;
  server.delayMs = 1_500; // a step is trained before the next one is sampled
  const handle = await start('ahead', 'when = "defer"', 4, { top: 'max_async_level = 1' });
  await handle.result();
  server.delayMs = 0;
  const loaded = server.loaded.slice(from).map((version) => Number(version.split(':').at(-1)));
  const trained = loaded.slice(0, loaded.indexOf(4) + 1);
  assert.deepEqual(trained, [0, 1, 2, 3, 4], `loads: ${loaded.join(' ')}`);
});

test('when = "defer" evaluates after the last step, one version after another', async () => {
  const { steps, events, versions } = await run('later', 'when = "defer"');
  assert.deepEqual(steps, [0, 2, 4]);
  assert.deepEqual(
    versions.slice(-3).map((version) => version.split(':').at(-1)),
    ['0', '2', '4'],
  );
  const kinds = events.map(({ kind }) => kind).filter((kind) => kind === 'step' || kind === 'eval');
  assert.deepEqual(kinds, [...Array<string>(4).fill('step'), ...Array<string>(3).fill('eval')]);
  for (const text of textOf(events, 'eval')) assert.match(text, /deferred by \d+\.\ds$/);
});

test('a branch that looks for a better prompt has such a server to itself as well, and that is said', async () => {
  const reflection = createServer((request, response) => {
    request.resume().on('end', () => {
      const message = { role: 'assistant', content: '```\nabc\n```' };
      const choices = [{ index: 0, finish_reason: 'stop', message }];
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify({ id: 'r', object: 'chat.completion', created: 0, model: 'r', choices }));
    });
  });
  await new Promise<void>((resolve) => void reflection.listen(0, '127.0.0.1', resolve));
  const url = `http://127.0.0.1:${(reflection.address() as AddressInfo).port}/v1`;
  const gepa = `[gepa]\nreflection_model = "r"\nurl = "${url}"\nat_steps = [1]\nmax_calls = 45\nnum_train = 12\nnum_val = 8\nnum_test = 8\n`;
  const text = smallRun
    .replace('max_steps = 12', 'max_steps = 3')
    .replace('steps = 60', 'steps = 20')
    .replace(/\[eval\][^[]*/, () => gepa);
  const inference = `[inference]\nkind = "openai"\nurl = ${JSON.stringify(server.url)}\n`;
  await writeFile(path.join(project.folder, 'branch.toml'), `${text}\n${inference}`);
  const from = server.sampled.length;
  const handle = await project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: 'branch',
    taskQueue: 'ratchet',
    workflowTaskTimeout: '5s',
    args: ['branch.toml'],
  });
  assert.equal((await handle.result()).step, 3);
  reflection.close();
  const events = await handle.query(eventsQuery, 0);
  assert.match(
    textOf(events, 'warning').join('\n'),
    /v1 is searched from on reverse-text: no training rollout is sampled/,
  );
  assert.match(textOf(events, 'prompt').join('\n'), /prompt for reverse-text from v1/);
  const versions = server.sampled.slice(from);
  assert.deepEqual(new Set(versions).size, versions.length, `it never goes back to a version: ${versions.join(' ')}`);
});

test('when = "pause" leaves servers that hold several versions to an evaluation, too', async () => {
  const handle = await start('paused', 'when = "pause"', 2, { asksItself: true });
  await handle.result();
  const events = await handle.query(eventsQuery, 0);
  const told = textOf(events, 'eval');
  assert.equal(told.length, 2);
  for (const text of told) assert.match(text, /training paused \d+\.\ds for it$/);
  // On a busy machine the GPU worker of the run before takes a while to be free.
  const warnings = textOf(events, 'warning').filter((text) => !text.startsWith('waiting for a GPU worker'));
  assert.deepEqual(warnings, []);
});

test('on_regression = "stop" in a file ends a run that got worse beyond chance', async () => {
  // A higher rate ruins the policy before its second evaluation: one that is always wrong keeps no group.
  const top = 'max_async_level = 0\nlearning_rate = 0.03';
  const handle = await start('ruined', 'on_regression = "stop"', 1_000, { top, asksItself: true });
  const { step } = await handle.result();
  assert.ok(step < 1_000, String(step));
  const events = await handle.query(eventsQuery, 0);
  assert.match(textOf(events, 'regression').at(-1)!, /fell from \d\.\d+ \(v0, the best so far\)/);
  // A policy that learned nothing keeps no group: the step under way would wait for somebody.
  assert.match(textOf(events, 'stopping').join('\n'), /^stopping after step \d+: .*fell from/);
  assert.equal(textOf(events, 'stopped').length, 1);
});

test('a regression that a schedule found pauses the run, or stops it, as the schedule was asked to', async () => {
  const handle = await start('worse', '', 1_000);
  const regression: Regression = {
    best: { name: 'v0', step: 0, reward: 0.5 },
    reward: 0.25,
    difference: { mean: -0.25, low: -0.5, high: -0.125 },
    examples: 16,
    isWorse: true,
    isRepeated: true,
  };
  const found = { environment: 'reverse-text', version: 'v1', step: 1, regression };
  const status = async () => (await handle.query(statusQuery).catch(() => null))?.phase;
  await until('training', async () => (await status()) === 'training');
  await handle.signal(regressionFoundSignal, { ...found, action: 'pause' });
  await until('the pause', async () => (await status()) === 'paused');
  await handle.executeUpdate(resumeUpdate);
  await handle.signal(regressionFoundSignal, { ...found, action: 'stop' });
  await handle.result();
  const events = await handle.query(eventsQuery, 0);
  assert.equal(textOf(events, 'regression').length, 2);
  assert.match(textOf(events, 'paused').join(), /ratchet-rl rewind worse --step 0/);
});
