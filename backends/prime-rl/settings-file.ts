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

/** The file of the main branch. */
export function mainSettings(settings: TrainerSettings, start: StartSettings): string {
  const { optimizer, lora } = start;
  const own: Table = {
    output_dir: start.folder,
    dist_timeout_seconds: settings.rankTimeoutS,
    ...present({ max_steps: start.last ?? undefined }),
    model: {
      name: start.modelFolder,
      ...modelTable(settings),
      ...present({ lora: lora ? loraTable(lora) : undefined }),
    },
    tokenizer: { name: start.modelFolder },
    optim: optimTable(optimizer, start.learningRate),
    scheduler: { type: 'constant' },
    loss: { type: 'custom', import_path: 'ratchet_prime_rl.objective.loss', kwargs: { settings: start.objective } },
    ckpt: { interval: start.interval },
    rollout_transport: { type: 'filesystem' },
    weight_broadcast: { type: 'filesystem' },
    monitors: { file: { path: 'metrics.jsonl' } },
    log: { level: 'debug' },
    ...(start.from > 0 ? { resume: { step: start.from } } : {}),
  };
  return encodeToml(merged(own, settings.more));
}

/** The file of v0.4.0. Weights beside its checkpoints would be a third copy. */
export function olderSettings(settings: TrainerSettings, start: StartSettings): string {
  const { optimizer, lora } = start;
  const own: Table = {
    output_dir: start.folder,
    dist_timeout_seconds: settings.rankTimeoutS,
    ...present({ max_steps: start.last ?? undefined }),
    model: {
      name: start.modelFolder,
      ...modelTable(settings),
      ...present({ lora: lora ? loraTable(lora) : undefined }),
    },
    tokenizer: { name: start.modelFolder },
    optim: optimTable(optimizer, start.learningRate),
    scheduler: { type: 'constant' },
    // It has other losses under these names.
    loss: {
      type: 'custom',
      import_path: 'ratchet_prime_rl.objective.loss',
      kwargs: { settings: { ...start.objective, by: 'ratchet' } },
    },
    ckpt: { interval: start.interval, weights: 'None', ...(start.from > 0 ? { resume_step: start.from } : {}) },
    rollout_transport: { type: 'filesystem' },
    weight_broadcast: { type: 'filesystem' },
    log: { level: 'debug' },
  };
  return encodeToml(merged(own, settings.more));
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

export function encodeToml(table: Table, path = ''): string {
  const entries = Object.entries(table);
  const plain = entries.filter(([, value]) => !isTable(value));
  const lines = plain.map(([name, value]) => `${JSON.stringify(name)} = ${encodeValue(value)}`);
  const tables = entries.flatMap(([name, value]) => {
    if (!isTable(value)) return [];
    const inner = path === '' ? JSON.stringify(name) : `${path}.${JSON.stringify(name)}`;
    return [`\n[${inner}]`, encodeToml(value, inner)];
  });
  return [...lines, ...tables].filter((line) => line !== '').join('\n') + (path === '' ? '\n' : '');
}

function encodeValue(value: Value): string {
  if (typeof value === 'number') return encodeNumber(value);
  if (typeof value === 'boolean') return String(value);
  if (typeof value === 'string') return JSON.stringify(value).replaceAll('\u007f', '\\u007f');
  if (Array.isArray(value)) return `[${value.map(encodeValue).join(', ')}]`;
  return `{ ${Object.entries(value)
    .map(([name, each]) => `${JSON.stringify(name)} = ${encodeValue(each)}`)
    .join(', ')} }`;
}

function encodeNumber(value: number): string {
  if (Number.isSafeInteger(value)) return String(value);
  if (Number.isFinite(value)) return /[.e]/.test(String(value)) ? String(value) : `${value}.0`;
  return Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '-inf';
}
