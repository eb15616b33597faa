/** Supervised runs on pairs: TRL's loss, the gradient of the embedded engine, and a warm-up that dies in the middle. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { readSftData, type SftPair } from '../../load/data/sft-data.ts';
import { sha256 } from '../../store/file-store.ts';
import { putJson } from '../../store/objects.ts';
import type { PackedRow } from '../../core/rl/learning/batch.ts';
import type { Trainer } from '../../backends/trainer/types.ts';
import { pairLoss } from '../../core/rl/learning/preferences.ts';
import { EngineOptimizer } from '../../engine/index.ts';
import { layout } from '../../runs/layout.ts';
import { accept, only } from '../config/read-run.ts';
import { optimizer, randomBatch } from '../engine/models.ts';
import { act, ChainTrainer, makeRun, openRoles, type TestRun } from './runs.ts';

const golden = JSON.parse(readFileSync(new URL('../data/algorithms/golden.json', import.meta.url), 'utf8')) as {
  readonly dpo: {
    readonly beta: number;
    readonly sums: Readonly<Record<'chosen' | 'rejected' | 'ref_chosen' | 'ref_rejected', readonly number[]>>;
    readonly losses: readonly number[];
    readonly gradients: Readonly<Record<'chosen' | 'rejected', readonly number[]>>;
  };
};

test('the loss of a pair is that of TRL’s DPOTrainer, and so are its gradients', () => {
  const { beta, sums, losses, gradients } = golden.dpo;
  for (const [i, expected] of losses.entries()) {
    const found = pairLoss(
      {
        chosen: sums.chosen[i]!,
        rejected: sums.rejected[i]!,
        referenceChosen: sums.ref_chosen[i]!,
        referenceRejected: sums.ref_rejected[i]!,
      },
      beta,
    );
    assert.ok(Math.abs(found.loss - expected) < 1e-12, `${found.loss} against ${expected}`);
    assert.ok(
      Math.abs(-found.weight - gradients.chosen[i]!) < 1e-12 && Math.abs(found.weight - gradients.rejected[i]!) < 1e-12,
    );
  }
});

test('a supervised step takes weights of tokens, of either sign', async (t) => {
  const trainer = await EngineOptimizer.open('preset:reverse-text-0.2m', { threads: 1, seed: 3 });
  t.after(() => trainer.close());
  const rows = randomBatch(trainer.model.config, 8, 5).map((row, r) => {
    const weight = (r % 2 === 0 ? 1 : -1) * (0.1 + r / 20);
    return {
      ...row,
      tokenWeights: row.lossMask.map((mask) => mask * weight),
      advantages: row.lossMask.map((mask) => mask * weight),
    };
  });
  const now = await trainer.forwardLogprobs(rows, { temperature: 1 });
  await trainer.sftStep(rows, { learningRate: 0, optimizer, normalizer: 4 });
  const weighted = trainer.gradient.flat.slice();
  // At ρ = 1 the gradient of −ρ · A is that of −A · ℓ; by dr_grpo it is divided by rows · maxTokens.
  const samples = rows.map((row, r) => ({ ...row, behaviorLogprobs: Array.from(now[r]!) }));
  const loss = { type: 'importance_sampling', clipHigh: 1, aggregation: 'dr_grpo', maxTokens: 0.5 } as const;
  await trainer.trainStep(samples, { learningRate: 0, optimizer, loss, temperature: 1, klBeta: 0 });
  const most = weighted.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
  assert.ok(most > 0);
  trainer.gradient.flat.forEach((value, i) => assert.ok(Math.abs(value - weighted[i]!) < 1e-5 * most, `element ${i}`));
});

const words = ['cat', 'dog', 'sun', 'map', 'pen', 'owl', 'ink'];
const user = (content: string) => ({ role: 'user', content });
const said = (content: string) => ({ role: 'assistant', content });
const reversed = (word: string): string => word.split('').reverse().join('');
const pairs = words.map((prompt) => ({ prompt, chosen: reversed(prompt), rejected: prompt }));
const lines = (rows: readonly object[]): string => rows.map((row) => `${JSON.stringify(row)}\n`).join('');

async function fileOf(t: TestContext, rows: readonly object[]): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-pairs-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  await writeFile(path.join(folder, 'pairs.jsonl'), lines(rows));
  return path.join(folder, 'pairs.jsonl');
}

describe('rows of pairs', () => {
  test('texts, messages, and conversations that begin alike are the same', async (t) => {
    const spellings = [
      { prompt: 'cat', chosen: 'tac', rejected: 'cat' },
      { prompt: [user('cat')], chosen: [said('tac')], rejected: [said('cat')] },
      { chosen: [user('cat'), said('tac')], rejected: [user('cat'), said('cat')] },
    ];
    const { bytes } = await readSftData(await fileOf(t, spellings), { pairs: true });
    const [first, ...others] = Buffer.from(bytes)
      .toString()
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as SftPair);
    assert.deepEqual(others, [first, first]);
    assert.deepEqual([first!.chosen.from, first!.rejected.messages.at(-1)!.content], [1, 'cat']);
  });

  test('what is wrong is told with its line', async (t) => {
    const wrong = [
      { prompt: 'cat', chosen: 'tac' },
      { chosen: 'tac', rejected: 'cat' },
      { chosen: [user('a'), said('b')], rejected: [user('b'), said('b')] },
      { prompt: 'cat', chosen: 'tac', rejected: '' },
      { prompt: 'cat', chosen: 'tac', rejected: [said('tac')] },
    ];
    await assert.rejects(readSftData(await fileOf(t, wrong), { pairs: true }), (error: Error) => {
      assert.deepEqual(
        error.message
          .split('\n')
          .slice(1)
          .map((line) => line.trim().replace(/^.*jsonl:/, '')),
        [
          '1: no "rejected"',
          '2: no "prompt" before answers that are texts',
          '3: chosen and rejected that do not begin alike and then differ',
          '4: rejected: an assistant message without text',
          '5: chosen and rejected that are the same: nothing is preferred',
        ],
      );
      return true;
    });
  });
});

const settings = {
  'sft.steps': '60',
  'sft.batch_size': '2',
  'sft.learning_rate': '0.001',
  'sft.loss': 'dpo',
  max_steps: '0',
};

async function preferringRun(t: TestContext): Promise<TestRun> {
  const file = await fileOf(t, pairs);
  const { bytes } = await readSftData(file, { pairs: true });
  const made = await makeRun(t, { ...settings, 'sft.data': file });
  const spec = { ...made.spec, sft: { ...made.spec.sft!, data: { path: file, sha256: sha256(bytes) } } };
  await made.store.put(layout.sftData(), bytes);
  return { ...made, spec, run: { ...made.run, spec: await putJson(made.store, 'specs/test.json', spec) } };
}

/** A trainer whose weights decide the probabilities of tokens, so that each segment has others. */
class ScoringTrainer extends ChainTrainer implements Trainer {
  async logprobs(rows: readonly PackedRow[]): Promise<readonly Float32Array[]> {
    const at = Number.parseInt((await this.digest()).slice(0, 6), 16) / 2 ** 24;
    return rows.map(({ tokenIds }) => Float32Array.from(tokenIds, (id) => -at - id / 50));
  }
}

