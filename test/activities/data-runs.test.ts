/** Runs that are trained on rows of `[data]`, through the real activities and the embedded engine. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { FileStore } from '../../store/file-store.ts';
import { OnnxTrainer } from '../../backends/trainer/onnx.ts';
import { keptPermutation } from '../../core/numpy-shuffle.ts';
import { createPreset } from '../../engine/index.ts';
import { openBatch } from '../../runs/rollouts/batches.ts';
import { layout } from '../../runs/layout.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { RunHandle, RunState } from '../../core/rl/run-state.ts';
import { forkRun } from '../../runs/lineages/fork-run.ts';
import { specOf, storeOf } from '../../runs/run-access.ts';
import { trainDrawn } from './drawn-steps.ts';
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

/** Opens the run as `train` does. */
async function open(t: TestContext, text = config, data: readonly object[] = rows): Promise<Project> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-rows-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  await writeFile(path.join(folder, 'run.toml'), text);
  await writeFile(path.join(folder, 'rows.jsonl'), data.map((row) => `${JSON.stringify(row)}\n`).join(''));
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

/** Weights after each step; each is made by a process of its own where `dies`. */
async function play(
  t: TestContext,
  { test }: Project,
  dies: boolean,
): Promise<{ digests: string[]; losses: number[]; measured: string[] }> {
  let roles = engine(t);
  let at: Committed = await commitFirst(test, roles);
  const [digests, losses]: [string[], number[]] = [[], []];
  let measured: string[] = [];
  while (at.state.step < test.spec.maxSteps) {
    if (dies) roles = engine(t);
    const next = await trainDrawn(test, roles, at);
    digests.push(next.state.policy.digest);
    losses.push(next.metrics['loss']!);
    measured = Object.keys(next.metrics);
    at = next;
  }
  return { digests, losses, measured };
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
      assert.ok(!undisturbed.measured.some((name) => name.includes('kl')), undisturbed.measured.join());
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

  test('a step reads, decodes and orders no more than its own rows, however many there are', async (t) => {
    const many = Array.from({ length: 500 }, (_, i) => ({ prompt: `${i}`, completion: `${i * 7919}` }));
    const { test: made } = await open(t, config, many);
    const roles = engine(t);
    const { state } = await commitFirst(made, roles);
    const reads = t.mock.method(FileStore.prototype, 'read');
    const decoded = t.mock.method(JSON, 'parse');
    let [from, drawn] = [{ row: 0, sample: 0 }, 0];
    for (let step = 1; step <= 10; step += 1) {
      const { next, rows } = await act(roles.drawRows, { run: made.run, step, from, policy: state.reference });
      [from, drawn] = [next, drawn + rows];
    }
    const rowsDecoded = decoded.mock.calls.filter(({ arguments: [text] }) => text.startsWith('{"messages"'));
    assert.equal(reads.mock.calls.filter(({ arguments: [key] }) => key === layout.sftData()).length, 0);
    // The row that did not fit is the first of the next step.
    assert.ok(rowsDecoded.length <= drawn + 10, `${rowsDecoded.length} rows decoded of ${drawn}`);
    assert.equal(keptPermutation(500, made.spec.seed), keptPermutation(500, made.spec.seed));
  });

  test('a rewind and a fork draw what the run itself drew; a fork with other rows begins with the first', async (t) => {
    const { folder, test: made } = await open(t, config.replace('interval = 2', 'interval = 1'));
    const roles = openRoles();
    const first = await commitFirst(made, roles);
    assert.equal(first.state.rows, undefined);
    const second = await trainDrawn(made, roles, await trainDrawn(made, roles, first));
    const batchAt = async (run: RunHandle, { rows, reference: policy }: RunState) => {
      const drawn = await act(roles.drawRows, { run, step: 3, from: rows!, policy });
      const batch = await openBatch(run, drawn);
      return [drawn.next, await batch.read([...batch.rows.keys()])];
    };
    const expected = await batchAt(made.run, second.state);

    const { lineage, head } = await roles.beginLineage({ run: made.run, step: 2, request: 'wf/1' });
    assert.deepEqual(head.commit.state.rows, second.state.rows);
    assert.deepEqual(await batchAt({ ...made.run, lineage }, head.commit.state), expected);

    const source = { config: 'run.toml', overrides: {} };
    const forked = async (name: string, change: Partial<RunSpec>) => {
      const spec = { ...made.spec, name, ...change };
      const { commit } = await forkRun({ from: made.run, step: 2, spec, source });
      return { run: { ...made.run, name, spec: commit.spec }, state: commit.state };
    };
    const twig = await forked('twig', { learningRate: 1e-4 });
    await rm(path.join(folder, 'rows.jsonl'));
    assert.deepEqual(await batchAt(twig.run, twig.state), expected);
    const data = made.spec.data!;
    const others = { ...data, rows: { ...data.rows, sha256: '0'.repeat(64) } };
    assert.equal((await forked('others', { data: others })).state.rows, undefined);
    assert.equal((await forked('reseeded', { seed: 99 })).state.rows, undefined);
    assert.deepEqual((await forked('longer', { data: { ...data, seqLen: 50 } })).state.rows, second.state.rows);
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
