/** Commands that steer what runs on a Temporal server, typed by somebody whom the file of roles does not let do that. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { hostname, tmpdir, userInfo } from 'node:os';
import path from 'node:path';
import { after, test, type TestContext } from 'node:test';
import { poolWorkflowId, promptSearchWorkflowId, sweepWorkflowId } from '../../core/names.ts';
import { openCommands } from '../cli/typed.ts';
import { Gate, holdingStep } from './fake-run.ts';
import { until } from './look.ts';
import { begin, closeServer, freshName, openServer } from './server.ts';

after(closeServer);
const typed = openCommands();
const login = `${userInfo().username}@${hostname()}`;

async function projectOf(t: TestContext, role: string): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-roles-'));
  t.after(() => rm(folder, { recursive: true }));
  await writeFile(
    path.join(folder, 'roles.toml'),
    `[users.me]\nrole = "${role}"\nlogins = ["${login}"]\n[users.ann]\nrole = "operator"\n[users.eve]\nrole = "admin"\n`,
  );
  return folder;
}

test("an operator who steers somebody else's run, sweep, search or pool is refused, and nothing of it changes", async (t) => {
  const gate = new Gate();
  const owner = { who: 'ann@laptop', team: null };
  const run = await begin({
    settings: { maxSteps: 1 },
    fakes: { ...holdingStep(gate), openRun: async (_, { usual }) => ({ ...(await usual()), owner }) },
  });
  await gate.reached;
  const { client, environment } = await openServer();
  const sweep = freshName();
  const search = freshName().replaceAll('-', '');
  const idle = { taskQueue: 'nobody-there', args: [{}] };
  const others = [
    await client.workflow.start('sweep', { ...idle, workflowId: sweepWorkflowId(sweep) }),
    await client.workflow.start('optimizePrompt', { ...idle, workflowId: promptSearchWorkflowId('words', search) }),
  ];
  const isListed = async (): Promise<boolean> => {
    const query = "WorkflowType='optimizePrompt' AND ExecutionStatus='Running'";
    for await (const { workflowId } of client.workflow.list({ query })) if (workflowId.endsWith(search)) return true;
    return false;
  };
  await until('the search in the list of workflows', isListed);
  const here = await projectOf(t, 'operator');
  const say = (line: string) => typed(here, line.split(' '), { TEMPORAL_ADDRESS: environment.address });
  const pool = freshName();
  for (const [line, what] of [
    [`pause ${run.name} lunch`, `${run.name} belongs to ann, so pause asks`],
    [`resume ${run.name}`, `${run.name} belongs to ann, so resume asks`],
    [`stop ${run.name}`, `${run.name} belongs to ann, so stop asks`],
    [`stop ${run.name} --now`, `${run.name} belongs to ann, so stop --now asks`],
    [`set ${run.name} learning_rate=0.001`, `${run.name} belongs to ann, so set asks`],
    [`rewind ${run.name} --step 0`, `${run.name} belongs to ann, so rewind asks`],
    [`upgrade ${run.name}`, `${run.name} belongs to ann, so upgrade asks`],
    ['upgrade', 'upgrading all runs asks for the role admin'],
    [`gepa branch ${run.name}`, `${run.name} belongs to ann, so gepa-branch asks`],
    [`gepa adopt ${run.name}`, `${run.name} belongs to ann, so adopt-prompt asks`],
    [`sweep ${sweep} --pause`, `so steering the sweep ${sweep} asks`],
    [`sweep ${sweep} --resume`, `so steering the sweep ${sweep} asks`],
    [`sweep ${sweep} --cancel`, `so steering the sweep ${sweep} asks`],
    [`gepa stop ${search}`, `so steering the search ${search} asks`],
    [`gepa raise ${search} 500`, `so steering the search ${search} asks`],
    [`pool set ${pool} slice=60`, `setting the pool ${pool} asks for the role admin`],
  ] as const) {
    const { code, err } = await say(line);
    assert.equal(code, 1, `${line}: ${err}`);
    assert.ok(err.startsWith('me is an operator (roles.toml): ') && err.includes(what), `${line}: ${err}`);
  }
  const { pausedBecause, phase } = await run.status();
  assert.deepEqual([pausedBecause, phase], [null, 'training']);
  for (const other of others) assert.equal((await other.describe()).status.name, 'RUNNING');
  await assert.rejects(client.workflow.getHandle(poolWorkflowId(pool)).describe(), { name: 'WorkflowNotFoundError' });
  for (const other of others) await other.terminate();
  gate.open();
  await run.result();
});
