/** Versions of several files, and optimizer states that are folders: kept, restored, forked and examined as those of one file are. */
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import type { AnyTrainer } from '../../backends/trainer/index.ts';
import { RatchetError } from '../../core/errors.ts';
import type { OptimizerState } from '../../core/rl/run-state.ts';
import { presetFiles } from '../../engine/index.ts';
import { layout } from '../../runs/layout.ts';
import { examineStore } from '../../runs/lineages/examine-store.ts';
import { forkRun } from '../../runs/lineages/fork-run.ts';
import { RestorableSteps } from '../../runs/lineages/restorable-steps.ts';
import { requireCommit, storeOf } from '../../runs/run-access.ts';
import { listCheckpoints } from '../../runs/versions/list-checkpoints.ts';
import { sha256 } from '../../store/file-store.ts';
import { encodeJson } from '../../store/objects.ts';
import {
  act,
  advance,
  ChainTrainer,
  commitFirst,
  damage,
  makeRun,
  openRoles,
  placeOf,
  planNext,
} from '../activities/runs.ts';

const shards = ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'] as const;
const index = 'model.safetensors.index.json';

/** The chain of hashes in two files and an index, its moments in a folder of two files with a list. */
function shardedTrainer(): AnyTrainer {
  const chain = new ChainTrainer();
  return {
    async open(folder) {
      const parts = await Promise.all(
        shards.map((name) => readFile(path.join(folder, name), 'utf8').catch(() => null)),
      );
      if (parts.includes(null)) return chain.open(folder);
      const whole = await mkdtemp(path.join(tmpdir(), 'ratchet-whole-'));
      await writeFile(path.join(whole, 'model.safetensors'), parts.join(''));
      const opened = await chain.open(whole);
      await rm(whole, { recursive: true });
      return opened;
    },
    trainStep: (input) => chain.trainStep(input),
    sftStep: (input) => chain.sftStep(input),
    digest: () => chain.digest(),
    async exportTo(folder) {
      const half = chain.weights.length >> 1;
      await writeFile(path.join(folder, 'config.json'), '{}');
      await writeFile(path.join(folder, shards[0]), chain.weights.slice(0, half));
      await writeFile(path.join(folder, shards[1]), chain.weights.slice(half));
      await writeFile(path.join(folder, index), JSON.stringify({ weight_map: { a: shards[0], b: shards[1] } }));
    },
    async saveOptimizer(folder): Promise<OptimizerState> {
      const files: Record<string, { bytes: number; sha256: string }> = {};
      for (const [name, content] of Object.entries({ '.metadata': 'list', '__0_0.distcp': chain.moments })) {
        await writeFile(path.join(folder, name), content);
        files[name] = { bytes: content.length, sha256: sha256(Buffer.from(content)) };
      }
      await writeFile(path.join(folder, 'optimizer.json'), JSON.stringify({ schemaVersion: 1, files }));
      return { folder };
    },
    async restoreOptimizer(state) {
      if (state === null) return chain.restoreOptimizer(null);
      assert.ok(!(state instanceof Uint8Array), 'a folder is opened as one');
      return chain.restoreOptimizer(await readFile(path.join(state.folder, '__0_0.distcp')));
    },
    close: () => chain.close(),
  };
}

const processOf = (stages: boolean) => openRoles(undefined, { stages, engine: shardedTrainer });

/** Checkpoints 0, 2 and 4, and the head, 5. */
async function fiveSteps(t: TestContext, stages = true) {
  const test = await makeRun(t);
  const roles = processOf(stages);
  const made = [await commitFirst(test, roles)];
  while (made.length < 6) made.push(await advance(test, roles, made.at(-1)!));
  return { test, made };
}

