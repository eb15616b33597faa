/** A run of an agent whose workers, programs and sandboxes are killed: what is left of it, and what it trained. */
import assert from 'node:assert/strict';
import { cp, readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { openSandboxProvider } from '../../backends/sandboxes/index.ts';
import { thisWorker } from '../../host/worker-process.ts';
import { sweepSandboxes } from '../../play/sandboxes/sweep.ts';
import { LeaseStore } from '../../runs/sandboxes/lease-store.ts';
import { StoredSnapshots } from '../../runs/sandboxes/stored-snapshots.ts';
import { resolveStoreUri } from '../../store/index.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { canSandbox, missingSandbox } from '../environments/sandbox-here.ts';
import { until } from '../eventually.ts';
import { openSmallProject, repositoryFolder, type SmallProject } from './small-run.ts';

const skip = (await canSandbox()) ? false : missingSandbox;
const run = `
model = "preset:chars-0.4m"
max_steps = 3
batch_size = 16
rollouts_per_example = 4
max_async_level = 0
max_concurrent = 4
learning_rate = 1e-3
[sampling]
max_tokens = 2
[[env]]
id = "repair"
kind = "agent"
command = ["python3", "agent.py"]
tasks = "./repair/tasks.jsonl"
deterministic = true
max_retries = 20
[env.sandbox]
files = "./repair/agent.py"
[env.score]
command = ["python3", "score.py"]
files = "./repair/score.py"
[sft]
data = "./repair/demonstrations.jsonl"
steps = 20
batch_size = 16
learning_rate = 3e-3
`;

let project: SmallProject;
before(async () => {
  if (skip !== false) return;
  project = await openSmallProject({ 'undisturbed.toml': run, 'disturbed.toml': run });
  await cp(path.join(repositoryFolder, 'configs/agents/repair'), path.join(project.folder, 'repair'), { recursive: true }); // prettier-ignore
});
after(() => project?.close());

test(
  'killed workers, programs and sandboxes leave the same weights, an exact ledger and no sandbox',
  { skip },
  async (t) => {
    const undisturbed = await (await start('undisturbed')).result();
    assert.ok(undisturbed.ledger.isSound, JSON.stringify(undisturbed.ledger));
    const handle = await start('disturbed');
    const result = handle.result();
    const over = { is: false };
    void result.finally(() => (over.is = true));
    const killing = killNowAndThen(over);
    await until('step 1 of disturbed', () => project.commit('disturbed', 1));
    process.kill(project.stack.pids()['rollout worker']!, 'SIGKILL');
    const disturbed = await result;
    const killed = await killing;
    t.diagnostic(`killed a worker, ${killed.program} programs and ${killed.sandbox} sandboxes`);
    assert.ok(killed.program > 0 && killed.sandbox > 0, JSON.stringify(killed));
    assert.ok(disturbed.ledger.isSound, JSON.stringify(disturbed.ledger));
    assert.deepEqual(disturbed.ledger.counts, undisturbed.ledger.counts);
    assert.equal(disturbed.policyDigest, undisturbed.policyDigest, 'the same bits as the undisturbed run');

    const leases = new LeaseStore(resolveStoreUri('outputs', project.folder));
    const snapshots = new StoredSnapshots(leases, thisWorker());
    const open = (spec: Parameters<typeof openSandboxProvider>[0]) => openSandboxProvider(spec, snapshots);
    await sweepSandboxes({ leases, snapshots, open, isWorkflowRunning: () => Promise.resolve(false), settleMs: 0 });
    assert.deepEqual(await leases.readOpen(), []);
    for (const [, spec] of await leases.pools()) {
      const provider = await open(spec);
      assert.deepEqual(await provider.list(await leases.project()), []);
      await provider.close();
    }
  },
);

/** Kills a program, then a sandbox, and so on, until the run is over. */
async function killNowAndThen(over: { readonly is: boolean }): Promise<Record<'program' | 'sandbox', number>> {
  const killed = { program: 0, sandbox: 0 };
  for (let turn = 0; !over.is; turn++) {
    await delay(1_500);
    const kind = turn % 2 === 0 ? 'program' : 'sandbox';
    let pid: number | undefined;
    // A program lives for less than a second: it is waited for.
    while (pid === undefined && !over.is) {
      [pid] = await processesOf(kind === 'program' ? 'agent.py' : 'supervisor.py');
      if (pid === undefined) await delay(20);
    }
    if (pid === undefined) break;
    try {
      process.kill(pid, 'SIGKILL');
      killed[kind]++;
    } catch {
      // It has ended by itself meanwhile.
    }
  }
  return killed;
}

/** Descendants of this project's rollout worker that run a file. */
async function processesOf(file: string): Promise<number[]> {
  const worker = project.stack.pids()['rollout worker'];
  const parents = new Map<number, number>();
  const found: number[] = [];
  for (const name of (await readdir('/proc')).filter((one) => /^\d+$/.test(one))) {
    const stat = await readFile(`/proc/${name}/stat`, 'utf8').catch(() => '');
    const words = (await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '')).split('\0');
    parents.set(Number(name), Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]));
    if (words.some((word) => path.basename(word) === file) && /python/.test(words[0] ?? '')) found.push(Number(name));
  }
  const isOurs = (pid: number | undefined): boolean =>
    pid !== undefined && pid > 1 && (pid === worker || isOurs(parents.get(pid)));
  return found.filter(isOurs);
}

async function start(name: string) {
  return project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: 'ratchet',
    args: [`${name}.toml`],
  });
}
