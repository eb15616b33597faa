import { existsSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import type { LoraSpec } from '../../config/run-spec.ts';
import type { BatchColumns } from './batch-columns.ts';
import type { BatchFile, StepSettings } from './given-batches.ts';
import { LogLines } from './log-lines.ts';
import { MetricsRows } from './metrics-rows.ts';
import { writeMicroBatches } from './micro-batch-wire.ts';
import { packRows, type PackingOptions } from './packing.ts';
import { mainSettings, olderSettings, type StartSettings, type TrainerSettings } from './settings-file.ts';
import { writeTrainingBatch } from './training-batch-wire.ts';

/** How one generation of prime-rl’s trainer is told its steps, and tells what they gave. Our steps count from 1. */
export interface TrainerForm {
  readonly settings: (settings: TrainerSettings, start: StartSettings) => string;
  /** What has to be in a start’s folder before it begins. */
  readonly prepare: (start: {
    readonly folder: string;
    readonly from: number;
    readonly lora: LoraSpec | null;
  }) => Promise<void>;
  /** Folders of a step in a start’s, and the trainer’s own number of its batch. */
  readonly batchFolder: (step: number) => string;
  readonly broadcastFolder: (step: number) => string;
  readonly numberOf: (step: number) => number;
  /** Files of a batch, with what its loss/mean is multiplied with to be the batch’s loss. */
  readonly batch: (columns: BatchColumns, how: BatchOptions) => BatchForm;
  /** Whether it has loaded its weights, and waits for a batch. */
  readonly isReady: (start: {
    readonly folder: string;
    readonly from: number;
    readonly marker: string;
    readonly log: string;
  }) => Promise<boolean>;
  /** Reads the figures of steps as they come. */
  readonly figures: (start: { readonly folder: string; readonly log: string }) => {
    of(step: number): Promise<Readonly<Record<string, number>>>;
  };
  /** How far a learning rate that it tells is off the one that it used. */
  readonly rateTolerance: number;
  /** Its checkpoint of a step comes after everything else of that step. */
  readonly checkpointsLast: boolean;
}

interface BatchOptions {
  /** Names of the fields of a micro-batch, or of a sample, as the installation has them. */
  readonly fields: readonly string[];
  readonly seqLen: number;
  readonly ranks: number;
  readonly cp: number;
  /** The run’s step. */
  readonly step: number;
  readonly cost?: PackingOptions['cost'];
}

interface BatchForm {
  readonly files: readonly BatchFile[];
  readonly settings: Pick<StepSettings, 'loss_scale'>;
  readonly parts: number;
}

/** The main branch since August 2026: batches come packed for each rank, and metrics are in a file. */
export const mainForm: TrainerForm = {
  settings: mainSettings,
  prepare: () => Promise.resolve(),
  batchFolder: (step) => path.join('rollouts', `step_${step}`),
  broadcastFolder: (step) => path.join('broadcasts', `step_${step}`),
  numberOf: (step) => step,
  batch(columns, { fields, seqLen, ranks, cp, cost }) {
    const grid = packRows(columns.lengths, { seqLen, ranks: ranks / cp, padToMultipleOf: cp, ...present({ cost }) });
    const files = grid.map((batches, rank): BatchFile => ({
      name: `rank_${rank}.bin`,
      write: (out) => writeMicroBatches(out, columns, batches, fields),
    }));
    return { files, settings: {}, parts: grid.flat().length };
  },
  isReady: ({ folder, from, marker }) =>
    Promise.resolve(existsSync(path.join(folder, 'broadcasts', `step_${from}`, marker))),
  figures: ({ folder }) => new MetricsRows(path.join(folder, 'metrics.jsonl')),
  rateTolerance: 1e-6,
  checkpointsLast: false,
};

/** Folder of the only run that a trainer of the older form has. */
const run = 'run_default';

/**
 * v0.4.0: the trainer packs samples itself, counts batches from 0, and says what a step gave in its log. It goes on at the batch of the highest folder in
 * `run_default/checkpoints`, whatever checkpoint it loads: there is exactly the one of the step that it continues from.
 */
export const olderForm: TrainerForm = {
  settings: olderSettings,
  async prepare({ folder, from, lora }) {
    await mkdir(path.join(folder, run, 'control'), { recursive: true });
    const adapters = lora === null ? '' : `[model.lora]\nrank = ${lora.r}\nalpha = ${lora.alpha}\n`;
    await writeFile(path.join(folder, run, 'control', 'orch.toml'), adapters, { mode: 0o600 });
    if (from > 0) await mkdir(path.join(folder, run, 'checkpoints', `step_${from}`), { recursive: true });
  },
  batchFolder: (step) => path.join(run, 'rollouts', `step_${step - 1}`),
  broadcastFolder: (step) => path.join(run, 'broadcasts', `step_${step}`),
  numberOf: (step) => step - 1,
  batch(columns, { fields, seqLen, ranks, cp, step }) {
    const workers = ranks / cp;
    // Its packer fills the same bins, and adds empty ones until each rank has equally many.
    const bins = packRows(columns.lengths, { seqLen, ranks: 1 }).flat().length;
    const ofRank = Math.ceil(bins / workers);
    let counted = 0;
    for (const mask of columns.mask) counted += mask;
    if (counted === 0 || Object.keys(columns.streams).length > 0)
      throw new RatchetError(
        'Unsupported',
        `prime-rl’s trainer of step ${step} is of a release whose batches have one advantage a row and nothing else: expected aggregation = "token", no warm-up, no teacher and no tokens of environments. prime-rl’s main branch has them.`,
      );
    const write: BatchFile['write'] = (out) => writeTrainingBatch(out, columns, { fields, step: step - 1 });
    // It divides a loss that is not its own by the micro-batches of a rank; ranks are averaged.
    return {
      files: [{ name: 'rollouts.bin', write }],
      settings: { loss_scale: (ofRank * workers) / counted },
      parts: ofRank,
    };
  },
  isReady: ({ log }) => new LogLines(log).hasBegun(),
  figures: ({ log }) => new LogLines(log),
  // It prints three digits.
  rateTolerance: 6e-3,
  checkpointsLast: true,
};
