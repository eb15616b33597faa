import type { KeyPath } from '../positions.ts';
import type { RatchetConfig } from '../settings/index.ts';
import { branchRelations } from './branch-relations.ts';
import { inferenceRelations } from './inference-relations.ts';
import { importRelation, lossRelations } from './loss-relations.ts';
import { boundRelations } from '../settings/bounds.ts';
import { teacherRelations } from './teacher-relations.ts';
import { ownSamplingRelations, rolloutRelations, rolloutWarnings } from './ratchet-rollout-relations.ts';
import { tinkerRelations, tinkerWarnings } from './tinker-relations.ts';
import { writtenPools } from '../settings/environments.ts';
import { evalSampling } from '../settings/evaluation.ts';

/** Something that only shows when two fields are looked at together. */
export interface RelationProblem {
  /** The first is where the error is reported. */
  readonly paths: readonly (readonly (string | number)[])[];
  readonly expected: string;
  readonly received: string;
  readonly suggestion?: string;
}

export function ratchetRelations(config: RatchetConfig): RelationProblem[] {
  return [
    ...environmentRelations(config),
    ...boundRelations(config),
    ...batchRelations(config),
    ...filterRelations(config),
    ...poolRelations(config),
    ...scheduleRelations(config),
    ...keepRelations(config),
    ...resumeRelations(config),
    ...lossRelations(config),
    ...teacherRelations(config),
    ...advantageRelations(config),
    ...moduleRelations(config),
    ...inferenceRelations(config),
    ...tinkerRelations(config),
    ...loraRelations(config),
    ...samplingRelations(config),
    ...ownSamplingRelations(config),
    ...evalRelations(config),
    ...branchRelations(config),
    ...storeRelations(config),
    ...rolloutRelations(config),
    ...duplicateNames(config.env, ['env']),
    ...duplicateNames(config.eval?.env ?? [], ['eval', 'env']),
  ];
}

function environmentRelations({ env, max_steps, sft, eval: evaluation }: RatchetConfig): RelationProblem[] {
  const problems: RelationProblem[] = [];
  if (max_steps === 0 && sft === undefined) {
    problems.push({
      paths: [['max_steps'], ['sft']],
      expected: 'an integer ≥ 1, or [sft] beside it: without steps only a supervised run trains anything',
      received: '0',
    });
  }
  if (env.length > 0) return problems;
  const isSupervised = max_steps === 0 && sft?.data !== undefined;
  if (!isSupervised) {
    problems.push({
      paths: [['env']],
      expected: 'at least one environment: a [[env]] with an id',
      received: 'nothing',
    });
  } else if (evaluation !== undefined && evaluation.env === undefined) {
    problems.push({
      paths: [['eval', 'env'], ['eval']],
      expected: 'at least one [[eval.env]]: without [[env]] there is nothing else to evaluate on',
      received: 'nothing',
    });
  }
  return problems;
}

function storeRelations({ store }: RatchetConfig): RelationProblem[] {
  const { uri, endpoint, region, path_style, sse, kms_key_id } = store;
  if (kms_key_id !== undefined && sse !== 'aws:kms') {
    return [
      {
        paths: [
          ['store', 'kms_key_id'],
          ['store', 'sse'],
        ],
        expected: 'sse = "aws:kms" beside it: no other encryption takes a key of yours',
        received: `sse = "${sse}"`,
      },
    ];
  }
  if (uri.startsWith('s3:')) return [];
  const written = Object.entries({ endpoint, region, path_style, ...(sse === 'none' ? {} : { sse }) });
  return written
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => ({
      paths: [
        ['store', name],
        ['store', 'uri'],
      ],
      expected: 'uri = "s3://BUCKET/PREFIX/" beside it: a folder has no such setting',
      received: `${name} = ${JSON.stringify(value)}`,
    }));
}

function batchRelations({ batch_size, rollouts_per_example, trainer }: RatchetConfig): RelationProblem[] {
  const { micro_batch_size, gpus } = trainer as { micro_batch_size?: number; gpus?: number };
  if (batch_size % rollouts_per_example === 0) return worldRelation(batch_size, micro_batch_size, gpus);
  const below = Math.floor(batch_size / rollouts_per_example) * rollouts_per_example;
  const nearest = [below, below + rollouts_per_example].filter((size) => size > 0).join(' or ');
  return [
    {
      paths: [['batch_size'], ['rollouts_per_example']],
      expected: `a multiple of rollouts_per_example (${rollouts_per_example}): a batch is made of whole groups`,
      received: String(batch_size),
      suggestion: `use ${nearest}`,
    },
  ];
}

/** Where GPUs share the rows of a batch, each computes whole micro-batches. */
function worldRelation(batchSize: number, microBatchSize = 1, gpus?: number): RelationProblem[] {
  if (gpus === undefined || batchSize % (microBatchSize * gpus) === 0) return [];
  return [
    {
      paths: [['batch_size'], ['trainer', 'micro_batch_size'], ['trainer', 'gpus']],
      expected: `a multiple of micro_batch_size × the trainer's GPUs (${microBatchSize} × ${gpus}): each computes whole micro-batches`,
      received: String(batchSize),
    },
  ];
}

