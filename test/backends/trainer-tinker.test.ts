import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { setTimeout as delay } from 'node:timers/promises';
import { after, before, describe, test } from 'node:test';
import { batchOf, type TrainSample } from '../../core/rl/learning/batch.ts';
import { randomStream } from '../../core/random.ts';
import type { ServedPolicy, StepPlan } from '../../core/rl/run-state.ts';
import type { LossSettings } from '../../config/run-spec.ts';
import { decodeSafetensors, EngineOptimizer, presetFiles } from '../../engine/index.ts';
import { TinkerInference } from '../../backends/inference/tinker.ts';
import { closeProcesses } from '../../host/processes-open.ts';
import { TinkerTrainer } from '../../backends/trainer/tinker.ts';
import { readVersion } from '../../backends/tinker/version-files.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { StandInProcess } from '../stand-ins/tinker/process.ts';
import { startTinkerStandIn, type StandIn } from '../stand-ins/tinker/server.ts';

const model = 'preset:reverse-text-0.2m';
const lora = {
  r: 4,
  alpha: 32,
  dropout: 0,
  targetModules: ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'],
};
const part = { lora, seed: 7 };
/** A large ε and no clipping: then Adam's step is the gradient's, scale and all, and not only its direction. */
const optimizer = { beta1: 0.9, beta2: 0.999, epsilon: 1e3, weightDecay: 0, maxGradNorm: 1e9 };
const cispo: LossSettings = { type: 'cispo', clipHigh: 3, aggregation: 'token' };

