/** Servers of the Tinker API that differ from SkyRL's JAX backend: what is found out about them, and how they are driven. */
import assert from 'node:assert/strict';
import { readdir, readFile, rm, mkdtemp } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test, type TestContext } from 'node:test';
import { TinkerInference } from '../../backends/inference/tinker.ts';
import { examineServer } from '../../backends/tinker/examine.ts';
import { type ClientOptions, TinkerClient } from '../../backends/tinker/index.ts';
import { pathsOf } from '../../backends/tinker/load-model.ts';
import { readVersion } from '../../backends/tinker/version-files.ts';
import { TinkerTrainer } from '../../backends/trainer/tinker.ts';
import type { TinkerTrainerSpec } from '../../config/run-spec.ts';
import { batchOf, type TrainSample } from '../../core/rl/learning/batch.ts';
import { RatchetError } from '../../core/errors.ts';
import { randomStream } from '../../core/random.ts';
import type { ServedPolicy, StepPlan } from '../../core/rl/run-state.ts';
import type { LossSettings } from '../../config/run-spec.ts';
import { decodeSafetensors, EngineOptimizer, presetFiles } from '../../engine/index.ts';
import { StandInProcess } from '../stand-ins/tinker/process.ts';
import type { StandInOptions } from '../stand-ins/tinker/options.ts';
import { type StandIn, startTinkerStandIn } from '../stand-ins/tinker/server.ts';

const model = 'preset:reverse-text-0.2m';
const targetModules = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'];
const part = { lora: { r: 4, alpha: 32, dropout: 0, targetModules }, seed: 7 };
/** A large ε and no clipping: then Adam's step is the gradient's, scale and all, and not only its direction. */
const optimizer = { beta1: 0.9, beta2: 0.999, epsilon: 1e3, weightDecay: 0, maxGradNorm: 1e9 };
const grpo: LossSettings = { type: 'grpo', clipLow: 0.8, clipHigh: 1.2, aggregation: 'token' };

/** Those that hold one model: SkyRL's FSDP backend. */
const fsdp = { holdsOne: true, ignoresAdam: true, heedsOptimizer: true } as const;
const megatron = { samplesLatest: true, ignoresAdam: true, heedsOptimizer: true } as const;
const tuft = { isLikeTuft: true, heedsOptimizer: true } as const;

let root: string;
before(async () => void (root = await mkdtemp(path.join(os.tmpdir(), 'ratchet-tinker-servers-'))));
after(() => rm(root, { recursive: true, force: true }));

async function started(t: TestContext, options: Partial<StandInOptions> = {}): Promise<StandIn & { folder: string }> {
  const folder = await mkdtemp(path.join(root, 'server-'));
  const server = await startTinkerStandIn({ folder, model, ...options });
  t.after(() => server.close());
  return { ...server, folder };
}

function openTrainer(
  url: string,
  spec: Partial<TinkerTrainerSpec> = {},
  said: string[] = [],
  more: ClientOptions = {},
): TinkerTrainer {
  const at = { kind: 'tinker', url, apiKeyVar: null, server: 'skyrl' } as const;
  return new TinkerTrainer(
    { ...at, baseModel: null, reduction: null, checkpointTtlS: null, ...spec },
    { patienceMs: 60_000, heartbeatMs: 500, say: (line) => said.push(line), ...more },
  );
}

function openInference(t: TestContext, url: string): TinkerInference {
  const at = { kind: 'tinker', url, apiKeyVar: null, server: 'skyrl' } as const;
  const inference = new TinkerInference({ ...at, timeoutS: 60, maxConcurrent: 8 });
  t.after(() => inference.close());
  return inference;
}

