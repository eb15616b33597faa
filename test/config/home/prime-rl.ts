/**
 * Fields of prime-rl's resolved run files, at home and here in the same words. Compares all that changes what is
 * trained.
 */
import { present } from '../../../core/present.ts';
import { learningRateAt } from '../../../core/rl/sampling/schedule.ts';
import type { RunSpec } from '../../../config/run-spec.ts';
import { isTable, type Table, tableOr } from '../../../config/toml/tables.ts';
import { defaultMuonMomentum } from '../../../engine/train/updates/muon.ts';
import type { Meaning } from './compare.ts';
import type { Home } from './files.ts';
import { environmentMeanings, sourcesOf } from './prime-rl-environments.ts';
import { learningMeanings } from './prime-rl-learning.ts';

const none = null;

/** A field that is one of ours as it is. */
function alike(
  what: string,
  reads: readonly string[],
  says: readonly string[],
  here: (spec: RunSpec) => unknown,
): Meaning {
  return { what, reads, says, home: (home) => home.at(...reads), here: ({ spec }) => here(spec) };
}

const size: readonly Meaning[] = [
  {
    what: 'model',
    reads: ['trainer.model.name', 'model.name'],
    says: ['model'],
    home: (home) => home.at('trainer.model.name'),
    here: ({ spec }) => spec.model,
  },
  ...[
    'orchestrator.model.name',
    'orchestrator.student.model.name',
    'inference.vllm.model',
    'inference.model.name',
    'orchestrator.tokenizer.name',
  ].map((path): Meaning => ({
    what: path,
    reads: [path],
    says: [path, 'the model that is trained is'],
    home: (home) => home.at(path) ?? home.at('trainer.model.name'),
    here: ({ spec }) => spec.model,
  })),
  {
    what: 'steps',
    reads: ['max_steps', 'trainer.max_steps', 'orchestrator.max_steps'],
    says: ['max_steps'],
    home: (home) => home.at('trainer.max_steps') ?? 'without an end',
    here: ({ spec }) => spec.maxSteps,
  },
  {
    what: 'batch',
    reads: ['orchestrator.batch_size', 'orchestrator.token_batch_size'],
    says: ['batch_size'],
    home: (home) => home.at('orchestrator.batch_size') ?? { tokens: home.at('orchestrator.token_batch_size') },
    here: ({ spec }) => spec.batchSize,
  },
  {
    what: 'groups',
    reads: [
      'orchestrator.group_size',
      'orchestrator.rollouts_per_example',
      'orchestrator.train.source[].group_size',
      'orchestrator.train.env[].group_size',
      'orchestrator.train.env[].rollouts_per_example',
      'orchestrator.env[].rollouts_per_example',
    ],
    says: ['group_size', 'rollouts_per_example'],
    home: (home) => sourcesOf(home).map((one) => one.at('group_size', 'rollouts_per_example') ?? groupOf(home)),
    here: ({ spec }, home) => sourcesOf(home).map(() => spec.rolloutsPerExample),
  },
  alike('length of a row', ['orchestrator.seq_len', 'seq_len'], ['seq_len'], ({ seqLen }) => seqLen),
  {
    what: 'length of the trainer',
    reads: ['trainer.model.seq_len'],
    says: ['seq_len'],
    // Not longer than what is collected; until 2026 there was none.
    home: (home) =>
      Math.min(...['trainer.model.seq_len', 'orchestrator.seq_len'].flatMap((path) => home.number(path) ?? [])),
    here: ({ spec }) => spec.seqLen,
  },
  {
    what: 'off-policy steps',
    reads: ['orchestrator.max_off_policy_steps'],
    says: ['max_off_policy_steps'],
    home: (home) => home.at('orchestrator.max_off_policy_steps'),
    here: ({ spec }) => spec.maxOffPolicySteps,
  },
  {
    what: 'async level',
    reads: [
      'orchestrator.max_async_level',
      'trainer.max_async_level',
      'max_async_level',
      'orchestrator.strict_async_level',
    ],
    says: ['max_async_level', 'strict_async_level'],
    // Since v0.6 a constant of the code (TARGET_LAG).
    home: (home) => home.at('orchestrator.max_async_level', 'max_async_level') ?? 1,
    here: ({ spec }) => spec.maxAsyncLevel,
  },
  {
    what: 'oversampling',
    reads: ['orchestrator.oversampling_factor'],
    says: ['oversampling_factor'],
    home: (home) => home.at('orchestrator.oversampling_factor') ?? 1,
    here: ({ spec }) => spec.oversamplingFactor,
  },
  {
    ...alike(
      'tasks per minute',
      ['orchestrator.tasks_per_minute'],
      ['tasks_per_minute'],
      (spec) => spec.tasksPerMinute,
    ),
  },
];