function filterRelations({ difficulty_filter }: RatchetConfig): RelationProblem[] {
  const { min_reward, max_reward } = difficulty_filter ?? {};
  if (min_reward === undefined || max_reward === undefined || min_reward <= max_reward) return [];
  return [
    {
      paths: [
        ['difficulty_filter', 'min_reward'],
        ['difficulty_filter', 'max_reward'],
      ],
      expected: `at most max_reward (${max_reward}): groups are kept when min_reward ≤ mean reward ≤ max_reward`,
      received: String(min_reward),
      suggestion: 'swap the two, or no group is ever kept',
    },
  ];
}

/** Of [buffer] once, and of every environment that says something of its own. */
function poolRelations(config: RatchetConfig): RelationProblem[] {
  const places = [
    { path: ['buffer'], written: writtenPools(config), own: writtenPools(config) },
    ...config.env.flatMap(({ buffer }, i) =>
      buffer === undefined ? [] : [{ path: ['env', i, 'buffer'], written: writtenPools(config, buffer), own: buffer }],
    ),
  ];
  return places.flatMap(({ path, written, own }) => {
    const problems: RelationProblem[] = [];
    const at = (key: string) => [
      [...path, key],
      ['buffer', key],
    ];
    const { easy_threshold: easy, hard_threshold: hard } = written;
    if (easy !== undefined && hard !== undefined && easy <= hard) {
      problems.push({
        paths: [...at('easy_threshold'), ...at('hard_threshold')],
        expected: `a number above hard_threshold (${hard}): means at or above it are easy, those at or below the other hard`,
        received: String(easy),
      });
    }
    for (const pool of ['easy', 'hard'] as const) {
      const fraction = own[`${pool}_fraction`];
      const isOwnThreshold = config.env.some(({ buffer }) => buffer?.[`${pool}_threshold`] !== undefined);
      const isUsed = written[`${pool}_threshold`] !== undefined || (path[0] === 'buffer' && isOwnThreshold);
      if (fraction === undefined || isUsed) continue;
      problems.push({
        paths: at(`${pool}_fraction`),
        expected: `a ${pool}_threshold beside it: without one no example is ever ${pool}`,
        received: String(fraction),
      });
    }
    return problems;
  });
}

function scheduleRelations(config: RatchetConfig): RelationProblem[] {
  const problems: RelationProblem[] = [];
  const { warmup_steps, trainer, sft } = config;
  if (warmup_steps !== undefined && trainer.warmup_steps !== undefined && warmup_steps !== trainer.warmup_steps) {
    problems.push({
      paths: [['warmup_steps'], ['trainer', 'warmup_steps']],
      expected: `one of them: [trainer] warmup_steps is ${trainer.warmup_steps}`,
      received: String(warmup_steps),
      suggestion: 'keep the one in [trainer]',
    });
  }
  problems.push(...decayRelations(config));
  if (sft?.warmup_steps !== undefined && sft.warmup_steps > sft.steps) {
    problems.push({
      paths: [
        ['sft', 'warmup_steps'],
        ['sft', 'steps'],
      ],
      expected: `at most [sft] steps (${sft.steps}), or the learning rate is never reached`,
      received: String(sft.warmup_steps),
    });
  }
  return problems;
}

function decayRelations({ warmup_steps, trainer, max_steps }: RatchetConfig): RelationProblem[] {
  const { decay_steps, schedule } = trainer;
  if (decay_steps === undefined) return [];
  const at = ['trainer', 'decay_steps'];
  const received = String(decay_steps);
  if (schedule !== 'linear') {
    const paths = [at, ['trainer', 'schedule']];
    return [
      { paths, expected: `nothing, or schedule = "linear": a ${schedule} one has no decay of its own`, received },
    ];
  }
  const warmup = trainer.warmup_steps ?? warmup_steps ?? 0;
  if (warmup + decay_steps <= max_steps) return [];
  const expected = `at most max_steps less warmup_steps (${max_steps} − ${warmup})`;
  return [{ paths: [at, ['trainer', 'warmup_steps'], ['max_steps']], expected, received }];
}

function advantageRelations({ trainer: { advantage } }: RatchetConfig): RelationProblem[] {
  return importRelation(['trainer', 'advantage'], advantage);
}

function moduleRelations({ trainer, inference }: RatchetConfig): RelationProblem[] {
  const relation = (table: string, written: typeof trainer | typeof inference): RelationProblem[] => {
    const { kind, import: file, path } = written;
    if (file !== undefined && path !== undefined) {
      const paths = [
        [table, 'path'],
        [table, 'import'],
      ];
      return [{ paths, expected: `one of them: import is ${JSON.stringify(file)}`, received: JSON.stringify(path) }];
    }
    const key = path === undefined ? 'import' : 'path';
    return importRelation([table], { type: kind, import: file ?? path }, { key: 'kind', word: 'module', file: key });
  };
  return [...relation('trainer', trainer), ...relation('inference', inference)];
}