describe('what a server does is found out by tiny steps of models that are thrown away', () => {
  const sum = { reduction: 'sum', over: 'step', linearIn: 'weights' };
  const losses = ['importance_sampling', 'ppo', 'cispo'];
  const known = { losses, ignored: [], unknown: [] };
  for (const [what, options, facts] of [
    [
      'SkyRL’s JAX backend',
      {},
      { loss: { reduction: 'sequence_mean', over: 'step', linearIn: 'advantages' }, models: 'several', sampling: 'in the model', ...known }, // prettier-ignore
    ],
    [
      'SkyRL’s FSDP backend',
      fsdp,
      { loss: sum, models: 'one', sampling: 'latest', losses, ignored: ['beta1 and beta2', 'epsilon'], unknown: ['weight_decay'] }, // prettier-ignore
    ],
    [
      'SkyRL’s Megatron backend',
      megatron,
      { loss: sum, models: 'several', sampling: 'latest', ...known, ignored: ['beta1 and beta2', 'epsilon'], unknown: ['weight_decay'] }, // prettier-ignore
    ],
    ['TuFT', tuft, { loss: sum, models: 'several', sampling: 'apart', ...known }],
    [
      'a mean over rows',
      { ...fsdp, ignoresAdam: false, adding: { by: 'row_mean', over: 'step' } },
      { loss: { reduction: 'row_mean', over: 'step', linearIn: 'weights' }, models: 'one', sampling: 'latest', ...known }, // prettier-ignore
    ],
    [
      'a mean over the tokens of a request',
      { ...fsdp, ignoresAdam: false, adding: { by: 'token_mean', over: 'request' } },
      { loss: { reduction: 'token_mean', over: 'request', linearIn: 'advantages' }, models: 'one', sampling: 'latest', ...known }, // prettier-ignore
    ],
    [
      'one that computes cross_entropy whatever is asked for',
      { ...tuft, replacesLosses: true },
      { loss: sum, models: 'several', sampling: 'apart', ...known, losses: [] },
    ],
    [
      'one that tells nothing',
      { ...fsdp, ignoresAdam: false, isSilent: true },
      { loss: null, models: 'one', sampling: 'latest', ...known, losses: null },
    ],
  ] as const) {
    test(what, async (t) => {
      const server = await started(t, options);
      const client = new TinkerClient({ url: server.url, apiKeyVar: null, server: 'skyrl' });
      t.after(() => client.close());
      const found = await examineServer(client, { baseModel: model, rank: 4, seed: 1 }, assert.fail);
      assert.deepEqual(found, facts);
      // Nothing is left of it: a server with room for one has room.
      await (await client.createModel({ baseModel: model, rank: 4, seed: 1 })).unload();
    });
  }

  test('a mean over all tokens, whether they count or not, is refused by what was found', async (t) => {
    const server = await started(t, { ...fsdp, adding: { by: 'all_tokens', over: 'step' } });
    const trainer = openTrainer(server.url);
    t.after(() => trainer.close());
    await assert.rejects(
      trainer.makeBase(path.join(root, 'refused'), { ...part, files: presetFiles(model) }),
      /two rows gave 0\.333 times the gradient of one\. Expected their sum/,
    );
  });

  for (const [what, options] of [
    ['that tells gradients', fsdp],
    ['that tells nothing', { ...fsdp, isSilent: true }],
  ] as const) {
    test(`a server ${what} and no log probabilities is refused before a run learns by them`, async (t) => {
      const server = await started(t, { ...options, hidesLogprobs: true });
      const trainer = openTrainer(server.url);
      t.after(() => trainer.close());
      const untold = new RegExp(
        `The server at ${server.url}/? tells no log probabilities: expected one for the token .*, got none\\..* "logprobs" in loss_fn_outputs`,
      );
      await assert.rejects(trainer.makeBase(path.join(root, 'untold'), { ...part, files: presetFiles(model) }), {
        code: 'Unsupported',
        message: untold,
      });
    });
  }

  test('a loss_reduction that is another one is refused; one that cannot be measured is named', async (t) => {
    const server = await started(t, fsdp);
    const trainer = openTrainer(server.url, { reduction: 'sequence_mean' });
    t.after(() => trainer.close());
    await assert.rejects(trainer.makeBase(path.join(root, 'other'), { ...part, files: presetFiles(model) }), {
      code: 'ConfigInvalid',
      message: /loss_reduction = "sequence_mean".*its gradient is that of "sum"/,
    });
    const silent = await started(t, { ...fsdp, isSilent: true });
    const said: string[] = [];
    const assumed = openTrainer(silent.url, {}, said);
    t.after(() => assumed.close());
    await assumed.makeBase(path.join(root, 'assumed'), { ...part, files: presetFiles(model) });
    assert.match(said.join('\n'), /could not be measured: "sequence_mean" is assumed/);
  });
});