function groupOf(home: Home): unknown {
  return home.at('orchestrator.group_size', 'orchestrator.rollouts_per_example');
}

const optimizer: readonly Meaning[] = [
  alike('learning rate', ['trainer.optim.lr'], ['lr'], ({ learningRate }) => learningRate),
  alike('weight decay', ['trainer.optim.weight_decay'], ['weight_decay'], (spec) => spec.optimizer.weightDecay),
  {
    what: 'optimizer',
    reads: [
      'trainer.optim.type',
      'trainer.optim.betas1',
      'trainer.optim.betas2',
      'trainer.optim.mu',
      'trainer.optim.momentum',
      'trainer.optim.nesterov',
    ],
    says: ['optim'],
    home: (home) => optimizerOf(home),
    here: ({
      spec: {
        optimizer: { type = 'adamw', beta1, beta2, momentum, nesterov },
      },
    }) => {
      if (type === 'muon') return { type, beta1, beta2, momentum: momentum ?? defaultMuonMomentum };
      if (type === 'adamw') return { type, beta1, beta2 };
      return type === 'sgd' ? { type, momentum: 0.9, nesterov: true, ...present({ momentum, nesterov }) } : { type };
    },
  },
  {
    what: 'clipping',
    reads: ['trainer.optim.max_norm'],
    says: ['max_norm'],
    home: (home) => home.at('trainer.optim.max_norm') ?? Number.MAX_VALUE,
    here: ({ spec }) => spec.optimizer.maxGradNorm,
  },
  {
    what: 'learning rates of the steps',
    reads: ['trainer.scheduler.*'],
    says: ['scheduler'],
    home: (home) => ratesOf(home),
    here: ({ spec }) =>
      steps(spec.maxSteps).map((step) =>
        learningRateAt({ step, maxSteps: spec.maxSteps, peak: 1, schedule: spec.schedule }),
      ),
  },
  {
    what: 'adapters',
    reads: [
      'trainer.model.lora.*',
      'trainer.model.experimental.lora',
      'orchestrator.model.lora.*',
      'orchestrator.student.model.lora',
    ],
    says: ['lora'],
    home: (home) => {
      const lora = home.at('trainer.model.lora', 'trainer.model.experimental.lora');
      return isTable(lora)
        ? [lora['rank'], lora['alpha'], lora['dropout'], linear(lora['target_modules']), lora['modules_to_save']]
        : none;
    },
    here: ({ spec: { lora } }) => lora && [lora.r, lora.alpha, lora.dropout, linear(lora.targetModules), []],
  },
  ...[
    ['trainer.model.optimization_dtype', 'float32'],
    ['trainer.model.reduce_dtype', 'float32'],
    ['trainer.model.quantization', none],
    ['inference.vllm.quantization', none],
    ['inference.quantization', none],
    ['trainer.data.fake', none],
    ['trainer.model.debug.num_layers', none],
    ['trainer.model.debug.random_init', false],
    ['trainer.model.freeze_moe_router', false],
    ['trainer.enable_router_replay', false],
    ['trainer.model.index_cache', none],
    ['model.vlm', none],
    ['trainer.model.vlm', none],
    ['orchestrator.model.vlm', none],
    ['orchestrator.student.model.vlm', none],
    ['trainer.model.fp8', false],
    ['bench', false],
    ['orchestrator.verification.enabled', true],
  ].map(([path, meant]): Meaning => ({
    what: path as string,
    reads: [`${path as string}*`],
    says: [(path as string).split('.').at(-1)!],
    home: (home) => (home.has(path as string) ? home.at(path as string) : meant),
    here: () => meant,
  })),
];

/** Until v0.5 prime-rl made its Muon without the betas of the file (#1754). */
function optimizerOf(home: Home): unknown {
  const at = (key: string): unknown => home.at(`trainer.optim.${key}`);
  // Files of August 2025 name no type: AdamW with PyTorch's betas was the only one.
  const type = at('type') ?? 'adamw';
  const [beta1, beta2] = [at('betas1') ?? 0.9, at('betas2') ?? 0.999];
  if (type === 'muon') {
    const momentum = at('mu');
    return momentum === undefined
      ? { type, beta1: 0.9, beta2: 0.95, momentum: 0.95 }
      : { type, beta1, beta2, momentum };
  }
  if (type === 'sgd') return { type, momentum: at('momentum'), nesterov: at('nesterov') };
  return type === 'adamw' ? { type, beta1, beta2 } : { type };
}

/** Names of the linear layers of a decoder; others have none here. */
function linear(modules: unknown): string[] {
  const names = Array.isArray(modules) ? modules.map(String) : [];
  return names.filter((name) => /^[a-z]+_proj$/.test(name)).toSorted();
}

const ratesComparedMax = 400;
function steps(maxSteps: number): number[] {
  return Array.from({ length: Math.min(maxSteps, ratesComparedMax) }, (_, i) => i + 1);
}

