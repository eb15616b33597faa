import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import {
  batchOf,
  decodeSafetensors,
  encodeSafetensors,
  EngineOptimizer,
  metricsRow,
  readTextFiles,
} from '../../../engine/index.ts';
import type { LossSettings, LoraSpec, OptimizerSpec } from '../../../config/run-spec.ts';
import type { ReadMicroBatch } from './micro-batches.ts';

/** The model in training: the embedded engine's, in float32, so that a version is what the same batch gives there. */

const adapterFile = 'adapter_model.safetensors';
const prefix = 'base_model.model.';

export interface StepOptions {
  readonly learningRate: number;
  readonly optimizer: OptimizerSpec;
  readonly loss: LossSettings;
}

export class StandInModel {
  readonly #engine: EngineOptimizer;
  readonly #folder: string;
  readonly #lora: LoraSpec | null;
  /** A step made its weights what is no number. */
  #isBroken = false;

  private constructor(engine: EngineOptimizer, folder: string, lora: LoraSpec | null) {
    this.#engine = engine;
    this.#folder = folder;
    this.#lora = lora;
  }

  static async open(folder: string, lora: LoraSpec | null, seed: number): Promise<StandInModel> {
    return new StandInModel(await EngineOptimizer.open(folder, { threads: 1, lora, seed }), folder, lora);
  }

  /** The model of a checkpoint. */
  static async resume(folder: string, checkpoint: string, lora: LoraSpec | null, seed: number): Promise<StandInModel> {
    const bytes = readFileSync(path.join(checkpoint, '__0_0.distcp'));
    const stateBytes = bytes.readUInt32LE(0);
    const made = mkdtempSync('scratch-'); // its working folder is the start's
    const texts = await readTextFiles(folder);
    for (const [name, text] of Object.entries(texts)) writeFileSync(path.join(made, name), text);
    const weights = bytes.subarray(4 + stateBytes);
    if (lora === null) writeFileSync(path.join(made, 'model.safetensors'), weights);
    else {
      writeFileSync(path.join(made, adapterFile), weights);
      writeFileSync(path.join(made, 'adapter_config.json'), configOf(lora, folder));
    }
    const engine = await EngineOptimizer.open(made, { threads: 1, lora, seed });
    if (stateBytes > 0) await engine.restoreState(bytes.subarray(4, 4 + stateBytes));
    return new StandInModel(engine, folder, lora);
  }

  get vocabulary(): number {
    return this.#engine.model.config.vocabularySize;
  }

  /** Trains whatever the batch says, on what is no number as well. */
  async step(
    batches: readonly ReadMicroBatch[],
    { learningRate, optimizer, loss }: StepOptions,
  ): Promise<Record<string, number>> {
    const rows = batches.flatMap(rowsIn);
    const learned = rows.filter(({ ceWeights }) => ceWeights.some((weight) => weight !== 0));
    const how = { learningRate, optimizer };
    if (learned.length > 0) {
      const count = learned.reduce((sum, { ceWeights }) => sum + ceWeights.filter((weight) => weight !== 0).length, 0);
      const samples = learned.map(({ tokenIds, ceWeights }) => ({ tokenIds, lossMask: ceWeights.map((weight) => Number(weight !== 0)), tokenWeights: ceWeights })); // prettier-ignore
      return this.#outcome(await this.#engine.sftStep(samples, { ...how, normalizer: count }));
    }
    const result = await this.#engine.trainStep(batchOf(rows.filter(({ lossMask }) => lossMask.includes(1))), {
      ...how,
      loss,
      temperature: 1,
      klBeta: 0,
    });
    return this.#outcome(result);
  }

  /** Writes weights as prime-rl does: of all weights a model's, of adapters their own without PEFT's prefix. */
  async broadcast(folder: string): Promise<void> {
    const made = mkdtempSync('scratch-'); // its working folder is the start's
    await this.#engine.exportWeights(made, { base: this.#folder });
    mkdirSync(folder, { recursive: true });
    for (const name of readdirSync(made).filter((each) => each.endsWith('.safetensors'))) {
      const { tensors } = decodeSafetensors(readFileSync(path.join(made, name)), name);
      const renamed = [...tensors].map(([key, tensor]) => {
        const data = this.#isBroken && tensor.data instanceof Float32Array ? tensor.data.map(() => Number.NaN) : tensor.data; // prettier-ignore
        return [key.replace(prefix, ''), { ...tensor, data }] as const;
      });
      writeFileSync(path.join(folder, name), encodeSafetensors(Object.fromEntries(renamed)));
    }
    if (this.#lora) writeFileSync(path.join(folder, 'adapter_config.json'), configOf(this.#lora, this.#folder));
    rmSync(made, { recursive: true });
  }

  /** Shards of a checkpoint; the metadata come from whoever calls. */
  async save(folder: string): Promise<void> {
    const made = mkdtempSync('scratch-'); // its working folder is the start's
    await this.#engine.exportWeights(made, { base: this.#folder });
    const state = Buffer.from(await this.#engine.saveState());
    const length = Buffer.alloc(4);
    length.writeUInt32LE(state.length);
    const weights = readFileSync(path.join(made, this.#lora ? adapterFile : 'model.safetensors'));
    mkdirSync(folder, { recursive: true });
    writeFileSync(path.join(folder, '__0_0.distcp'), Buffer.concat([length, state, weights]));
    rmSync(made, { recursive: true });
  }

  #outcome(result: Awaited<ReturnType<EngineOptimizer['sftStep']>>): Record<string, number> {
    if (!result.applied && !Number.isFinite(result.metrics.gradNorm)) this.#isBroken = true;
    return metricsRow(result.metrics);
  }
}

function rowsIn(batch: ReadMicroBatch) {
  let start = 0;
  return batch.sequence_lengths.map((length) => {
    const cut = <T>(values: readonly T[]): T[] => values.slice(start, start + length);
    const lossMask = cut(batch.loss_mask).map(Number);
    const row = {
      tokenIds: cut(batch.input_ids),
      lossMask,
      advantages: cut(batch.advantages),
      behaviorLogprobs: cut(batch.inference_logprobs),
      temperature: batch.temperatures[start]!,
      ceWeights: batch.ce_weights ? cut(batch.ce_weights) : lossMask.map(() => 0),
    };
    start += length;
    return row;
  });
}

function configOf(lora: LoraSpec, base: string): string {
  return JSON.stringify({
    peft_type: 'LORA',
    task_type: 'CAUSAL_LM',
    base_model_name_or_path: base,
    r: lora.r,
    lora_alpha: lora.alpha,
    lora_dropout: lora.dropout,
    bias: 'none',
    target_modules: [...lora.targetModules].sort(),
    modules_to_save: null,
  });
}