for (const [what, options] of [
  ['that adds losses up', { ...fsdp, ignoresAdam: false }],
  ['that takes means of rows', { ...fsdp, ignoresAdam: false, adding: { by: 'row_mean', over: 'step' } }],
  ['that takes means of tokens', { ...fsdp, ignoresAdam: false, adding: { by: 'token_mean', over: 'request' } }],
  ['like TuFT', tuft],
  ['that computes cross_entropy whatever is asked for', { ...fsdp, ignoresAdam: false, replacesLosses: true }],
] as const) {
  test(`the same batch gives the update of the embedded engine on a server ${what}`, async (t) => {
    const server = await started(t, options);
    const trainer = openTrainer(server.url, { checkpointDir: path.join(server.folder, 'checkpoints') });
    t.after(() => trainer.close());
    const [base, last] = [await mkdtemp(path.join(root, 'base-')), await mkdtemp(path.join(root, 'last-'))];
    await trainer.makeBase(base, { ...part, files: presetFiles(model) });
    const outcome = await trainer.trainStep(stepOf(1e5, 1));
    assert.ok(outcome.applied, outcome.reason);
    await trainer.exportTo(last);
    const engine = await EngineOptimizer.open(base, { threads: 1 });
    t.after(() => engine.close());
    await engine.trainStep(rows(1), { learningRate: 1e5, optimizer, loss: grpo, temperature: 1, klBeta: 0 });
    await assertSameAdapter(last, engine);
  });
}

describe('a server that samples what a model has saved last', () => {
  for (const [what, options] of [
    ['and holds one model', fsdp],
    ['and holds several', megatron],
  ] as const) {
    test(`${what}: a step that was given up leaves the committed version to sample from`, async (t) => {
      const server = await started(t, options);
      const trainer = openTrainer(server.url);
      t.after(() => trainer.close());
      const inference = openInference(t, server.url);
      const [v0, v1] = [await mkdtemp(path.join(root, 'given-')), await mkdtemp(path.join(root, 'given-'))];
      await trainer.makeBase(v0, { ...part, files: presetFiles(model) });
      await trainer.trainStep(stepOf(0.1, 1));
      const state = await trainer.saveOptimizer();
      await trainer.exportTo(v1);
      const committed = await sampleOf(inference, v1, 1);
      await trainer.trainStep(stepOf(50, 2)); // its worker dies before the commit
      assert.notDeepEqual((await sampleOf(inference, v1, 1)).logprobs, committed.logprobs, 'v2 is sampled');
      await trainer.open(v1, part);
      await trainer.restoreOptimizer(state);
      const { servedStep, servedThrough, ...again } = await sampleOf(inference, v1, 1);
      assert.deepEqual([servedStep, servedThrough, again], [undefined, undefined, committed]);
    });
  }
});

