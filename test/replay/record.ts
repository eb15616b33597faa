import { writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import type { WorkflowHandle } from '@temporalio/client';
import proto from '@temporalio/proto';
import { startContentServer } from '../../bench/content-server.ts';
import { planSweep } from '../../cli/sweep/plan-sweep.ts';
import { sweepWorkflowId } from '../../core/names.ts';
import type { SweepStatus } from '../../core/sweep/sweep.ts';
import { openSmallProject, smallRun } from '../e2e/small-run.ts';
import { until } from '../workflows/look.ts';

/**
 * Records the histories that `replay.test.ts` replays: `npm run record:history`, with names behind `--` for those alone.
 * A change of a workflow that gives its commands another order is recorded anew.
 */
const server = await startContentServer({ varies: 'session' });
const evaluations = `
model = "mock"
api_base_url = "${server.url}/v1"
num_examples = 60
max_concurrent = 30
[[eval]]
id = "reverse-text"
`;
const prompts = `
model = "mock"
api_base_url = "${server.url}/v1"
[[env]]
env_id = "reverse-text"
[gepa]
max_calls = 60
num_train = 20
num_val = 10
num_test = 4
`;
/** Two rungs: one row of two goes on from its commit at step 1. The other's rate breaks the policy. */
const halving = `
[sweep]
run = "sweep-run.toml"
metric = "eval/reverse-text/reward/mean"
[sweep.settings]
learning_rate = [1e-3, 0.3]
[sweep.halving]
eta = 2
min_steps = 1
`;
const shapes = {
  'on-policy': { type: 'trainRun', text: smallRun },
  'async-1': {
    type: 'trainRun',
    text: smallRun.replace('max_async_level = 0', 'max_async_level = 1').replace('max_steps = 12', 'max_steps = 6'),
  },
  /** Its rounds are played by a workflow of their own. */
  'async-2': {
    type: 'trainRun',
    text: smallRun.replace('max_async_level = 0', 'max_async_level = 2').replace('max_steps = 12', 'max_steps = 6'),
  },
  /** A file, whose evaluation is a child. */
  'evaluate-file': { type: 'evaluate', text: evaluations },
  'leased-search': { type: 'optimizePrompt', text: prompts },
  /** Paused and resumed in its first rung. */
  halving: { type: 'sweep', text: halving },
} as const;
/** Children that are recorded with their parents. */
const children: Readonly<Record<string, { readonly type: string; readonly name: string }>> = {
  'evaluate-file': { type: 'evaluate', name: 'evaluate' },
  'async-2': { type: 'playRounds', name: 'play-rounds' },
};

const asked = process.argv.slice(2);
const chosen = Object.entries(shapes).filter(([name]) => asked.length === 0 || asked.includes(name));
const files = Object.fromEntries(chosen.map(([name, { text }]) => [`${name}.toml`, text]));
const sweepRun = smallRun.replace('max_steps = 12', 'max_steps = 2');
const project = await openSmallProject({ ...files, 'sweep-run.toml': sweepRun });
try {
  for (const [name, { type }] of chosen) {
    if (type === 'sweep') {
      await recordSweep(name);
      continue;
    }
    const args = { workflowId: name, taskQueue: 'ratchet', args: [`${name}.toml`] };
    const handle = await project.client.workflow.start(type, args);
    await handle.result();
    await keep(name, name);
    const child = children[name];
    if (child === undefined) continue;
    for await (const { workflowId } of project.client.workflow.list({ query: `WorkflowType='${child.type}'` })) {
      if (workflowId.startsWith(`${name}.`)) await keep(workflowId, child.name);
    }
  }
} finally {
  await project.close();
  await server.close();
}

/** The sweep, and the execution of a run of its that continues from the commit of the rung before. */
async function recordSweep(name: string): Promise<void> {
  const { input } = await planSweep(`${name}.toml`, { projectFolder: project.folder, yes: true, say: () => undefined });
  const workflowId = sweepWorkflowId(name);
  const handle = await project.client.workflow.start('sweep', { workflowId, taskQueue: 'ratchet', args: [input] });
  await until('the first run trains', async () => (await stateOfFirst(handle)) === 'training');
  await handle.executeUpdate('pause', { args: ['to be recorded'] });
  await until('the first run at its rung', async () => (await stateOfFirst(handle)) === 'at its rung');
  await handle.executeUpdate('resume');
  const { runs } = (await handle.result()) as SweepStatus;
  await keep(workflowId, workflowId);
  const { name: winner } = runs.find(({ state }) => state === 'finished')!;
  await keep(winner, winner);
}

async function stateOfFirst(handle: WorkflowHandle): Promise<string> {
  return (await handle.query<SweepStatus>('status')).runs[0]!.state;
}

async function keep(workflowId: string, name: string): Promise<void> {
  const history = await project.client.workflow.getHandle(workflowId).fetchHistory();
  const bytes = proto.temporal.api.history.v1.History.encode(history).finish();
  await writeFile(fileURLToPath(new URL(`./${name}.history.bin`, import.meta.url)), bytes);
  process.stdout.write(`${name}: ${history.events?.length ?? 0} events, ${bytes.byteLength} bytes\n`);
}