for (const stages of [true, false]) {
  test(`a version of several files and a state of several are ${stages ? 'moved to' : 'uploaded to'} their places, the list of each last`, async (t) => {
    const { test, made } = await fiveSteps(t, stages);
    const { policy } = made[4]!.state;
    assert.equal(policy.file.key, `${layout.weights('main', 4)}${index}`);
    const keys = await test.store.list(policy.weights);
    assert.deepEqual(
      keys.map((key) => key.slice(policy.weights.length)).sort(),
      ['SHA256SUMS', 'config.json', ...shards, index].sort(),
    );
    const checkpoint = layout.checkpoint('main', 4);
    assert.deepEqual(await test.store.list(checkpoint), [
      `${checkpoint}manifest.json`,
      `${checkpoint}optimizer/.metadata`,
      `${checkpoint}optimizer/__0_0.distcp`,
      `${checkpoint}optimizer/optimizer.json`,
    ]);
    const { optimizer } = (await requireCommit(test.run, 4)).commit;
    assert.equal(optimizer?.key, `${checkpoint}optimizer/optimizer.json`);
    const report = (await listCheckpoints(test.run)).checkpoints.find(({ step }) => step === 4)!;
    const sizes = await Promise.all(
      [
        ...keys.filter((key) => key.endsWith('.safetensors')),
        ...(await test.store.list(`${checkpoint}optimizer/`)),
      ].map(async (key) => (await test.store.read(key))!.byteLength),
    );
    assert.deepEqual([report.state, report.bytes], ['sealed', sizes.reduce((sum, size) => sum + size, 0)]);
    assert.deepEqual((await examineStore(test.run)).faults, []);
    // Another process goes on from there to the very same weights.
    const recovery = await processOf(stages).policyTrainer.bringTo(test.run, made[5]!.state.policy);
    assert.deepEqual([placeOf(recovery).restoredFrom, recovery?.differs], [4, null]);
  });
}

test('a changed or missing file of a version or of a state is named, and an earlier checkpoint is restored', async (t) => {
  const { test, made } = await fiveSteps(t);
  const weights = layout.weights('main', 4);
  const optimizer = `${layout.checkpoint('main', 4)}optimizer/`;
  const keys = [
    ...[...shards, index].map((name) => weights + name),
    ...['.metadata', '__0_0.distcp', 'optimizer.json'].map((name) => optimizer + name),
  ];
  for (const key of keys) {
    const file = path.join(test.folder, key);
    const whole = await readFile(file);
    for (const harm of [() => damage(test, key), () => rm(file)]) {
      await harm();
      const recovery = await processOf(true).policyTrainer.bringTo(test.run, made[5]!.state.policy);
      assert.equal(placeOf(recovery).restoredFrom, 2, key);
      assert.ok(recovery!.damaged.join('\n').includes(key), recovery!.damaged.join('\n'));
      const found = (await listCheckpoints(test.run)).checkpoints.find(({ step }) => step === 4)!;
      assert.equal(found.state, 'damaged');
      assert.ok(found.problem?.includes(key), found.problem ?? '');
      assert.equal((await (await RestorableSteps.of(test.run)).at(4))?.checkpoint, 2);
      await writeFile(file, whole);
    }
  }
});

test('a fork has its own copy of all files, and makes the very same steps', async (t) => {
  const { test, made } = await fiveSteps(t);
  await test.store.put(layout.run(), encodeJson({ schemaVersion: 1, name: test.run.name, spec: test.spec }));
  const place = { store: test.run.store, lineage: 'main', name: 'twig' };
  const { commit } = await forkRun({
    from: test.run,
    step: 4,
    spec: { ...test.spec, name: 'twig' },
    source: { config: 'words.toml', overrides: {} },
  });
  await rm(test.folder, { recursive: true });
  const store = storeOf(place);
  assert.equal(commit.policy.file.key, `${layout.weights('main', 4)}${index}`);
  assert.equal(commit.optimizer?.key, `${layout.checkpoint('main', 4)}optimizer/optimizer.json`);
  const there = (await listCheckpoints(place)).checkpoints;
  assert.deepEqual(
    there.map(({ step, state }) => [step, state]),
    [[4, 'sealed']],
  );
  const run = { ...test.run, name: 'twig', spec: commit.spec };
  const twig = { ...test, run, store, folder: path.join(path.dirname(test.folder), 'twig') };
  const head = await requireCommit(run, 4);
  const next = await advance(twig, processOf(true), { state: head.commit.state, parent: head.sha256 });
  assert.equal(next.state.policy.digest, made[5]!.state.policy.digest);
});