describe('a server that holds one model', () => {
  test('has one for the whole run, whose settings of Adam that it ignores are named', async (t) => {
    const server = await started(t, fsdp);
    const said: string[] = [];
    const trainer = openTrainer(server.url, {}, said);
    t.after(() => trainer.close());
    const folder = await mkdtemp(path.join(root, 'one-'));
    await trainer.makeBase(folder, { ...part, files: presetFiles(model) });
    const created = server.calls['create_model'];
    const { modelId } = await readVersion(folder);
    for (const step of [1, 2, 3]) {
      assert.ok((await trainer.trainStep(stepOf(0.1, step))).applied);
      const to = await mkdtemp(path.join(root, 'one-'));
      await trainer.exportTo(to);
      assert.equal((await readVersion(to)).modelId, modelId);
    }
    assert.equal(server.calls['create_model'], created, 'no step makes a model');
    assert.match(said.join('\n'), /trainer\.beta1 \(0\.9\) and beta2 \(0\.999\): the Tinker server at .* takes no notice of it/); // prettier-ignore
    assert.match(said.join('\n'), /trainer\.epsilon \(1000\)/);
    assert.match(said.join('\n'), /trainer\.weight_decay \(0\): whether .* could not be found out/);
  });

  test('killed in the middle of a step: its newest checkpoint is loaded, and the step is made once, to the same weights', async (t) => {
    // Long enough for a busy machine to kill the server within the step.
    const options = { ...fsdp, callMs: { forward_backward: 1_500, optim_step: 200 } };
    const home = await mkdtemp(path.join(root, 'killed-'));
    const server = await StandInProcess.start({ folder: home, model, ...options });
    t.after(() => server.kill());
    const trainer = openTrainer(server.url);
    const inference = openInference(t, server.url);
    const [base, first] = [path.join(home, 'v0'), path.join(home, 'v1')];
    await trainer.makeBase(base, { ...part, files: presetFiles(model) });
    await trainer.trainStep(stepOf(0.1, 1));
    const state = await trainer.saveOptimizer();
    await trainer.exportTo(first);
    const sample = await sampleOf(inference, first, 1);
    const expected = await trainer.trainStep(stepOf(0.1, 2));
    await trainer.open(first, part);
    await trainer.restoreOptimizer(state);
    const again = trainer.trainStep(stepOf(0.1, 2));
    await untilPromised(home, 2);
    await server.kill();
    await server.start();
    const outcome = await again;
    assert.equal(outcome.digest, expected.digest);
    assert.equal(outcome.metrics['engine_restores'], 1);

    // The next worker takes over what the first one left there: its model, and the version that is sampled.
    await trainer.exportTo(path.join(home, 'v2'));
    const next = openTrainer(server.url);
    await next.open(first, part);
    await next.restoreOptimizer(state);
    assert.deepEqual(await sampleOf(inference, first, 1), sample, 'v1 is sampled again, not v2');
    assert.equal((await next.trainStep(stepOf(0.1, 2))).digest, expected.digest);
    await next.close();
    await trainer.close().catch(() => undefined);
  });

  test('trains another run while no worker has the first one, which then goes on to the same weights', async (t) => {
    const server = await started(t, fsdp);
    const folder = await mkdtemp(path.join(root, 'rested-'));
    const [first, second] = [openTrainer(server.url), openTrainer(server.url)];
    t.after(() => Promise.all([first.close(), second.close()]));
    await first.makeBase(path.join(folder, 'v0'), { ...part, files: presetFiles(model) });
    await first.trainStep(stepOf(0.1, 1));
    await first.exportTo(path.join(folder, 'v1'));
    const state = await first.saveOptimizer();
    const expected = await first.trainStep(stepOf(0.1, 2));
    await first.open(path.join(folder, 'v1'), part);
    await first.restoreOptimizer(state);

    first.rest();
    await second.makeBase(path.join(folder, 'other'), { ...part, files: presetFiles(model) });
    assert.equal(second.waitsFor(), null);
    assert.ok((await second.trainStep(stepOf(0.1, 1))).applied);
    second.rest();
    assert.equal((await first.trainStep(stepOf(0.1, 2))).digest, expected.digest);
  });

  test('that another run has: a step says that it waits for it, and is tried again until that run rests', async (t) => {
    const server = await started(t, fsdp);
    const folder = await mkdtemp(path.join(root, 'taken-'));
    const impatient = (): TinkerTrainer => openTrainer(server.url, {}, [], { roomPatienceMs: 0 });
    const [first, second] = [openTrainer(server.url), impatient()];
    t.after(() => Promise.all([first.close(), second.close()]));
    const isTold = (error: unknown): boolean => {
      assert.ok(error instanceof RatchetError && error.isRetryable, String(error));
      assert.equal(error.code, 'TrainerUnavailable');
      assert.match(error.message, /holds one model at a time: another run that trains there keeps it until it ends or rests/); // prettier-ignore
      return true;
    };
    await first.makeBase(path.join(folder, 'one'), { ...part, files: presetFiles(model) });
    await assert.rejects(second.makeBase(path.join(folder, 'two'), { ...part, files: presetFiles(model) }), isTold);
    first.rest();
    await second.makeBase(path.join(folder, 'two'), { ...part, files: presetFiles(model) });
    second.rest();
    await first.trainStep(stepOf(0.1, 1));
    await assert.rejects(second.trainStep(stepOf(0.1, 1)), isTold);
    await first.exportTo(path.join(folder, 'v1'));
    first.rest();
    assert.ok((await second.trainStep(stepOf(0.1, 1))).applied);
  });

  test('is sampled from its latest weights: a turn says of which step they were, and a lost model is made again', async (t) => {
    const home = await mkdtemp(path.join(root, 'latest-'));
    const server = await StandInProcess.start({ folder: home, model, ...fsdp });
    t.after(() => server.kill());
    const trainer = openTrainer(server.url);
    const inference = openInference(t, server.url);
    const [v0, v1] = [path.join(home, 'v0'), path.join(home, 'v1')];
    await trainer.makeBase(v0, { ...part, files: presetFiles(model) });
    const before = await sampleOf(inference, v0, 0);
    assert.equal(before.servedStep, undefined);
    await trainer.trainStep(stepOf(50, 1));
    await trainer.exportTo(v1);
    const late = await sampleOf(inference, v0, 0);
    assert.deepEqual([late.servedStep, late.servedThrough], [undefined, 1], 'it may be of v1 already');
    assert.equal((await sampleOf(inference, v0, 0)).servedStep, 1);
    const current = await sampleOf(inference, v1, 1);
    assert.deepEqual([current.servedStep, current.servedThrough], [undefined, undefined]);
    assert.equal(await inference.hold(await served(v1, 1)), 'single');
    assert.equal(await inference.score({ policy: await served(v0, 0), tokenIds: [5, 6, 7], positions: [1] }), null);

    await server.kill();
    await server.start();
    assert.deepEqual(
      await sampleOf(inference, v1, 1),
      current,
      'from its training checkpoint, before the trainer comes',
    );
    assert.ok((await trainer.trainStep(stepOf(0.1, 2))).applied, 'the trainer takes the room back');
    await trainer.close();
  });

  test('refuses the reference of a KL penalty by its reason', async (t) => {
    const server = await started(t, fsdp);
    const trainer = openTrainer(server.url);
    t.after(() => trainer.close());
    const v0 = await mkdtemp(path.join(root, 'kl-'));
    await trainer.makeBase(v0, { ...part, files: presetFiles(model) });
    const { plan, batch } = stepOf(0.1, 1);
    await assert.rejects(trainer.trainStep({ plan: { ...plan, klBeta: 0.1 }, batch, referenceFolder: v0 }), {
      code: 'Unsupported',
      message: /holds one model at a time.*Leave \[kl_penalty\] out/,
    });
  });

  for (const [what, wish, options] of [
    ['the merged weights of the whole model are the version, as a plain tar', part, { ...fsdp, merges: true }],
    ['all weights are trained, by a model of rank 0', { lora: null, seed: 7 }, { ...fsdp, takesRankZero: true }],
  ] as const) {
    test(what, async (t) => {
      const server = await started(t, options);
      const trainer = openTrainer(server.url);
      t.after(() => trainer.close());
      const [v0, v1] = [await mkdtemp(path.join(root, 'whole-')), await mkdtemp(path.join(root, 'whole-'))];
      await trainer.makeBase(v0, { ...wish, files: presetFiles(model) });
      const { digest } = await trainer.trainStep(stepOf(1e-2, 1));
      const state = await trainer.saveOptimizer();
      await trainer.exportTo(v1);
      const files = await readdir(v1);
      assert.ok(files.includes('model.safetensors') && files.includes('config.json'), files.join());
      assert.ok(!files.includes('adapter_config.json'));
      const engine = await EngineOptimizer.open(v1, { threads: 1 });
      t.after(() => engine.close());
      const [row] = rows(3);
      const [scored] = await trainer.logprobs([row!], 1);
      const [own] = await engine.forwardLogprobs([row!], { temperature: 1 });
      own!.forEach((logprob, t_) => assert.ok(row!.lossMask[t_] === 0 || Math.abs(logprob - scored![t_]!) < 1e-4));
      assert.equal((await trainer.open(v1, wish)).digest, digest);
      await trainer.restoreOptimizer(state);
      assert.ok((await trainer.trainStep(stepOf(1e-2, 2))).applied);
    });
  }

  test('a server that trains no whole weights is named', async (t) => {
    const server = await started(t);
    const trainer = openTrainer(server.url);
    t.after(() => trainer.close());
    const made = trainer.makeBase(path.join(root, 'none'), { lora: null, seed: 7, files: presetFiles(model) });
    await assert.rejects(made, { code: 'Unsupported', message: /does not train all weights: .*rank 0.*Add \[lora\]/ });
  });
});

