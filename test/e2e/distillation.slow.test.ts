/** Runs that learn from a teacher: from its log probabilities (opd), or from what it says (sft); and one on an engine of one's own. */
import assert from 'node:assert/strict';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { layout } from '../../runs/layout.ts';
import { randomStream } from '../../core/random.ts';
import type { StepCommit, StepPlan } from '../../core/rl/run-state.ts';
import { openRunStore } from '../../store/index.ts';
import { decodeJson, decodeRows } from '../../store/objects.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import { EngineOptimizer, type PolicyServer, saveModelFolder, startPolicyServer } from '../../engine/index.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { statusQuery } from '../../workflows/control/messages.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { openSmallProject, repositoryFolder, type SmallProject } from './small-run.ts';
import { until } from '../eventually.ts';
import { openBatch } from '../../runs/rollouts/batches.ts';

const optimizer = { beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 };
let project: SmallProject;
let folder: string;
let servers: PolicyServer[] = [];
before(async () => {
  project = await openSmallProject({});
  folder = path.join(project.folder, 'outputs', 'teacher');
  await trainTeacher(folder);
});
after(async () => {
  await project?.close();
  for (const server of servers) await server.close();
});

/** A model of the preset's kind that writes words of three letters backwards, and is not sure of every letter. */
async function trainTeacher(to: string): Promise<void> {
  const engine = await EngineOptimizer.open('preset:reverse-text-0.2m', { threads: 1, seed: 77 });
  const { tokenizer, config } = engine.model;
  const random = randomStream('teacher');
  const letterOf = (drawn: number): string => String.fromCharCode(97 + Math.floor(drawn * 26));
  const row = () => {
    const word = Array.from({ length: 3 }, () => letterOf(random()));
    const prompt = tokenizer.renderChat([{ role: 'user', content: word.join('') }]);
    const isWrong = random() < 0.5;
    const said = word.toReversed().map((letter) => (isWrong && random() < 0.5 ? letterOf(random()) : letter));
    const answer = [...tokenizer.encode(said.join('')), config.endTokenIds[0]!];
    return { tokenIds: [...prompt, ...answer], lossMask: [...prompt.map(() => 0), ...answer.map(() => 1)] };
  };
  for (let step = 0; step < 120; step++) {
    const learningRate = 4e-3 * (1 - step / 144);
    await engine.sftStep(Array.from({ length: 64 }, row), { learningRate, optimizer });
  }
  await mkdir(to, { recursive: true });
  await saveModelFolder(engine.model, to);
  await engine.close();
}

/** The teacher behind an OpenAI-compatible server of its own. */
async function serveTeacher(port: number): Promise<void> {
  const server = await startPolicyServer({ key: null, host: '127.0.0.1', port, allowRoots: [folder], threads: 1 });
  servers = [...servers, server];
  const body = JSON.stringify({ name: 'teacher', weight_dir: folder });
  const headers = { 'content-type': 'application/json' };
  assert.equal((await fetch(`${server.url}/update_weights`, { method: 'POST', body, headers })).status, 200);
}

async function start(name: string, steps: number, more: string, learningRate = 2e-3) {
  const text = `
model = "preset:reverse-text-0.2m"
max_steps = ${steps}
batch_size = 128
rollouts_per_example = 1
learning_rate = ${learningRate}
max_async_level = 0
${more}
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 3 }
[checkpoints]
interval = 4
`;
  await writeFile(path.join(project.folder, `${name}.toml`), text);
  return project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: 'ratchet',
    workflowTaskTimeout: '5s',
    args: [`${name}.toml`],
  });
}

const storeOf = (run: string) => openRunStore(`file:${path.join(project.folder, 'outputs')}/`, run);

async function planOf(run: string, step: number): Promise<StepPlan> {
  const { plan } = (await project.commit(run, step))!;
  return decodeJson<StepPlan>(await storeOf(run).get(plan!), plan!.key);
}

async function metric(run: string, steps: number, name: string): Promise<number[]> {
  const commits: (StepCommit | null)[] = [];
  for (let step = 1; step <= steps; step++) commits.push(await project.commit(run, step));
  return commits.map((commit) => commit?.metrics[name] ?? NaN);
}

const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;

