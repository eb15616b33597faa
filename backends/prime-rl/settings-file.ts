import { stringify } from 'smol-toml';
import { present } from '../../core/present.ts';
import type { LoraSpec, OptimizerSpec } from '../../config/run-spec.ts';

/** The settings file of prime-rl’s trainer, as TOML. */

type Value = string | number | boolean | readonly Value[] | { readonly [name: string]: Value };
export type Table = { readonly [name: string]: Value };

/** Settings of `[trainer]` that become some of prime-rl’s; a missing one is left to prime-rl. */
export interface TrainerSettings {
  readonly seqLen: number;
  readonly attn?: string | undefined;
  readonly compile?: boolean | undefined;
  readonly acFreq?: number | undefined;
  readonly optimizationDtype?: string | undefined;
  readonly reduceDtype?: string | undefined;
  readonly fsdpCpuOffload?: boolean | undefined;
  readonly optimCpuOffload?: boolean | undefined;
  readonly freezeMoeRouter?: boolean | undefined;
  readonly ep?: number | undefined;
  readonly cp?: number | undefined;
  readonly rankTimeoutS: number;
  /** Tables of its file as the user wrote them. Relations see to it that they have nothing of what is set here (relations/prime-rl.ts). */
  readonly more: Table;
}

/** What one start of the trainer is to do. */
export interface StartSettings {
  readonly folder: string;
  readonly modelFolder: string;
  readonly lora: LoraSpec | null;
  readonly optimizer: OptimizerSpec;
  readonly learningRate: number;
  /** Settings of python/ratchet_prime_rl/objective.py. */
  readonly objective: Table;
  /** Steps between its checkpoints. */
  readonly interval: number;
  /** The step that it continues from; 0 = it begins. */
  readonly from: number;
  /** It ends after this step, with a checkpoint; null = it goes on. */
  readonly last: number | null;
}

/** What generations of prime-rl’s trainer write differently. */
interface FileForm {
  /** Whether its losses that have the names of ours are ours. */
  readonly hasOwnLosses: boolean;
  /** The tables that only one of them has. */
  readonly own: (start: Pick<StartSettings, 'interval' | 'from'>) => Table;
}

/** The main branch. */
const main: FileForm = {
  hasOwnLosses: true,
  own: ({ interval, from }) => ({
    ckpt: { interval },
    monitors: { file: { path: 'metrics.jsonl' } },
    ...(from > 0 ? { resume: { step: from } } : {}),
  }),
};

/** v0.4.0. Weights beside its checkpoints would be a third copy. */
const older: FileForm = {
  hasOwnLosses: false,
  own: ({ interval, from }) => ({
    ckpt: { interval, weights: 'None', ...(from > 0 ? { resume_step: from } : {}) },
  }),
};

export const mainSettings = fileOf(main);
export const olderSettings = fileOf(older);

function fileOf({ hasOwnLosses, own }: FileForm): (settings: TrainerSettings, start: StartSettings) => string {
  return (settings, start) => {
    const { folder, modelFolder, lora, optimizer, learningRate, objective, last } = start;
    const loss = hasOwnLosses ? objective : { ...objective, by: 'ratchet' };
    const table: Table = {
      output_dir: folder,
      dist_timeout_seconds: settings.rankTimeoutS,
      ...present({ max_steps: last ?? undefined }),
      model: {
        name: modelFolder,
        ...modelTable(settings),
        ...present({ lora: lora ? loraTable(lora) : undefined }),
      },
      tokenizer: { name: modelFolder },
      optim: optimTable(optimizer, learningRate),
      scheduler: { type: 'constant' },
      loss: { type: 'custom', import_path: 'ratchet_prime_rl.objective.loss', kwargs: { settings: loss } },
      rollout_transport: { type: 'filesystem' },
      weight_broadcast: { type: 'filesystem' },
      log: { level: 'debug' },
      ...own(start),
    };
    return stringify(merged(table, settings.more));
  };
}

function modelTable(settings: TrainerSettings): Table {
  const { seqLen, compile, acFreq } = settings;
  return {
    seq_len: seqLen,
    ...present({
      attn: attention(settings.attn),
      compile: compile === undefined ? undefined : compile ? {} : 'None',
      ac: acFreq === undefined ? undefined : { freq: acFreq },
      optimization_dtype: settings.optimizationDtype,
      reduce_dtype: settings.reduceDtype,
      fsdp_cpu_offload: settings.fsdpCpuOffload,
      // It has the moments in the memory of the CPU by default, and refuses that beside the weights.
      optim_cpu_offload: settings.fsdpCpuOffload === true ? false : settings.optimCpuOffload,
      freeze_moe_router: settings.freezeMoeRouter,
      ep: settings.ep,
      cp: settings.cp,
    }),
  };
}

function attention(attn: string | undefined): string | undefined {
  return attn === 'fa4' ? 'flash_attention_4' : attn;
}

function loraTable({ r, alpha, dropout, targetModules, modulesToSave }: LoraSpec): Table {
  return {
    rank: r,
    alpha,
    dropout,
    target_modules: targetModules,
    ...present({ modules_to_save: modulesToSave }),
  };
}

/** The first step’s; `StepSettings` has those of each. */
function optimTable(optimizer: OptimizerSpec, learningRate: number): Table {
  const {
    type = 'adamw',
    beta1,
    beta2,
    momentum,
    nesterov,
    weightDecay: weight_decay,
    maxGradNorm: max_norm,
  } = optimizer;
  const own =
    type === 'adamw' || type === 'muon'
      ? { betas1: beta1, betas2: beta2, ...(type === 'muon' ? present({ mu: momentum }) : {}) }
      : type === 'sgd'
        ? present({ momentum, nesterov })
        : {};
  return { type, lr: learningRate, weight_decay, max_norm, ...own };
}

/** Lists are replaced, tables laid over one another. */
function merged(base: Table, over: Table): Table {
  const result: Record<string, Value> = { ...base };
  for (const [name, value] of Object.entries(over)) {
    const before = result[name];
    result[name] = isTable(before) && isTable(value) ? merged(before, value) : value;
  }
  return result;
}

function isTable(value: Value | undefined): value is Table {
  return typeof value === 'object' && !Array.isArray(value);
}