test('a version is found in its model, however many others the server has had since', async (t) => {
  const server = await started(t, megatron);
  const trainer = openTrainer(server.url);
  t.after(() => trainer.close());
  const v0 = await mkdtemp(path.join(root, 'old-'));
  await trainer.makeBase(v0, { ...part, files: presetFiles(model) });
  const version = await readVersion(v0);
  const client = new TinkerClient({ url: server.url, apiKeyVar: null, server: 'skyrl' });
  t.after(() => client.close());
  for (let i = 0; i < 60; i++) {
    const other = await client.createModel({ baseModel: version.baseModel, rank: 4, seed: i });
    await other.unload();
  }
  assert.deepEqual((await pathsOf(client, version)).map(({ modelId }) => modelId), [version.modelId]); // prettier-ignore
});

describe('a server like TuFT', () => {
  test('that is started again between the gradients and the step restores a model without them: the step is begun anew, to the same weights', async (t) => {
    const home = await mkdtemp(path.join(root, 'tuft-'));
    const server = await StandInProcess.start({ folder: home, model, ...tuft, callMs: { optim_step: 300 } });
    t.after(() => server.kill());
    const checkpointDir = path.join(home, 'checkpoints');
    const trainer = openTrainer(server.url, { checkpointDir });
    const [base, first] = [path.join(home, 'v0'), path.join(home, 'v1')];
    await trainer.makeBase(base, { ...part, files: presetFiles(model) });
    await trainer.trainStep(stepOf(0.1, 1));
    const state = await trainer.saveOptimizer();
    await trainer.exportTo(first);
    const expected = await trainer.trainStep(stepOf(0.1, 2));
    await trainer.open(first, part);
    await trainer.restoreOptimizer(state);
    const again = trainer.trainStep(stepOf(0.1, 2));
    await untilPromised(home, 2);
    await server.kill();
    await server.start();
    assert.equal((await again).digest, expected.digest);
    await trainer.close();
  });

  test('its weights are read from the folder that checkpoint_dir names, and from no other', async (t) => {
    const server = await started(t, tuft);
    const none = openTrainer(server.url);
    t.after(() => none.close());
    const make = (trainer: TinkerTrainer) =>
      trainer.makeBase(path.join(root, 'tuft-none'), { ...part, files: presetFiles(model) });
    await assert.rejects(make(none), { code: 'ConfigInvalid', message: /Expected \[trainer\] checkpoint_dir/ });
    const elsewhere = openTrainer(server.url, { checkpointDir: await mkdtemp(path.join(root, 'elsewhere-')) });
    t.after(() => elsewhere.close());
    await assert.rejects(make(elsewhere), /expected a folder below \[trainer\] checkpoint_dir/);
  });
});