test('on-policy distillation brings the policy towards a teacher in a folder, to the same bits when the trainer is killed', async () => {
  const more = `loss = "opd"\nteacher = { model = "./outputs/teacher" }\n[sampling]\nmax_tokens = 6`;
  const undisturbed = await start('opd', 12, more);
  const { ledger } = await undisturbed.result();
  assert.equal(ledger.isSound, true);
  assert.equal(ledger.counts['trained'], 12 * 128, 'no group is left out because its rewards are equal');

  const kl = await metric('opd', 12, 'train/teacher_kl');
  assert.ok(
    mean(kl.slice(-3)) < 0.8 * mean(kl.slice(0, 3)),
    `KL to the teacher: ${kl.map((one) => one.toFixed(2)).join(' ')}`,
  );

  const plan = await planOf('opd', 3);
  assert.match(plan.taught?.teacher ?? '', /^teacher:weights:[0-9a-f]{16}$/);
  const batch = await openBatch({ name: 'opd', store: `file:${path.join(project.folder, 'outputs')}/` }, plan);
  for (const { tokenIds, teacherLogprobs } of await batch.read([...batch.rows.keys()]))
    assert.equal(teacherLogprobs?.length, tokenIds.length);

  const disturbed = await start('opd-killed', 12, more);
  await until('step 5', () => project.commit('opd-killed', 5));
  process.kill(project.stack.pids()['train worker']!, 'SIGKILL');
  const ended = await disturbed.result();
  assert.equal(ended.policyDigest, (await undisturbed.result()).policyDigest);
});

test('a teacher’s server that is away is waited for by name, and what it says is asked for once it is there', async () => {
  const port = await choosePort(0);
  const teacher = `teacher = { model = "teacher", url = "http://127.0.0.1:${port}" }`;
  const handle = await start('away', 2, `loss = "opd"\n${teacher}\n[sampling]\nmax_tokens = 6`);
  for (;;) {
    const status = await handle.query(statusQuery).catch(() => null); // no handler before the run is open
    if (status?.waitingOn.some(({ what }) => what.startsWith('ask the teacher, step 1: 128 rows'))) break;
    await delay(100);
  }
  await serveTeacher(port);
  assert.equal((await handle.result()).step, 2);
  assert.equal((await planOf('away', 1)).taught?.teacher, `teacher at http://127.0.0.1:${port}`);
});

test('the policy learns to say what a stronger endpoint says, of its good answers alone', async () => {
  const port = await choosePort(0);
  await serveTeacher(port);
  const more = `loss = "sft"
[sampling]
max_tokens = 6
[teacher]
model = "teacher"
url = "http://127.0.0.1:${port}/v1"
[[pre_batch_filters]]
type = "low_reward"
min_reward = 0.3`;
  const handle = await start('sft', 8, more, 5e-3);
  const { ledger } = await handle.result();
  assert.equal(ledger.isSound, true);
  assert.ok((ledger.counts['filtered'] ?? 0) > 0, 'what the teacher got wrong is not learned');
  const loss = await metric('sft', 8, 'train/loss');
  assert.ok(
    mean(loss.slice(-2)) < mean(loss.slice(0, 2)) - 0.1,
    `cross entropy: ${loss.map((one) => one.toFixed(2)).join(' ')}`,
  );
  const plan = await planOf('sft', 2);
  assert.equal(plan.loss.type, 'cross_entropy');

  const store = storeOf('sft');
  const [key] = (await store.list('rollouts/step_2/')).filter((one) => layout.isScored(one));
  const groups = decodeRows<ScoredGroup>((await store.read(key!))!, key!);
  const { turns, reward } = groups.flatMap(({ rollouts }) => rollouts)[0]!;
  const end = 1; // of the preset's vocabulary
  assert.equal(turns[0]!.tokenIds.at(-1), end, 'a turn ends as the policy’s own do');
  assert.ok(turns[0]!.tokenIds.length === turns[0]!.text.length + 1 && reward !== null);
});

test('the engine of docs/guide/adapters.md, a table that a page of TypeScript trains and samples, learns to write words backwards', async () => {
  const own = path.join(repositoryFolder, 'configs/own-engine');
  const text = await readFile(path.join(own, 'my-engine.toml'), 'utf8');
  const here = text.replace('max_steps = 40', 'max_steps = 12').replaceAll('"./my-', `"${own}/my-`);
  await writeFile(path.join(project.folder, 'my-engine.toml'), here);
  const handle = await project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: 'my-engine',
    taskQueue: 'ratchet',
    args: ['my-engine.toml'],
  });
  assert.equal((await handle.result()).step, 12);
  const rewards = await metric('my-engine', 12, 'train/reward');
  assert.ok(rewards.at(-1)! > rewards[0]! + 0.15, rewards.map((reward) => reward.toFixed(2)).join(' '));
});
