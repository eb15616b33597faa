import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { processesIn } from '../../../backends/prime-rl/processes.mjs';
import type { PrimeRlOptions } from '../../../backends/prime-rl/trainer-starts.ts';
import { lossOf, planOf, rowsOf, writePreset } from '../../../backends/testing/index.ts';
import type { TrainOutcome } from '../../../backends/trainer/types.ts';
import { PrimeRlTrainer } from '../../../backends/trainer/prime-rl.ts';
import { RatchetError } from '../../../core/errors.ts';
import { batchOf, type TrainSample } from '../../../core/rl/learning/batch.ts';
import type { PlannedFault } from '../../stand-ins/prime-rl/faults.ts';
import { writeStandInPrimeRl } from '../../stand-ins/prime-rl/python.ts';

/** Where a fault happens, named after what has happened. */
export const gaps = ['read', 'backward', 'optimizer', 'weights', 'marker', 'shards', 'checkpoint', 'metrics'] as const;

/** Trainers over the stand-in, in a folder of this test process. */
export class Bench {
  readonly folder = mkdtempSync(path.join(tmpdir(), 'ratchet-prime-rl-'));
  readonly python: string;
  readonly model = path.join(this.folder, 'model');
  rows: readonly TrainSample[] = [];
  #made = 0;
  #plans = 0;
  readonly #trainers: PrimeRlTrainer[] = [];

  constructor({ isOlder = false } = {}) {
    this.python = writeStandInPrimeRl(this.folder, { isOlder });
    process.env['RATCHET_PENDING'] = this.folder;
    process.env['RATCHET_PRIME_RL_VARIABLES'] = 'STAND_IN_FAULTS, STAND_IN_LOOK, STAND_IN_RATE';
  }

  static async make(options: { readonly isOlder?: boolean } = {}): Promise<Bench> {
    const bench = new Bench(options);
    await writePreset(bench.model);
    bench.rows = await rowsOf(bench.model);
    return bench;
  }

  trainer(options: Partial<PrimeRlOptions> = {}): PrimeRlTrainer {
    const usual = { ranks: 1, checkpointInterval: 2, maxSteps: 6, seqLen: 64, rankTimeoutS: 20, more: {} };
    const trainer = new PrimeRlTrainer({ python: this.python, ...usual, ...options });
    this.#trainers.push(trainer);
    return trainer;
  }

  async opened(options: Partial<PrimeRlOptions> = {}): Promise<PrimeRlTrainer> {
    const trainer = this.trainer(options);
    await trainer.open(this.model, { lora: null, seed: 1 });
    return trainer;
  }

  /** Step n has a learning rate of its own. */
  step(trainer: PrimeRlTrainer, step: number, rows: readonly TrainSample[] = this.rows): Promise<TrainOutcome> {
    const plan = planOf({ step, loss: lossOf('dppo'), learningRate: 1e-3 * step });
    return trainer.trainStep({ plan, batch: batchOf(rows), referenceFolder: this.model });
  }

  /** Trains steps from one number to another; gives the digests. */
  async steps(trainer: PrimeRlTrainer, first: number, last: number): Promise<string[]> {
    const digests: string[] = [];
    for (let step = first; step <= last; step++) digests.push((await this.step(trainer, step)).digest);
    return digests;
  }

  /** What a GPU worker does after a death: another trainer, from the newest checkpoint that it has, and the stored batches. */
  async throughDeaths(ranks: number, last: number): Promise<{ readonly digests: string[]; readonly deaths: number }> {
    let deaths = 0;
    let trainer = await this.opened({ ranks });
    const digests: string[] = [];
    let saved: { readonly step: number; readonly weights: string; readonly state: string } | null = null;
    for (let step = 1; step <= last;) {
      try {
        digests[step - 1] = (await this.step(trainer, step)).digest;
        if (step % 2 === 0) {
          saved = { step, weights: this.newFolder(), state: this.newFolder() };
          await trainer.exportTo(saved.weights, { base: '' });
          await trainer.saveOptimizer(saved.state);
        }
        step += 1;
      } catch (error) {
        assert.ok(error instanceof RatchetError && error.code === 'EngineDied', String(error));
        assert.deepEqual(this.processes(), [], 'none of its processes is left');
        deaths += 1;
        await trainer.close();
        trainer = this.trainer({ ranks });
        await trainer.open(saved?.weights ?? this.model, { lora: null, seed: 1 });
        await trainer.restoreOptimizer(saved && { folder: saved.state });
        step = (saved?.step ?? 0) + 1;
      }
    }
    await trainer.close();
    return { digests, deaths };
  }

  newFolder(): string {
    this.#made += 1;
    const folder = path.join(this.folder, `made-${this.#made}`);
    mkdirSync(folder);
    return folder;
  }

  plan(faults: readonly PlannedFault[]): void {
    this.#plans += 1;
    const file = path.join(this.folder, `faults-${this.#plans}.json`);
    writeFileSync(file, JSON.stringify(faults));
    process.env['STAND_IN_FAULTS'] = file;
  }

  /** Processes of trainers that are still there. */
  processes(): number[] {
    return readdirSync(this.folder)
      .filter((name) => name.startsWith('ratchet-prime-rl-'))
      .flatMap((name) => processesIn(path.join(this.folder, name)));
  }

  async close(): Promise<void> {
    for (const trainer of this.#trainers) await trainer.close();
    rmSync(this.folder, { recursive: true, force: true });
  }
}
