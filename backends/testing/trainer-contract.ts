import assert from 'node:assert/strict';
import { mkdir, readdir, rm } from 'node:fs/promises';
import path from 'node:path';
import { after, describe, test, type TestContext } from 'node:test';
import { batchOf, type TrainSample } from '../../core/rl/learning/batch.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import type { LossSettings } from '../../config/run-spec.ts';
import { decisions } from './decisions.ts';
import { OnnxTrainer } from '../trainer/onnx.ts';
import type { AnyTrainer as Trainer, TrainedPart, TrainOutcome } from '../trainer/index.ts';
import {
  type ContractLoss,
  contractLosses,
  contractOptimizer,
  engineLogprobs,
  farthest,
  gradientSteps,
  lossOf,
  nearPolicy,
  planOf,
  requireWeightFiles,
  rowsOf,
  temporaryFolder,
  updateDifference,
  writePreset,
} from './material.ts';

/** Optional abilities of a trainer; the suite tests the promised ones. */
export interface TrainerPromises {
  /** Every other policy loss must be refused. */
  readonly losses: readonly ContractLoss[];
  /** Supported aggregations of token losses; `token` alone when left out. */
  readonly aggregations?: readonly LossSettings['aggregation'][];
  /** Supported sampling temperatures; 1 alone when left out. */
  readonly temperatures?: readonly number[];
  /** The KL penalty against a reference policy (`klBeta` > 0). */
  readonly penalizesKl?: boolean;
  /** Equal steps from equal versions give equal digests, in another trainer, too. */
  readonly exactReplay?: boolean;
  /** `saveOptimizer` returns enough to resume without a difference. */
  readonly savesOptimizer?: boolean;
  /**
   * `restoreOptimizer(null)` drops the optimizer's moments; true when left out. SkyRL 0.3.0 always loads those of a
   * checkpoint, so tests that would begin at a trained version begin at the first one.
   */
  readonly startsAfresh?: boolean;
  /** Draws its first adapters otherwise than the embedded engine, and shows them after a step only: no step of both begins at equal ones. */
  readonly drawsAdapters?: boolean;
  /** A batch without a finite gradient is refused, and changes nothing. */
  readonly refuses?: boolean;
  /** `sftStep` trains, so that a run may begin with a warm-up. */
  readonly supervises?: boolean;
  /** Implements `logprobs`. */
  readonly scores?: boolean;
  /** Exports Hugging Face or PEFT files that the embedded engine reads. */
  readonly exportsModels?: boolean;
  /**
   * How far its update Δ′ of the weights may be off the embedded engine's Δ, as ‖Δ − Δ′‖ / ‖Δ‖: of trainers that compute in float32. Log probabilities
   * alone are compared when left out.
   */
  readonly sameUpdate?: number;
}

export interface TrainerUnderTest {
  /** A trainer without any state, as in another process. The suite closes it. */
  readonly open: () => Promise<Trainer>;
  /** Folder of the initial model; the 0.2 M parameter preset when left out. */
  readonly model?: () => Promise<string>;
  /** Folder of its adapters' base weights, if `model` is an adapter itself; `model` when left out. */
  readonly base?: () => string;
  /** Part in training; all weights when left out. */
  readonly part?: TrainedPart;
  readonly promises: TrainerPromises;
  /** Peak rate of the steps that are to learn; 1e-2 when left out. */
  readonly learningRate?: number;
  /** Largest deviation of logprobs from the embedded engine's, nats; 1e-3 when left out. */
  readonly tolerance?: number;
}

const allWeights: TrainedPart = { lora: null, seed: 1 };

