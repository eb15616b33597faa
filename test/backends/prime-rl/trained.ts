import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { processesIn } from '../../../backends/prime-rl/processes.mjs';
import type { PrimeRlOptions } from '../../../backends/prime-rl/trainer-starts.ts';
import { lossOf, planOf, rowsOf, writePreset } from '../../../backends/testing/index.ts';
import type { TrainOutcome } from '../../../backends/trainer/types.ts';
import { PrimeRlTrainer } from '../../../backends/trainer/prime-rl.ts';
import { batchOf, type TrainSample } from '../../../core/rl/learning/batch.ts';
import type { PlannedFault } from '../../stand-ins/prime-rl/faults.ts';
import { writeStandInPrimeRl } from '../../stand-ins/prime-rl/python.ts';

/** Trainers over the stand-in, in a folder of this test process. */
export class Bench {
  readonly folder = mkdtempSync(path.join(tmpdir(), 'ratchet-prime-rl-'));
  readonly python = writeStandInPrimeRl(this.folder);
  readonly model = path.join(this.folder, 'model');
  rows: readonly TrainSample[] = [];
  #made = 0;
  #plans = 0;
  readonly #trainers: PrimeRlTrainer[] = [];

  constructor() {
    process.env['RATCHET_PENDING'] = this.folder;
    process.env['RATCHET_PRIME_RL_VARIABLES'] = 'STAND_IN_FAULTS, STAND_IN_LOOK';
  }

  static async make(): Promise<Bench> {
    const bench = new Bench();
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