describe('a run on pairs', () => {
  test('compares with what the weights of its beginning said, also when it loses its trainer between segments', async (t) => {
    const options = { makeTrainer: () => new ScoringTrainer() };
    const [undisturbed, disturbed] = [await preferringRun(t), await preferringRun(t)];
    const roles = openRoles(undefined, options);
    let warm = await act(roles.warmUp, { run: undisturbed.run, from: null });
    while (warm.step < 60) warm = await act(roles.warmUp, { run: undisturbed.run, from: warm });
    let again = await act(openRoles(undefined, options).warmUp, { run: disturbed.run, from: null });
    while (again.step < 60)
      again = await act(openRoles(undefined, options).warmUp, { run: disturbed.run, from: again });
    assert.equal(again.policy.digest, warm.policy.digest);
    const sums = await Promise.all([undisturbed, disturbed].map(({ store }) => store.read(layout.sftReference())));
    assert.deepEqual(sums[0], sums[1]);
    assert.ok(warm.loss !== null && Number.isFinite(warm.loss));
  });

  test('is asked for in [sft]', () => {
    const minimal = 'model = "m"\n[[env]]\nid = "owner/a"\n[sft]\nsteps = 5\n';
    const dpo = accept(`${minimal}data = "./a.jsonl"\nloss = "dpo"\n`).spec.sft!;
    assert.deepEqual([dpo.dpo, dpo.learningRate], [{ beta: 0.1 }, 1e-6]);
    assert.match(only(`${minimal}loss = "dpo"\n`).expected, /data = "FILE.jsonl" beside it/);
    assert.match(only(`${minimal}beta = 0.2\n`).expected, /loss = "dpo" beside it/);
    const module_ = '[trainer]\nkind = "module"\npath = "a.ts"\n';
    assert.match(
      only(`${minimal}data = "./a.jsonl"\nloss = "dpo"\n${module_}`).expected,
      /by the embedded engine alone/,
    );
  });
});