/** Contract of every trainer (`backends/trainer/types.ts`), as tests of `node:test`. */
export function trainerContract(name: string, under: TrainerUnderTest): void {
  const { promises, part = allWeights, tolerance = 1e-3, learningRate = 1e-2 } = under;
  const {
    exactReplay = false,
    exportsModels = false,
    startsAfresh = true,
    scores = false,
    temperatures = [1],
  } = promises;
  const [firstLoss] = promises.losses;
  assert(firstLoss, 'a trainer has one loss at least');
  const loss = lossOf(firstLoss, promises.aggregations?.[0]);
  const temperature = temperatures[0] ?? 1;

  /** Many tests share one trainer, since opening a folder forgets everything else. */
  const shared: { own?: Promise<Trainer>; engine?: OnnxTrainer } = {};

  async function begin(t: TestContext): Promise<Stage> {
    const root = await temporaryFolder(t);
    const model = under.model ? await under.model() : await writePreset(path.join(root, 'step_0'));
    const stage = new Stage({ root, model, base: under.base?.() ?? model, part, rows: await rowsOf(model) });
    t.after(() => stage.close());
    return stage;
  }
  const openIn = async (trainer: Trainer, folder: string): Promise<Trainer> => {
    await trainer.open(folder, part);
    await trainer.restoreOptimizer(null);
    return trainer;
  };
  /** A trainer that was used before. */
  const usedAt = async (stage: Stage): Promise<Trainer> => openIn(await (shared.own ??= under.open()), stage.model);
  /** A trainer for one test alone. */
  const openAt = async (stage: Stage, folder = stage.model): Promise<Trainer> =>
    openIn(stage.own(await under.open()), folder);
  /** Logprobs as far as visible from outside: the trainer's own, or the embedded engine's from its files. */
  const logprobsOf = async (stage: Stage, trainer: Trainer): Promise<readonly ArrayLike<number>[]> => {
    if (trainer.logprobs) return trainer.logprobs(stage.rows, temperature);
    return engineLogprobs(await stage.exported(trainer), stage.rows, temperature);
  };

  describe(`${name} keeps the promises of a trainer`, () => {
    after(async () => {
      await (await shared.own)?.close();
      await shared.engine?.close();
    });

    test('a folder that is opened has a digest, the same each time and for everybody', async (t) => {
      const stage = await begin(t);
      const [first, second] = [stage.own(await under.open()), stage.own(await under.open())];
      const { digest } = await first.open(stage.model, part);
      assert.match(digest, /^[0-9a-f]{64}$/);
      assert.equal(await first.digest(), digest);
      assert.equal((await second.open(stage.model, part)).digest, digest);
    });

    test('a step gives another version, figures that are numbers, and the digest that it then has', async (t) => {
      const stage = await begin(t);
      const trainer = await usedAt(stage);
      const before = await trainer.digest();
      const outcome = await stage.step(trainer, { loss, temperature });
      assert.equal(outcome.applied, true, outcome.reason);
      assert.notEqual(outcome.digest, before);
      assert.equal(await trainer.digest(), outcome.digest);
      assert.ok('loss' in outcome.metrics, 'the metrics have a loss');
      for (const [metric, value] of Object.entries(outcome.metrics)) assert.ok(Number.isFinite(value), metric);
    });

    test('opening a folder again forgets what was trained since', async (t) => {
      const stage = await begin(t);
      const trainer = await usedAt(stage);
      const before = await trainer.digest();
      await stage.step(trainer, { loss, temperature });
      assert.equal((await trainer.open(stage.model, part)).digest, before);
    });

    test('opening a folder again forgets the optimizer’s state, too', async (t) => {
      if (!exactReplay || !promises.savesOptimizer)
        return t.skip('it does not promise the same bits, and its optimizer');
      const stage = await begin(t);
      const [used, fresh] = [await openAt(stage), stage.own(await under.open())];
      const opposite = stage.rows.map((row) => ({ ...row, advantages: row.advantages.map((one) => -one) }));
      await stage.step(used, { loss, temperature, learningRate }, opposite);
      const digests = [];
      for (const trainer of [used, fresh]) {
        await trainer.open(stage.model, part);
        digests.push((await stage.step(trainer, { loss, temperature, learningRate })).digest);
      }
      assert.equal(digests[0], digests[1]);
    });

    for (const { what, plan, rows } of decisions(firstLoss)) {
      test(`${what} decides the step, or is refused`, async (t) => {
        if (!exactReplay) return t.skip('it does not promise the same bits');
        const stage = await begin(t);
        const first = { loss, temperature, learningRate, step: 1 };
        const digests = [];
        for (const isOther of [false, true]) {
          const trainer = await usedAt(stage);
          const before = (await stage.step(trainer, first)).digest; // off the reference, and with moments
          const second = { ...first, step: 2, ...(isOther ? plan(first) : {}) };
          const step = stage.step(trainer, second, isOther && rows ? rows(stage.rows) : stage.rows);
          const outcome = await step.catch((error: unknown) => {
            if (isOther && isRefusal(error)) return null;
            throw error;
          });
          if (outcome === null) return;
          assert.notEqual(outcome.digest, before, outcome.reason);
          digests.push(outcome.digest);
        }
        assert.notEqual(digests[0], digests[1], 'it was taken, and changed nothing');
      });
    }

    test('an exported version is opened by another trainer under the digest it had', async (t) => {
      const stage = await begin(t);
      const trainer = await openAt(stage);
      const { digest } = await stage.step(trainer, { loss, temperature });
      const folder = await stage.exported(trainer);
      await requireWeightFiles(folder);
      assert.equal(await trainer.digest(), digest, 'exporting changes nothing');
      const files = await readdir(folder);
      for (const file of (await readdir(stage.model)).filter((name) => name.startsWith('tokenizer'))) {
        assert.ok(files.includes(file), `${file} is beside the weights: prompts are made with it`);
      }
      const other = stage.own(await under.open());
      assert.equal((await other.open(folder, part)).digest, digest);
    });

    test('a version that it was opened from may be removed while it trains', async (t) => {
      const stage = await begin(t);
      const version = await stage.exported(await openAt(stage));
      const texts = (await readdir(version)).filter((name) => name.startsWith('tokenizer'));
      const trainer = await openAt(stage, version);
      await rm(version, { recursive: true });
      const { digest } = await stage.step(trainer, { loss, temperature });
      const folder = await stage.exported(trainer);
      for (const file of texts) assert.ok((await readdir(folder)).includes(file), file);
      assert.equal((await stage.own(await under.open()).open(folder, part)).digest, digest);
    });

    test('training makes what had an advantage likelier, and what had a disadvantage less likely', async (t) => {
      if (!scores && !exportsModels) return t.skip('it promises neither logprobs nor files that can be read');
      const stage = await begin(t);
      const trainer = await usedAt(stage);
      const before = await logprobsOf(stage, trainer);
      for (let step = 1; step <= 5; step++) await stage.step(trainer, { loss, temperature, step, learningRate });
      const after = await logprobsOf(stage, trainer);
      const gain = (sign: number): number =>
        stage.rows.reduce((sum, { lossMask, advantages }, r) => {
          const counts = (t: number): boolean => lossMask[t] === 1 && Math.sign(advantages[t]!) === sign;
          return lossMask.reduce((of, _, t) => of + (counts(t) ? after[r]![t]! - before[r]![t]! : 0), sum);
        }, 0);
      assert.ok(gain(1) > 0, `tokens with an advantage gained ${gain(1)} nats`);
      assert.ok(gain(1) > gain(-1), `those with a disadvantage ${gain(-1)}`);
    });

    test('an advantage of one token makes that token likelier, and no neighbour of it', async (t) => {
      if (!scores && !exportsModels) return t.skip('it promises neither logprobs nor files that can be read');
      const stage = await begin(t);
      const trainer = await usedAt(stage);
      const before = await logprobsOf(stage, trainer);
      const isLast = (row: TrainSample, i: number): boolean => i === row.lossMask.length - 1;
      const rows = stage.rows.map((row, r) => ({
        ...row,
        behaviorLogprobs: row.lossMask.map((mask, i) => (mask === 0 ? 0 : before[r]![i]!)),
        advantages: row.lossMask.map((_, i) => Number(isLast(row, i))),
      }));
      for (let step = 1; step <= 3; step++) await stage.step(trainer, { loss, temperature, step, learningRate }, rows);
      const after = await logprobsOf(stage, trainer);
      const gains = { last: [] as number[], others: [] as number[] };
      stage.rows.forEach((row, r) =>
        row.lossMask.forEach((mask, i) => {
          if (mask === 1) gains[isLast(row, i) ? 'last' : 'others'].push(after[r]![i]! - before[r]![i]!);
        }),
      );
      const mean = (values: readonly number[]): number => values.reduce((sum, one) => sum + one, 0) / values.length;
      const [last, others] = [mean(gains.last), mean(gains.others)];
      assert.ok(last > 0 && last > others, `they gained ${last} nats, other tokens ${others}`);
    });

    test('the same steps from the same place give the same digests, in another trainer, too', async (t) => {
      if (!exactReplay) return t.skip('it does not promise the same bits');
      const stage = await begin(t);
      const digests = [];
      for (const trainer of [await openAt(stage), await openAt(stage)]) {
        const first = await stage.step(trainer, { loss, temperature, step: 1 });
        const second = await stage.step(trainer, { loss, temperature, step: 2 });
        digests.push([first.digest, second.digest]);
      }
      assert.deepEqual(digests[0], digests[1]);
    });

    test('two steps are one, a restart with the optimizer’s state, and another one', async (t) => {
      if (!promises.savesOptimizer) return t.skip('it does not promise to keep its optimizer');
      const stage = await begin(t);
      const trainer = await openAt(stage);
      const first = { loss, temperature, step: 1, learningRate };
      const second = { ...first, step: 2 };
      await stage.step(trainer, first);
      const folder = await stage.exported(trainer);
      const state = await trainer.saveOptimizer(await temporaryFolder(t));
      const onward = await stage.step(trainer, second);
      const undisturbed = scores || exportsModels ? await logprobsOf(stage, trainer) : null;

      const other = await openAt(stage, folder);
      await other.restoreOptimizer(state);
      const resumed = await stage.step(other, second);
      if (exactReplay) assert.equal(resumed.digest, onward.digest);
      if (!undisturbed) return;
      const off = farthest(stage.rows, await logprobsOf(stage, other), undisturbed);
      assert.ok(off <= tolerance, `logprobs are ${off} off those of the undisturbed trainer`);
      if (!startsAfresh) return;
      const fresh = await openAt(stage, folder);
      await stage.step(fresh, second);
      const without = farthest(stage.rows, await logprobsOf(stage, fresh), undisturbed);
      assert.ok(without > off, `without the state they are ${without} off, with it ${off}`);
    });

    test('a batch without a finite gradient is refused, and changes nothing', async (t) => {
      if (!promises.refuses) return t.skip('it does not promise to refuse');
      const stage = await begin(t);
      const trainer = await openAt(stage);
      const { digest } = await stage.step(trainer, { loss, temperature, step: 1 });
      const rows = stage.rows.map((row) => ({ ...row, advantages: row.lossMask.map((mask) => mask * Infinity || 0) }));
      const refused = await stage.step(trainer, { loss, temperature, step: 2 }, rows);
      assert.deepEqual([refused.applied, refused.digest, await trainer.digest()], [false, digest, digest]);
      assert.ok(refused.reason, 'it says why');
      if (!exactReplay) return;
      const other = await openAt(stage);
      for (const step of [1, 2]) await stage.step(other, { loss, temperature, step });
      const expected = await other.digest();
      other.rest?.(); // what both want may be there once
      assert.equal((await stage.step(trainer, { loss, temperature, step: 2 })).digest, expected);
    });

    test('supervised steps make their rows likelier', async (t) => {
      if (!promises.supervises) return t.skip('it does not promise supervised steps');
      const stage = await begin(t);
      const trainer = await usedAt(stage);
      const losses = [];
      for (let step = 0; step < 4; step++) {
        const outcome = await trainer.sftStep({ samples: stage.rows, learningRate, optimizer: contractOptimizer });
        assert.equal(outcome.applied, true, outcome.reason);
        losses.push(outcome.metrics['loss']!);
      }
      assert.ok(losses.at(-1)! < losses[0]!, losses.join(', '));
    });

    test('what it says of logprobs is what the files say that it exports', async (t) => {
      if (!scores || !exportsModels) return t.skip('it does not promise both');
      const stage = await begin(t);
      const trainer = await usedAt(stage);
      await stage.step(trainer, { loss, temperature, learningRate });
      const folder = await stage.exported(trainer);
      for (const at of temperatures) {
        const off = farthest(
          stage.rows,
          await trainer.logprobs!(stage.rows, at),
          await engineLogprobs(folder, stage.rows, at),
        );
        assert.ok(off <= tolerance, `at temperature ${at} they are ${off} off`);
      }
    });

    for (const type of promises.losses) {
      // The embedded engine only supports token aggregation in supervised steps.
      for (const aggregation of type === 'cross_entropy'
        ? (['token'] as const)
        : (promises.aggregations ?? ['token'])) {
        for (const at of temperatures) {
          test(`${type}, by ${aggregation}, at temperature ${at}: its gradient is that of the embedded engine`, (t) =>
            compare(t, { loss: lossOf(type, aggregation), temperature: at }));
        }
      }
    }

    test('the KL penalty pulls as that of the embedded engine', (t) => {
      if (!promises.penalizesKl) return t.skip('it does not promise a KL penalty');
      return compare(t, { loss, temperature, klBeta: 0.5 });
    });

    for (const type of contractLosses.filter((one) => !promises.losses.includes(one))) {
      test(`${type}, which it does not have, is refused and never replaced by another loss`, async (t) => {
        const stage = await begin(t);
        const trainer = await openAt(stage);
        const before = await trainer.digest();
        await assert.rejects(stage.step(trainer, { loss: lossOf(type), temperature }), isRefusal);
        assert.equal(await trainer.digest(), before);
      });
    }

    test('it may be closed twice, and without ever having been opened', async () => {
      const trainer = await under.open();
      await trainer.close();
      await trainer.close();
    });
  });

  /**
   * Compares a step by both from one version, whose adapters, if any, are no longer new: new ones are random. The
   * optimizer takes the gradient unchanged, so that its size shows as well as its direction.
   */
  async function compare(t: TestContext, what: Partial<StepPlan> & Pick<StepPlan, 'loss'>): Promise<void> {
    if (!exportsModels) return t.skip('it does not promise files that the embedded engine reads');
    if (promises.drawsAdapters) return t.skip('it draws its first adapters itself');
    const stage = await begin(t);
    const trainer = await usedAt(stage);
    if (startsAfresh) await stage.step(trainer, { loss, temperature, learningRate });
    const folder = await stage.exported(trainer);
    const { temperature: at = 1 } = what;
    const before = await engineLogprobs(folder, stage.rows, at);
    const rows = nearPolicy(stage.rows, before);
    const plan = { learningRate: 1, ...what, step: 2, optimizer: gradientSteps };
    const moved = [];
    const exports: string[] = [];
    shared.engine ??= new OnnxTrainer({ threads: 1 });
    for (const one of [shared.engine, trainer]) {
      await openIn(one, folder);
      await stage.step(one, plan, rows);
      exports.push(await stage.exported(one));
      moved.push(await engineLogprobs(exports.at(-1)!, stage.rows, at));
    }
    const [engine, own] = [moved[0]!, moved[1]!];
    const size = farthest(stage.rows, engine, before);
    const off = farthest(stage.rows, engine, own);
    assert.ok(size > 5 * tolerance, `the step is large enough to tell: ${size}`);
    assert.ok(off <= tolerance + 0.02 * size, `logprobs moved by up to ${size} nats, and are ${off} apart`);
    if (promises.sameUpdate === undefined) return;
    const different = await updateDifference(folder, exports[0]!, exports[1]!);
    assert.ok(different <= promises.sameUpdate, `the updates are ${different} of their length apart`);
  }
}