let folder: string;
before(async () => void (folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-tinker-'))));
after(() => rm(folder, { recursive: true, force: true }));

describe('a trainer on a Tinker server', () => {
  let server: StandIn;
  before(
    async () =>
      void (server = await startTinkerStandIn({ folder: path.join(folder, 'server'), model, sessionTimeoutMs: 3_000 })),
  );
  after(() => server.close());

  for (const aggregation of ['token', 'sequence', 'dr_grpo'] as const) {
    test(`the same batch gives the update of the embedded engine, aggregated by ${aggregation}`, async () => {
      const loss: LossSettings = { ...cispo, aggregation, maxTokens: 16 };
      await assertSameUpdate(server.url, loss);
    });
  }

  test('the losses grpo and importance_sampling are those of the embedded engine, too', async () => {
    await assertSameUpdate(server.url, { type: 'grpo', clipLow: 0.8, clipHigh: 1.2, aggregation: 'token' });
    await assertSameUpdate(server.url, { type: 'importance_sampling', clipHigh: 1, aggregation: 'sequence' });
  });

  test('losses that no such server has give the update of the embedded engine: a file of one’s own, a mask, a teacher', async () => {
    const file = fileURLToPath(new URL('../../configs/rl/custom-loss/my-loss.ts', import.meta.url));
    const own: LossSettings = {
      type: 'custom',
      clipHigh: 1.2,
      aggregation: 'token',
      import: { path: file, sha256: null },
    };
    await assertSameUpdate(server.url, own);
    await assertSameUpdate(server.url, {
      type: 'importance_sampling',
      clipHigh: 1,
      maskLow: 0.6,
      maskHigh: 1.4,
      aggregation: 'sequence',
    });
    await assertSameUpdate(server.url, { ...cispo, advantageTau: 0.5, teacherTau: 0.7 });
  });

  test('a supervised step is the embedded engine’s: a mean over the tokens of all rows', async () => {
    const trainer = openTrainer(server.url);
    const [base, after] = [path.join(folder, 'sft-base'), path.join(folder, 'sft-after')];
    await trainer.makeBase(base, { ...part, files: presetFiles(model) });
    const outcome = await trainer.sftStep({ samples: rows(3), learningRate: 1e3, optimizer });
    await trainer.exportTo(after);
    await trainer.close();
    const engine = await engineLike(base);
    const expected = await engine.sftStep(rows(3), { learningRate: 1e3, optimizer });
    assertClose(outcome.metrics['loss']!, expected.metrics.loss, 1e-5);
    await assertSameAdapter(after, engine);
    await engine.close();
  });

  test('metrics of a step are those of the embedded engine, as far as a server tells', async () => {
    const { outcome, expected } = await updates(server.url, {
      type: 'grpo',
      clipLow: 0.9,
      clipHigh: 1.1,
      aggregation: 'sequence',
    });
    for (const [ours, theirs] of [
      ['loss', 'loss'],
      ['mismatch_kl', 'mismatchKl'],
      ['ratio_mean', 'ratioMean'],
      ['clip_fraction_low', 'clipFractionLow'],
      ['clip_fraction_high', 'clipFractionHigh'],
      ['token_count', 'tokenCount'],
      ['grad_norm', 'gradNorm'],
    ] as const) {
      assertClose(outcome.metrics[ours]!, expected.metrics[theirs], 1e-4, ours);
    }
  });

  test('a version that was opened again is trained on with its moments, to the same adapter', async () => {
    const [base, first] = [path.join(folder, 'again-base'), path.join(folder, 'again-1')];
    const trainer = openTrainer(server.url);
    await trainer.makeBase(base, { ...part, files: presetFiles(model) });
    const plan = planOf(cispo, 0.5);
    await trainer.trainStep(stepOf(plan, 1));
    const state = await trainer.saveOptimizer();
    await trainer.exportTo(first);
    const expected = (await trainer.trainStep(stepOf(plan, 2))).digest;
    const { digest } = await trainer.open(first, part);
    assert.equal(digest, (await readVersion(first)).digest);
    await trainer.restoreOptimizer(state);
    assert.equal((await trainer.trainStep(stepOf(plan, 2))).digest, expected);
    await trainer.open(first, part);
    await trainer.close();
  });

  test('a batch of rows without a signal is refused, and the version stays what it was', async () => {
    const trainer = openTrainer(server.url);
    const { digest } = await trainer.makeBase(path.join(folder, 'refused'), { ...part, files: presetFiles(model) });
    const flat = rows(1).map((row) => ({ ...row, advantages: row.advantages.map(() => 0) }));
    const outcome = await trainer.trainStep({ plan: planOf(cispo, 0.1), batch: batchOf(flat) });
    assert.deepEqual([outcome.applied, outcome.digest], [false, digest]);
    assert.match(outcome.reason!, /gradient is 0/);
    assert.equal((await trainer.trainStep(stepOf(planOf(cispo, 0.1), 1))).applied, true);
    await trainer.close();
  });

  test('a session that the server has finished: the step is begun again in another one, to the same adapter', async () => {
    const plan = planOf(cispo, 0.1);
    const adapters = await Promise.all(
      [false, true].map(async (isFinished) => {
        const alone = await startTinkerStandIn({ folder: path.join(folder, `finished-${isFinished}`), model });
        const trainer = openTrainer(alone.url);
        await trainer.makeBase(path.join(folder, `finished-base-${isFinished}`), {
          ...part,
          files: presetFiles(model),
        });
        const body = JSON.stringify({ endSessions: true });
        if (isFinished) await fetch(`${alone.url}/stand_in`, { method: 'POST', body });
        const { digest, metrics } = await trainer.trainStep(stepOf(plan, 1));
        assert.equal(metrics['engine_restores'], isFinished ? 1 : undefined);
        await trainer.close();
        await alone.close();
        return digest;
      }),
    );
    assert.equal(adapters[1], adapters[0]);
  });

  test('what is sampled has the logprobs that the trainer gives it, while later versions are trained', async () => {
    const trainer = openTrainer(server.url);
    const inference = new TinkerInference({
      kind: 'tinker',
      url: server.url,
      apiKeyVar: null,
      server: 'skyrl',
      timeoutS: 60,
      maxConcurrent: 64,
    });
    const base = path.join(folder, 'sampled-0');
    await trainer.makeBase(base, { ...part, files: presetFiles(model) });
    const policy = await served(base, 0);
    const sample = () =>
      inference.sample({ policy, promptTokenIds: [5, 6, 7], maxTokens: 6, temperature: 1, seed: 11 });
    const before = await sample();
    const tokenIds = [5, 6, 7, ...before.tokenIds];
    const row = {
      tokenIds,
      lossMask: tokenIds.map((_, i) => (i > 2 ? 1 : 0)),
      behaviorLogprobs: tokenIds.map(() => 0),
      advantages: tokenIds.map(() => 0),
    };
    const [own] = await trainer.logprobs([row, row], 1);
    before.logprobs!.forEach((logprob, i) => assertClose(logprob, own![i + 3]!, 1e-4));
    const scored = await inference.score({ policy, tokenIds, positions: [3, 4] });
    scored!.forEach((logprob, i) => assertClose(logprob, before.logprobs![i]!, 1e-4));
    for (const step of [1, 2]) await trainer.trainStep(stepOf(planOf(cispo, 50), step));
    assert.deepEqual(await sample(), before, 'the same version, though its trainer continued');
    inference.close();
    await trainer.close();
  });
});

test('a process that ends leaves no model on the server, the one it sampled from last included', async (t) => {
  const home = path.join(folder, 'left');
  const server = await startTinkerStandIn({ folder: home, model, maxAdapters: 4 });
  t.after(() => server.close());
  for (let run = 0; run < 3; run++) {
    const trainer = openTrainer(server.url);
    await trainer.makeBase(path.join(folder, `left-${run}`), { ...part, files: presetFiles(model) });
    await trainer.trainStep(stepOf(planOf(cispo, 1), 1));
    await closeProcesses();
    await trainer.close();
  }
  assert.ok(server.calls['unload_model']! >= 9, 'each had one for sampling v0, one for v1, and one for the next step');
});

describe('a Tinker server that dies', () => {
  test('killed in the middle of a step: the step is begun again from the version before it, to the same adapter; versions are sampled from again', async () => {
    const home = path.join(folder, 'killed');
    const callMs = { forward_backward: 300, optim_step: 100 };
    const server = await StandInProcess.start({ folder: home, model, callMs });
    const { url } = server;
    const trainer = openTrainer(url);
    const inference = new TinkerInference({
      kind: 'tinker',
      url,
      apiKeyVar: null,
      server: 'skyrl',
      timeoutS: 60,
      maxConcurrent: 64,
    });
    try {
      const base = path.join(folder, 'killed-0');
      await trainer.makeBase(base, { ...part, files: presetFiles(model) });
      const policy = await served(base, 0);
      const sample = () =>
        inference.sample({ policy, promptTokenIds: [5, 6, 7], maxTokens: 6, temperature: 1, seed: 11 });
      const before = await sample();
      const plan = planOf(cispo, 1);
      await trainer.trainStep(stepOf(plan, 1));
      const state = await trainer.saveOptimizer();
      const first = path.join(folder, 'killed-1');
      await trainer.exportTo(first);
      const expected = await trainer.trainStep(stepOf(plan, 2));
      await trainer.open(first, part);
      await trainer.restoreOptimizer(state);

      const again = trainer.trainStep(stepOf(plan, 2));
      await untilPromised(home, 2);
      await server.kill();
      await server.start();
      const outcome = await again;
      assert.equal(outcome.digest, expected.digest);
      assert.deepEqual(await sample(), before);
    } finally {
      inference.close();
      await trainer.close().catch(() => undefined);
      await server.kill();
    }
  });
});

test('a trainer says what it waits for: a server that is away, and one without room for another model', async () => {
  const away = openTrainer(`http://127.0.0.1:${await choosePort(0)}`, 2_000);
  const asked = away.makeBase(path.join(folder, 'away'), { ...part, files: presetFiles(model) });
  asked.catch(() => undefined);
  await saysThatItWaits(away, /does not answer \(ECONNREFUSED/);
  await assert.rejects(asked, { code: 'TrainerUnavailable' });
  assert.equal(away.waitsFor(), null);

  const small = await startTinkerStandIn({ folder: path.join(folder, 'small'), model, maxAdapters: 2 });
  const [first, second] = [openTrainer(small.url, 1_000), openTrainer(small.url, 1_000)];
  const make = (trainer: TinkerTrainer, name: string) =>
    trainer.makeBase(path.join(folder, name), { ...part, files: presetFiles(model) });
  const made = [make(first, 'room-1')];
  await saysThatItWaits(first, /Maximum number of LoRA adapters \(2\) reached: waiting for room/); // its second model
  made.push(make(second, 'room-2'));
  await saysThatItWaits(second, /waiting for room/);
  const ended = Promise.allSettled(made); // they write below the folder until then
  await small.close();
  await ended;
});

async function saysThatItWaits(trainer: TinkerTrainer, what: RegExp): Promise<void> {
  const until = performance.now() + 30_000;
  while (trainer.waitsFor() === null && performance.now() < until) await delay(20);
  assert.match(trainer.waitsFor() ?? 'nothing', what);
}

function openTrainer(url: string, patienceMs = 60_000): TinkerTrainer {
  return new TinkerTrainer(
    {
      kind: 'tinker',
      url,
      apiKeyVar: null,
      server: 'skyrl',
      baseModel: null,
      reduction: null,
      checkpointTtlS: null,
    },
    { patienceMs, heartbeatMs: 500 },
  );
}

async function assertSameUpdate(url: string, loss: LossSettings): Promise<void> {
  const { outcome, expected } = await updates(url, loss);
  assertClose(outcome.metrics['loss']!, expected.metrics.loss, 1e-4);
}

/** One step on the server and in the embedded engine, from the same adapter; their adapters must be the same afterwards. */
async function updates(url: string, loss: LossSettings) {
  const trainer = openTrainer(url);
  const name = `${loss.type}-${loss.aggregation}-${Math.random().toString(36).slice(2)}`;
  const [base, after] = [path.join(folder, `${name}-0`), path.join(folder, `${name}-1`)];
  await trainer.makeBase(base, { ...part, files: presetFiles(model) });
  const outcome = await trainer.trainStep(stepOf(planOf(loss, 1e5), 1));
  await trainer.exportTo(after);
  await trainer.close();
  assert.ok(outcome.applied, outcome.reason);
  const engine = await engineLike(base);
  const options = { learningRate: 1e5, optimizer, loss, temperature: 1, klBeta: 0 };
  const expected = await engine.trainStep(rows(1), options);
  await assertSameAdapter(after, engine);
  await engine.close();
  return { outcome, expected };
}

/** The embedded engine with the adapter in a version's folder. */
async function engineLike(version: string): Promise<EngineOptimizer> {
  return EngineOptimizer.open(version, { threads: 1 });
}

async function assertSameAdapter(version: string, engine: EngineOptimizer): Promise<void> {
  const { tensors } = decodeSafetensors(await readFile(path.join(version, 'adapter_model.safetensors')), version);
  let largest = 0;
  for (const { name } of engine.adapter!.layout) {
    const [ours, theirs] = [tensors.get(name)!.data as Float32Array, engine.adapter!.view(name)];
    theirs.forEach((value, i) => (largest = Math.max(largest, Math.abs(value - ours[i]!))));
  }
  assert.ok(largest < 2e-4, `weights differ by ${largest}`);
}

function planOf(loss: LossSettings, learningRate: number): StepPlan {
  return { step: 1, loss, learningRate, optimizer, numIterations: 1, temperature: 1, klBeta: 0 } as unknown as StepPlan;
}

function stepOf(plan: StepPlan, seed: number) {
  return { plan, batch: batchOf(rows(seed)) };
}

/** Rows of different lengths and masks, one of them without loss. */
function rows(seed: number): TrainSample[] {
  const random = randomStream('rows', seed);
  return [5, 9, 12, 7].map((length, row) => {
    const tokenIds = Array.from({ length }, () => Math.floor(random() * 20));
    const lossMask = tokenIds.map((_, i) => (row !== 1 && i > row ? 1 : 0));
    return {
      tokenIds,
      lossMask,
      behaviorLogprobs: lossMask.map((mask) => mask * (-3 + random() / 2)),
      advantages: lossMask.map((mask) => mask * (row - 1.5)),
      teacherLogprobs: lossMask.map((mask) => mask * (-2 - random())),
    };
  });
}

async function served(weights: string, step: number): Promise<ServedPolicy> {
  const { digest } = await readVersion(weights);
  const file = { key: '', sha256: '', bytes: 0 };
  return { name: `v${step}`, folder: weights, version: { step, digest, weights: '', file, sums: file } };
}

/** Resolves once the server has promised so many results. */
async function untilPromised(home: string, more: number): Promise<void> {
  const file = path.join(home, 'journal.jsonl');
  const count = async () => (await readFile(file, 'utf8')).split('"future"').length;
  const begun = await count();
  while ((await count()) < begun + more) await delay(20);
}

function assertClose(a: number, b: number, tolerance: number, what = ''): void {
  assert.ok(Math.abs(a - b) <= tolerance * Math.max(1, Math.abs(b)), `${what} ${a} is not ${b}`);
}
