import { readFileSync } from 'node:fs';
import path from 'node:path';
import { parse } from 'smol-toml';
import type { LossSettings, LoraSpec } from '../../../config/run-spec.ts';
import type { StepOptions } from './model.ts';

/** The trainer's own file, and what a rank is told of a step. */

export interface Settings {
  readonly output_dir: string;
  readonly max_steps?: number;
  readonly dist_timeout_seconds: number;
  readonly model: { readonly name: string; readonly seq_len: number; readonly lora?: LoraTable };
  readonly optim: { readonly type: 'adamw' | 'sgd'; readonly max_norm: number };
  readonly loss: { readonly kwargs: { readonly settings: LossSettings } };
  readonly ckpt: { readonly interval: number; readonly resume_step?: number };
  readonly resume?: { readonly step?: number };
}

interface LoraTable {
  readonly rank: number;
  readonly alpha: number;
  readonly dropout: number;
  readonly target_modules: string[];
}

interface ToldStep {
  readonly learning_rate: number;
  readonly weight_decay: number;
  readonly betas: readonly [number, number];
  readonly eps: number;
}

export function readSettings(file: string): Settings {
  return parse(readFileSync(file, 'utf8')) as unknown as Settings;
}

export function loraOf({ model: { lora: table } }: Settings): LoraSpec | null {
  if (!table) return null;
  return { r: table.rank, alpha: table.alpha, dropout: table.dropout, targetModules: table.target_modules };
}

/** What the objective of Ratchet sets in each rank before the update (python/ratchet_prime_rl/objective.py). */
export function optionsOf({ optim, loss }: Settings, batchFolder: string): StepOptions {
  const told = JSON.parse(readFileSync(path.join(batchFolder, 'settings.json'), 'utf8')) as ToldStep;
  const { settings } = loss.kwargs;
  return {
    learningRate: told.learning_rate,
    optimizer: {
      ...(optim.type === 'sgd' ? { type: 'sgd' as const } : {}),
      beta1: told.betas[0],
      beta2: told.betas[1],
      epsilon: told.eps,
      weightDecay: told.weight_decay,
      maxGradNorm: optim.max_norm,
    },
    loss: { ...settings, clipHigh: settings.clipHigh ?? 1, aggregation: 'token' },
  };
}