function isRefusal(error: unknown): boolean {
  return (error as { readonly code?: unknown }).code === 'Unsupported';
}

class Stage {
  readonly model: string;
  readonly rows: readonly TrainSample[];
  readonly #root: string;
  readonly #base: string;
  readonly #part: TrainedPart;
  readonly #trainers: Trainer[] = [];
  #exports = 0;

  constructor(of: {
    readonly root: string;
    readonly model: string;
    readonly base: string;
    readonly part: TrainedPart;
    readonly rows: readonly TrainSample[];
  }) {
    this.model = of.model;
    this.rows = of.rows;
    this.#root = of.root;
    this.#base = of.base;
    this.#part = of.part;
  }

  own<T extends Trainer>(trainer: T): T {
    this.#trainers.push(trainer);
    return trainer;
  }

  step(
    trainer: Trainer,
    plan: Partial<StepPlan> & Pick<StepPlan, 'loss'>,
    samples: readonly TrainSample[] = this.rows,
  ): Promise<TrainOutcome> {
    const whole = planOf({ ...plan, ...(this.#part.lora ? { dropoutSeed: plan.step ?? 1 } : {}) });
    return trainer.trainStep({ plan: whole, batch: batchOf(samples), referenceFolder: this.model });
  }

  /** Exports the trainer's policy to a new folder. */
  async exported(trainer: Trainer): Promise<string> {
    const folder = path.join(this.#root, `version_${++this.#exports}`);
    await mkdir(folder);
    await trainer.exportTo(folder, { base: path.relative(folder, this.#base) });
    return folder;
  }

  async close(): Promise<void> {
    for (const trainer of this.#trainers) await trainer.close();
  }
}
