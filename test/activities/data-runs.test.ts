/** Runs that are trained on rows of `[data]`, through the real activities and the embedded engine. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { loadRunConfig } from '../../backends/configs/load-run-config.ts';
import { OnnxTrainer } from '../../backends/trainer/onnx.ts';
import { createPreset } from '../../engine/index.ts';
import { openBatch } from '../../runs/batches.ts';
import { specOf, storeOf } from '../../runs/run-access.ts';
import { act, commitFirst, type Committed, openRoles, type Roles, type TestRun } from './runs.ts';

const { tokenizer } = createPreset('preset:reverse-text-0.2m', { seed: 0 });
const words = ['cat', 'dog', 'sun', 'map', 'pen', 'owl', 'ink', 'tea', 'box'];
const rows = words.map((word) => ({ prompt: word, completion: word.split('').reverse().join('') }));
const config = `
model = "preset:reverse-text-0.2m"
max_steps = 4
learning_rate = 3e-3
[data]
name = "./rows.jsonl"
seq_len = 40
batch_size = 2
[checkpoints]
interval = 2
`;

interface Project {
  readonly folder: string;
  readonly test: TestRun;
}

/** As `train` opens it. */
async function open(t: TestContext, text = config): Promise<Project> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-rows-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  await writeFile(path.join(folder, 'run.toml'), text);
  await writeFile(path.join(folder, 'rows.jsonl'), rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  const { handle: run } = await act(
    (name: string) => openRoles(undefined, { projectFolder: folder }).openRun(name, 'rows', 'e1'),
    'run.toml',
  );
  return { folder, test: { run, spec: await specOf(run), store: storeOf(run), folder } };
}

function engine(t: TestContext): Roles {
  const roles = openRoles(undefined, { engine: () => new OnnxTrainer({ threads: 1 }) });
  t.after(() => roles.policyTrainer.close());
  return roles;
}

async function trainNext(
  { run }: TestRun,
  roles: Roles,
  { state, parent }: Committed,
): Promise<Committed & { loss: number }> {
  const step = state.step + 1;
  const from = state.rows ?? { row: 0, sample: 0 };
  const { packed, next } = await act(roles.drawRows, { run, step, from, policy: state.reference });
  const { reference, klBeta, overrides, policy } = state;
  const planned = await roles.planStep({ run, step, attempt: 1, from: policy, reference, klBeta, overrides, packed });
  const trained = await act(roles.trainStep, { run, plan: planned.plan });
  assert.ok(trained.policy, trained.reason);
  const after = { ...state, step, policy: trained.policy, rows: next };
  const { sha256, isPublished } = await roles.commitStep({
    run,
    parent,
    plan: planned.plan,
    optimizer: trained.optimizer,
    pendingAt: trained.pendingAt,
    outcomes: { step, issued: '', ended: {}, pending: '' },
    metrics: {},
    state: after,
  });
  if (!isPublished) await act(roles.publishVersion, { run, policy: trained.policy, optimizer: trained.optimizer });
  if (planned.snapshot) await act(roles.saveCheckpoint, { run, step, pinned: [] });
  return { state: after, parent: sha256, loss: trained.metrics['loss']! };
}

/** Weights after each step; each is made by a process of its own where `dies`. */
async function play(
  t: TestContext,
  { test }: Project,
  dies: boolean,
): Promise<{ digests: string[]; losses: number[] }> {
  let roles = engine(t);
  let at: Committed = await commitFirst(test, roles);
  const [digests, losses]: [string[], number[]] = [[], []];
  while (at.state.step < test.spec.maxSteps) {
    if (dies) roles = engine(t);
    const next = await trainNext(test, roles, at);
    digests.push(next.state.policy.digest);
    losses.push(next.loss);
    at = next;
  }
  return { digests, losses };
}

describe('a run on rows', () => {
  for (const [what, text] of [
    ['all weights', config],
    ['adapters', `${config}[lora]\nr = 4\ndropout = 0.1\n`],
  ] as const) {
    test(`that loses its trainer after every step has the weights of an undisturbed one: ${what}`, async (t) => {
      const undisturbed = await play(t, await open(t, text), false);
      const disturbed = await play(t, await open(t, text), true);
      assert.deepEqual(disturbed.digests, undisturbed.digests);
      assert.equal(new Set(undisturbed.digests).size, 4);
      const [first, , , last] = undisturbed.losses;
      assert.ok(last! < first!, undisturbed.losses.join(', '));
    });
  }

  test('each row is learned once a pass, and drawn again it is the same batch', async (t) => {
    const { test: made } = await open(t, config.replace('seq_len = 40', 'seq_len = 63'));
    const roles = engine(t);
    const { state } = await commitFirst(made, roles);
    const learned: string[] = [];
    let from = { row: 0, sample: 0 };
    for (let step = 1; learned.length < 27; step += 1) {
      const input = { run: made.run, step, from, policy: state.reference };
      const drawn = await act(roles.drawRows, input);
      assert.deepEqual(await act(openRoles().drawRows, input), drawn);
      const batch = await openBatch(made.run, drawn);
      const samples = await batch.read([...batch.rows.keys()]);
      learned.push(
        ...samples.map(({ tokenIds, lossMask }) => tokenizer.decode(tokenIds.filter((_, i) => lossMask[i] === 1))),
      );
      from = drawn.next;
    }
    const all = rows.map(({ completion }) => completion).toSorted();
    const passes = [0, 9, 18].map((first) => learned.slice(first, first + 9));
    for (const pass of passes) assert.deepEqual(pass.toSorted(), all);
    assert.equal(new Set(passes.map((pass) => pass.join())).size, 3);
  });

  test('the rows that a run began with are its rows, whatever becomes of the file', async (t) => {
    const { folder, test: made } = await open(t);
    await rm(path.join(folder, 'rows.jsonl'));
    const { spec, sftRows, warnings } = await loadRunConfig('run.toml', { projectFolder: folder });
    assert.deepEqual([spec.data, sftRows], [made.spec.data, null]);
    assert.match(warnings.join('\n'), /\[data\] name: .*rows\.jsonl has become unreadable since this run began/);
  });

  test('rows without a token of the assistant’s before seq_len are refused by name', async (t) => {
    const { test: made } = await open(t, config.replace('seq_len = 40', 'seq_len = 2'));
    const roles = engine(t);
    const { state } = await commitFirst(made, roles);
    const drawn = act(roles.drawRows, { run: made.run, step: 1, from: { row: 0, sample: 0 }, policy: state.reference });
    await assert.rejects(
      drawn,
      /data\.seq_len: none of the 9 rows of .* has a token of the assistant's among its first 2/,
    );
  });
});