function loraRelations({ lora, lora_alpha }: RatchetConfig): RelationProblem[] {
  if (lora?.alpha === undefined || lora_alpha === undefined || lora.alpha === lora_alpha) return [];
  return [
    {
      paths: [['lora_alpha'], ['lora', 'alpha']],
      expected: `one of them: [lora] alpha is ${lora.alpha}`,
      received: String(lora_alpha),
    },
  ];
}

function samplingRelations(config: RatchetConfig): RelationProblem[] {
  return [
    ...lengthRelation(['sampling'], config.sampling),
    ...(config.eval?.sampling ? lengthRelation(['eval', 'sampling'], evalSampling(config)) : []),
    ...(config.eval?.env ?? []).flatMap(({ sampling }, i) =>
      sampling ? lengthRelation(['eval', 'env', i, 'sampling'], evalSampling(config, sampling)) : [],
    ),
  ];
}

function lengthRelation(
  path: KeyPath,
  { min_tokens = 0, max_tokens }: { readonly min_tokens?: number | undefined; readonly max_tokens: number },
): RelationProblem[] {
  if (min_tokens <= max_tokens) return [];
  const paths = [
    [...path, 'min_tokens'],
    [...path, 'max_tokens'],
  ];
  return [{ paths, expected: `at most max_tokens (${max_tokens})`, received: String(min_tokens) }];
}

function keepRelations({ checkpoints: { keep_last, keep_cloud } }: RatchetConfig): RelationProblem[] {
  if (keep_last === undefined || keep_cloud === undefined || keep_last === keep_cloud) return [];
  return [
    {
      paths: [
        ['checkpoints', 'keep_cloud'],
        ['checkpoints', 'keep_last'],
      ],
      expected: `one of them: keep_cloud is another name of keep_last, which is ${keep_last}`,
      received: String(keep_cloud),
    },
  ];
}

/** Three places for one step: they agree, or only one of them says it. */
function resumeRelations({ resume, ckpt, trainer }: RatchetConfig): RelationProblem[] {
  const said = [
    { path: ['resume', 'step'], step: resume?.step },
    { path: ['ckpt', 'resume_step'], step: ckpt?.resume_step },
    { path: ['trainer', 'ckpt', 'resume_step'], step: trainer.ckpt?.resume_step },
  ].filter(({ step }) => step !== undefined);
  const other = said.find(({ step }) => step !== said[0]!.step);
  if (other === undefined) return [];
  return [
    {
      paths: [other.path, said[0]!.path],
      expected: `the step that ${said[0]!.path.join('.')} names (${said[0]!.step}), or only one of the two`,
      received: String(other.step),
    },
  ];
}

function evalRelations(config: RatchetConfig): RelationProblem[] {
  const { skip_first_step, eval_base_model } = config.eval ?? {};
  if (skip_first_step === undefined || eval_base_model === undefined || skip_first_step !== eval_base_model) return [];
  return [
    {
      paths: [
        ['eval', 'skip_first_step'],
        ['eval', 'eval_base_model'],
      ],
      expected: `the opposite of eval_base_model (${eval_base_model}), or only one of the two`,
      received: String(skip_first_step),
    },
  ];
}

function duplicateNames(
  environments: readonly { readonly name?: string | undefined }[],
  path: readonly string[],
): RelationProblem[] {
  return environments.flatMap(({ name }, i) => {
    const before = environments.findIndex((other) => other.name === name);
    if (name === undefined || before === i) return [];
    return [
      {
        paths: [[...path, i, 'name']],
        expected: `a name of its own; ${path.join('.')}[${before}] has this one`,
        received: JSON.stringify(name),
      },
    ];
  });
}

/** What is legal but probably not meant. */
export function ratchetWarnings(config: RatchetConfig): string[] {
  const warnings: string[] = [];
  const { checkpoints, kl_penalty, max_steps, trainer } = config;
  const warmupSteps = trainer.warmup_steps ?? config.warmup_steps ?? 0;
  if (warmupSteps > max_steps) {
    warnings.push(
      `warmup_steps (${warmupSteps}) is more than max_steps (${max_steps}): the run ends before its learning rate is reached.`,
    );
  }
  if (checkpoints.keep_interval !== undefined && checkpoints.keep_interval % checkpoints.interval !== 0) {
    warnings.push(
      `checkpoints.keep_interval (${checkpoints.keep_interval}) is not a multiple of checkpoints.interval (${checkpoints.interval}): only steps that are multiples of both are kept for good.`,
    );
  }
  if (kl_penalty?.enabled === true && kl_penalty.target_kl !== undefined && kl_penalty.beta === 0) {
    warnings.push('kl_penalty.beta is 0 and stays 0 whatever kl_penalty.target_kl says: doubling 0 gives 0.');
  }
  return [...warnings, ...rolloutWarnings(config), ...tinkerWarnings(config)];
}