test('samples are taken in a session where the server wants one, and beside the base model’s name where it wants that', async (t) => {
  const home = await mkdtemp(path.join(root, 'sessions-'));
  const server = await StandInProcess.start({ folder: home, model, ...tuft });
  t.after(() => server.kill());
  const trainer = openTrainer(server.url, { checkpointDir: path.join(home, 'checkpoints') });
  const inference = openInference(t, server.url);
  const v0 = path.join(home, 'v0');
  await trainer.makeBase(v0, { ...part, files: presetFiles(model) });
  const both = await Promise.all([sampleOf(inference, v0, 0), sampleOf(inference, v0, 0)]);
  assert.deepEqual(both[1], both[0]);
  await server.kill();
  await server.start();
  assert.deepEqual(await sampleOf(inference, v0, 0), both[0], 'in another session');
  await trainer.close();

  const named = await started(t, { ...fsdp, wantsBase: true });
  const other = openTrainer(named.url);
  t.after(() => other.close());
  const base = await mkdtemp(path.join(root, 'named-'));
  await other.makeBase(base, { ...part, files: presetFiles(model) });
  assert.deepEqual(await sampleOf(openInference(t, named.url), base, 0), both[0]);
});

async function sampleOf(inference: TinkerInference, folder: string, step: number) {
  const policy = await served(folder, step);
  return inference.sample({ policy, promptTokenIds: [5, 6, 7], maxTokens: 6, temperature: 1, seed: 11 });
}

