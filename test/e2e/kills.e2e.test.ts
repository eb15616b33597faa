import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { nothingLost } from '../../core/rl/lost-work.ts';
import { eventsQuery } from '../../workflows/control/messages.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import { definitionOf, metricDefinitions } from '../docs/metric-page.ts';
import { openSmallProject, smallRun, type SmallProject } from './small-run.ts';
import { until } from '../eventually.ts';

let project: SmallProject;
before(async () => {
  project = await openSmallProject({ 'undisturbed.toml': smallRun, 'disturbed.toml': smallRun });
});
after(() => project?.close());

let undisturbed: RunSummary;

test('a run started with nothing but the path of its file trains to the end with an exact ledger', async () => {
  undisturbed = await start('undisturbed').then((handle) => handle.result());
  assert.equal(undisturbed.step, 12);
  assert.ok(undisturbed.ledger.isSound, JSON.stringify(undisturbed.ledger));
  assert.ok((undisturbed.ledger.counts['trained'] ?? 0) > 0);
  assert.deepEqual(
    undisturbed.evals.map(({ step }) => step).sort((a, b) => a - b),
    [0, 6, 12],
  );
  const { ettr, lost, steps } = undisturbed.effectiveness;
  assert.deepEqual([lost, steps], [nothingLost, 12]);
  assert.ok(ettr! > 0.5 && ettr! <= 1, `ETTR ${ettr}`); // a busy machine may disturb it
  assert.match(
    await lastLine('undisturbed'),
    /^finished at step 12 of 12 · effective training time \(ETTR\) [01]\.\d\d · no recoveries(?: · not effective: .*)?$/,
  );
});

test('a run writes no metric that docs/guide/metrics.md lacks, and every one there unless it says when', async () => {
  const rows = (await readFile(path.join(project.folder, 'outputs/undisturbed/metrics.jsonl'), 'utf8'))
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>);
  const ofRow = new Set(['step', 'lineage', 'time']);
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((name) => !ofRow.has(name));
  const environments = ['reverse-text'];
  assert.deepEqual(
    names.filter((name) => definitionOf(name, environments) === undefined),
    [],
    'metrics that docs/guide/metrics.md does not define',
  );
  const written = new Set(names.map((name) => definitionOf(name, environments)?.name));
  const missing = metricDefinitions.filter(({ name, when }) => when === '' && !written.has(name));
  assert.deepEqual(
    missing.map(({ name }) => name),
    [],
    'metrics that are defined without saying when, and that the run did not write',
  );
});

test('a run whose every process is killed once ends with the same weights, and nothing is trained twice', async (t) => {
  const handle = await start('disturbed');
  const victims: [step: number, name: string][] = [
    [1, 'rollout worker'],
    [3, 'train worker'],
    [5, 'policy server'],
    [7, 'orchestrator worker'],
    [9, 'Temporal server'],
  ];
  for (const [step, name] of victims) {
    await untilCommitted('disturbed', step);
    const pid = project.stack.pids()[name];
    assert.ok(pid, `${name} is running`);
    process.kill(pid, 'SIGKILL');
  }
  const summary = await handle.result();
  assert.equal(summary.step, 12);
  assert.ok(summary.ledger.isSound, JSON.stringify(summary.ledger));
  assert.deepEqual(summary.ledger.counts, undisturbed.ledger.counts);
  assert.equal(summary.policyDigest, undisturbed.policyDigest, 'the same bits as the undisturbed run');
  const { ettr, lost } = summary.effectiveness;
  assert.ok(ettr! > 0 && ettr! <= 1, `ETTR ${ettr}`);
  assert.ok(lost.recoveries >= 1 && lost.seconds > 0, JSON.stringify(lost));
  assert.match(
    await lastLine('disturbed'),
    /\(ETTR\) 0\.\d\d · \d+ recover(y|ies) · lost in flight: \d+ rollouts?, [\d,]+ tokens?, /,
  );
  t.diagnostic(await lastLine('disturbed'));
  for (const [, name] of victims) {
    assert.ok((project.stack.restarts()[name] ?? 0) >= 1, `${name} was started again: ${project.log.join(' | ')}`);
  }
});

async function start(name: string) {
  return project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: 'ratchet',
    args: [`${name}.toml`],
  });
}

async function lastLine(run: string): Promise<string> {
  const events = await project.client.workflow.getHandle(run).query(eventsQuery, 0);
  return events.at(-1)?.text ?? '';
}

async function untilCommitted(run: string, step: number): Promise<void> {
  await until(`step ${step} of ${run}`, () => project.commit(run, step));
}