test('a disk that was full while a version or a state was written leaves nothing, and the step is repeated', async (t) => {
  const test = await makeRun(t);
  const last = await advance(test, processOf(true), await commitFirst(test, processOf(true)));
  let fails: 'exportTo' | 'saveOptimizer' | null = null;
  const halfWritten = async (folder: string): Promise<never> => {
    await writeFile(path.join(folder, shards[0]), 'half');
    throw new RatchetError(
      'StoreFull',
      `No space left to write ${folder}. Free some space; the run continues by itself.`,
    );
  };
  const roles = openRoles(undefined, {
    stages: true,
    engine: () => {
      const trainer = shardedTrainer();
      return {
        ...trainer,
        exportTo: (folder, options) => (fails === 'exportTo' ? halfWritten(folder) : trainer.exportTo(folder, options)),
        saveOptimizer: (folder) => (fails === 'saveOptimizer' ? halfWritten(folder) : trainer.saveOptimizer(folder)),
      };
    },
  });
  const { plan } = await planNext(test, roles, last);
  for (fails of ['exportTo', 'saveOptimizer'] as const) {
    await assert.rejects(act(roles.trainStep, { run: test.run, plan }), (error: RatchetError) => {
      assert.deepEqual([error.code, error.isRetryable], ['StoreFull', true]);
      assert.match(error.message, /^No space left to write \S+\/pending\/step_2\./);
      return true;
    });
    assert.deepEqual(await test.store.list(layout.allPending('main')), []);
  }
  fails = null;
  const { policy, optimizer } = await act(roles.trainStep, { run: test.run, plan });
  assert.ok(policy?.file.key.endsWith(index) && optimizer?.key.endsWith('optimizer.json'));
});

test('a model of several files is v0 as it is, through the links of the Hub’s cache, though no engine here could load it', async (t) => {
  const cache = await mkdtemp(path.join(tmpdir(), 'ratchet-hub-'));
  t.after(() => rm(cache, { recursive: true }));
  const [snapshot, blobs] = ['snapshots/abc', 'blobs'].map((name) => path.join(cache, 'models--some--model', name));
  for (const folder of [snapshot!, blobs!]) await mkdir(folder, { recursive: true });
  const files = {
    ...presetFiles('preset:reverse-text-0.2m'),
    [index]: JSON.stringify({ weight_map: { a: shards[0], b: shards[1] } }),
    [shards[0]]: 'chain half ',
    [shards[1]]: 'and half',
  };
  for (const [name, text] of Object.entries(files)) {
    await writeFile(path.join(blobs!, name), text);
    await symlink(path.join('../../blobs', name), path.join(snapshot!, name));
  }
  const test = await makeRun(t, { model: snapshot!, 'trainer.kind': 'torch' });
  const { policy } = (await commitFirst(test, processOf(true))).state;
  assert.equal(policy.file.key, `${layout.weights('main', 0)}${index}`);
  for (const [name, text] of Object.entries(files))
    assert.equal(Buffer.from((await test.store.read(policy.weights + name))!).toString(), text, name);
  assert.deepEqual((await examineStore(test.run)).faults, []);
  const opened = await processOf(true).policyTrainer.bringTo(test.run, policy);
  assert.equal(placeOf(opened).restoredFrom, 0);
});

test('a warm-up that is cut off goes on from a state of several files', async (t) => {
  const [whole, cut] = [await makeRun(t, { 'sft.steps': '120' }), await makeRun(t, { 'sft.steps': '120' })];
  const undisturbed = await commitFirst(whole, processOf(true));
  let warm = await act(processOf(true).warmUp, { run: cut.run, from: null });
  const states: (string | undefined)[] = [];
  while (warm.step < 120) {
    warm = await act(processOf(true).warmUp, { run: cut.run, from: warm });
    states.push(warm.optimizer?.key);
  }
  assert.ok(
    states.slice(0, -1).every((key) => key?.endsWith('/optimizer/optimizer.json')),
    states.join(),
  );
  assert.ok(states.length > 1);
  assert.equal(warm.policy.digest, undisturbed.state.policy.digest);
});