/** Rates of torch's LinearLR, CosineAnnealingLR and SequentialLR (trainer/scheduler.py), as shares of the peak. */
function ratesOf(home: Home): number[] {
  const { type, warmup_steps: w = 0, decay_steps: d = 0, min_lr: least = 0 } = tableOr(home.at('trainer.scheduler'));
  const maxSteps = home.number('trainer.max_steps') ?? 100;
  const [warmup, decay, peak] = [Number(w), Number(d), home.number('trainer.optim.lr') ?? 1];
  const start = Number(least) > 0 ? Number(least) / peak : 1e-8;
  return steps(maxSteps).map((step) => {
    const i = step - 1;
    if (type === 'constant' || type === undefined) return 1;
    if (i < warmup) return start + (1 - start) * (i / warmup);
    if (type === 'cosine') {
      const floor = Number(least) / peak;
      return floor + ((1 - floor) * (1 + Math.cos((Math.PI * (i - warmup)) / (maxSteps - warmup)))) / 2;
    }
    const begin = maxSteps - decay;
    return decay === 0 || i < begin ? 1 : 1 + (start - 1) * Math.min(1, (i - begin) / Math.max(1, decay - 1));
  });
}

const course: readonly Meaning[] = [
  {
    what: 'checkpoints',
    reads: [
      'trainer.ckpt.interval',
      'trainer.ckpt.keep_last',
      'trainer.ckpt.keep_interval',
      'ckpt.*',
      'orchestrator.ckpt.*',
      'trainer.ckpt.*',
    ],
    says: ['checkpoint', 'ckpt'],
    home: (home) => {
      const ckpt = home.at<Table>('trainer.ckpt');
      if (ckpt === null) return 'none';
      const interval = ckpt['interval'] ?? home.at('trainer.max_steps') ?? 100;
      const keepInterval = ckpt['keep_interval'] ?? none;
      const keepLast = ckpt['keep_last'] ?? none;
      return keepLast === null && keepInterval === null
        ? [interval, 1, interval]
        : [interval, keepLast ?? 1, keepInterval];
    },
    here: ({ spec: { checkpoints } }) => [checkpoints.interval, checkpoints.keepLast, checkpoints.keepInterval],
  },
  {
    what: 'resumed from',
    reads: ['resume.*', 'trainer.resume.*', 'orchestrator.resume.*', 'trainer.ckpt.resume_step', 'ckpt.resume_step'],
    says: ['resume'],
    home: (home) => {
      const resume = home.at<Table>('resume', 'trainer.resume');
      return resume === null
        ? home.at('trainer.ckpt.resume_step', 'ckpt.resume_step')
        : (resume['step'] ?? resume['dir'] ?? -1);
    },
    here: ({ resumeStep }) => resumeStep,
  },
  {
    what: 'chat template',
    reads: [
      'tokenizer.chat_template',
      'trainer.tokenizer.chat_template',
      'orchestrator.tokenizer.chat_template',
      'inference.vllm.chat_template',
    ],
    says: ['chat_template'],
    home: (home) => home.at('trainer.tokenizer.chat_template', 'orchestrator.tokenizer.chat_template'),
    here: ({ spec: { chatTemplate } }) => chatTemplate?.path ?? none,
  },
  {
    what: 'renderer',
    reads: ['orchestrator.renderer.*'],
    says: ['renderer'],
    home: (home) => {
      const {
        name: _name,
        tool_parser: _tools,
        reasoning_parser: _reasons,
        image_cache_max: _cache,
        ...rest
      } = tableOr(home.at('orchestrator.renderer'));
      return withoutDefault(rest);
    },
    here: ({ spec: { sampling } }) => withoutDefault(sampling.templateArguments),
  },
  {
    what: 'seed',
    reads: ['orchestrator.seed', 'orchestrator.buffer.seed'],
    says: ['seed'],
    home: (home) => home.at('orchestrator.seed') ?? 'drawn',
    here: ({ spec }, home) => (home.at('orchestrator.seed') === null ? 'drawn' : spec.seed),
  },
  {
    what: 'validation',
    reads: ['orchestrator.val.*'],
    says: ['orchestrator.val'],
    home: (home) => home.at('orchestrator.val'),
    here: () => none,
  },
];

export const meanings: readonly Meaning[] = [
  ...size,
  ...optimizer,
  ...learningMeanings,
  ...environmentMeanings,
  ...course,
];

/** Variables of a template that say what it does without them; what is false is off, but for thinking. */
function withoutDefault(said: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const usual: Readonly<Record<string, unknown>> = { enable_thinking: true, clear_thinking: true };
  return Object.fromEntries(
    Object.entries(said).filter(([key, value]) => value !== null && value !== (usual[key] ?? false)),
  );
}