async function served(weights: string, step: number): Promise<ServedPolicy> {
  const { digest } = await readVersion(weights);
  const file = { key: '', sha256: '', bytes: 0 };
  return { name: `v${step}`, folder: weights, version: { step, digest, weights: '', file, sums: file } };
}

function stepOf(learningRate: number, seed: number) {
  const plan = { step: 1, loss: grpo, learningRate, optimizer, numIterations: 1, temperature: 1, klBeta: 0 };
  return { plan: plan as unknown as StepPlan, batch: batchOf(rows(seed)) };
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
    };
  });
}

async function assertSameAdapter(version: string, engine: EngineOptimizer): Promise<void> {
  const { tensors } = decodeSafetensors(await readFile(path.join(version, 'adapter_model.safetensors')), version);
  let [largest, moved] = [0, 0];
  for (const { name } of engine.adapter!.layout) {
    const [ours, theirs] = [tensors.get(name)!.data as Float32Array, engine.adapter!.view(name)];
    theirs.forEach((value, i) => (largest = Math.max(largest, Math.abs(value - ours[i]!))));
    moved = Math.max(moved, ...ours.map(Math.abs));
  }
  assert.ok(largest < 2e-4, `weights differ by ${largest}`);
  assert.ok(moved > 0.5, 'the step shows');
}

/** Resolves once the server has promised so many results. */
async function untilPromised(home: string, more: number): Promise<void> {
  const file = path.join(home, 'journal.jsonl');
  const count = async () => (await readFile(file, 'utf8')).split('"future"').length;
  const begun = await count();
  while ((await count()) < begun + more) await new Promise((resolve) => setTimeout(resolve, 20));
}
