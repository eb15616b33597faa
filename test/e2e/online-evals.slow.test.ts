/**
 * Evaluations beside training: whatever dies, each is paid for once; a rewind abandons those of later steps; a schedule
 * finds the newest.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import type { WorkflowHandle } from '@temporalio/client';
import type { EvaluatedNewest } from '../../workflows/evaluate-newest.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { openSmallProject, repositoryFolder, smallRun, type SmallProject } from './small-run.ts';
import { eventually, until } from '../eventually.ts';

const environment = 'reverse-text';
const evaluated = smallRun.replace('num_examples = 16', 'num_examples = 200\nrollouts_per_example = 2');

let project: SmallProject;
before(async () => {
  project = await openSmallProject({
    'whole.toml': evaluated,
    'killed.toml': evaluated,
    'rewound.toml': evaluated.replace('[eval]\ninterval = 6', '[eval]\ninterval = 4'),
  });
});
after(() => project?.close());

type Run = WorkflowHandle<typeof trainRun>;
const start = (name: string): Promise<Run> =>
  project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: 'ratchet',
    workflowTaskTimeout: '5s',
    args: [`${name}.toml`],
  });

async function untilEvaluating(run: string, version: string): Promise<void> {
  const handle = project.client.workflow.getHandle(`${run}.eval.${environment}.${version}`);
  await until(`the evaluation of ${version}`, () => handle.describe().catch(() => null));
}

async function lines(run: string, key: string): Promise<Record<string, unknown>[]> {
  const text = await readFile(path.join(project.folder, 'outputs', run, key), 'utf8');
  return text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>);
}

/** Rows of the run's metrics with evaluations: the same whatever was killed, at async level 0. */
async function evalRows(run: string): Promise<Record<string, unknown>[]> {
  const rows = (await lines(run, 'metrics.jsonl')).filter((row) => `eval/${environment}/policy_version` in row);
  return rows.sort((a, b) => Number(a['step']) - Number(b['step']));
}

test('an orchestrator that is killed during an evaluation changes none of its figures, and nothing is sampled twice', async () => {
  const whole = await (await start('whole')).result();
  const handle = await start('killed');
  for (const version of ['v0', 'v6']) {
    await untilEvaluating('killed', version);
    process.kill(project.stack.pids()['orchestrator worker']!, 'SIGKILL');
  }
  const killed = await handle.result();
  assert.equal(killed.policyDigest, whole.policyDigest);
  const rows = await evalRows('killed');
  assert.deepEqual(
    rows.map(({ step }) => step),
    [0, 6, 12],
  );
  assert.deepEqual(rows, await evalRows('whole'));
  for (const { step } of rows) {
    const results = await lines('killed', `evals/${environment}--killed/step_${String(step)}/results.jsonl`);
    const places = results.map(({ example_id, ratchet }) =>
      JSON.stringify([example_id, (ratchet as { index: number }).index]),
    );
    assert.equal(new Set(places).size, 400);
    assert.equal(places.length, 400);
  }
  assert.ok((rows[0]![`eval/${environment}/pass@2`] as number) >= (rows[0]![`eval/${environment}/pass@1`] as number));
});

test('a rewind during an evaluation leaves it behind, and evaluates no earlier step again', async () => {
  const handle = await start('rewound');
  await untilEvaluating('rewound', 'v8');
  await handle.executeUpdate('rewind', { args: [4] });
  const { evals } = await handle.result();
  assert.ok(evals.some(({ step }) => step === 12));
  const folder = path.join(project.folder, 'outputs/rewound');
  const attempts = await readdir(path.join(folder, `evals/${environment}--rewound/step_4/evaluation`));
  assert.equal(attempts.filter((name) => name.startsWith('attempt_')).length, 1);
  const later = await readdir(path.join(folder, `lineages/l2/evals/${environment}--rewound`));
  assert.deepEqual(later.filter((name) => !name.includes('greedy')).sort(), ['step_12', 'step_8']);
  const left = await project.client.workflow.getHandle(`rewound.eval.${environment}.v8`).describe();
  assert.ok(['CANCELLED', 'COMPLETED'].includes(left.status.name), left.status.name);
});

test('a schedule, triggered, evaluates the newest checkpoint of a run, and is listed, paused, resumed and taken down', async () => {
  const ratchet = async (...args: readonly string[]): Promise<string> => {
    const environmentOfIt = { ...process.env, TEMPORAL_ADDRESS: project.stack.temporalAddress };
    const program = path.join(repositoryFolder, 'cli/ratchet.mjs');
    const { stdout } = await promisify(execFile)(process.execPath, [program, 'eval', 'schedule', ...args], {
      cwd: project.folder,
      env: environmentOfIt,
    });
    return stdout;
  };
  await assert.rejects(ratchet('--run', 'whole', '--cron', '61 * * * *'), {
    stderr: /^--cron "61 \* \* \* \*": expected minute, hour, .*Minute is not in range[^\n]*\n$/,
  });
  assert.match(
    await ratchet('--run', 'whole', '--every', '6h'),
    /^eval\.whole: the newest checkpoint of whole on its \[eval\]/,
  );
  await ratchet('trigger', 'eval.whole');
  const workflowId = await eventually(
    'what the schedule started',
    async () => (await project.client.schedule.getHandle('eval.whole').describe()).info.recentActions.at(-1),
    (action) => action !== undefined,
  ).then((action) => action!.action.workflow.workflowId);
  const { step, results } = (await project.client.workflow.getHandle(workflowId).result()) as EvaluatedNewest;
  assert.equal(step, 12);
  assert.deepEqual(
    results.map(({ rollouts, sampled }) => [rollouts, sampled]),
    [[400, 0]],
    'the run had evaluated it itself: nothing is sampled again',
  );
  assert.match(await ratchet('list'), /eval\.whole .*\n.* · last .* v12 reverse-text \d\.\d{3}/);
  await ratchet('pause', 'eval.whole');
  assert.match(await ratchet('list'), /next paused/);
  await ratchet('resume', 'eval.whole');
  await ratchet('delete', 'eval.whole');
  assert.match(await ratchet('list'), /^no schedules/);
});
