/**
 * Run files of verifiers' own trainer, and those of Hosted Training in its repository, at home and here in the same
 * words.
 */
import type { RunSpec } from '../../../config/run-spec.ts';
import type { Table } from '../../../config/toml/tables.ts';
import type { Meaning } from './compare.ts';
import type { Home } from './files.ts';

type Environments = readonly { readonly id: string; readonly args?: Table; readonly name?: string | null }[];

/** Name of each environment without its hub owner, and its arguments. */
function environmentsOf(list: Environments): unknown {
  return list.map(({ id, args }) => [shortName(id), args ?? {}]);
}

function shortName(id: string): string {
  return id.replace(/^.*\//, '').replace(/@.*$/, '');
}

const environments: Meaning = {
  what: 'environments',
  reads: ['env'],
  says: ['env'],
  home: (home) => environmentsOf(home.at<Environments>('env') ?? []),
  here: ({ spec }) => environmentsOf(spec.environments),
};
const model: Meaning = {
  what: 'model',
  reads: ['model'],
  says: ['model'],
  home: (home) => home.at('model'),
  here: ({ spec }) => spec.model,
};

/** An argument that is one of ours as it is. */
function argument(name: string, here: (spec: RunSpec) => unknown, home?: (home: Home) => unknown): Meaning {
  return {
    what: name,
    reads: [`args.${name}`],
    says: [name],
    home: home ?? ((all) => all.at(`args.${name}`)),
    here: ({ spec }) => here(spec),
  };
}

const allLinear = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'];

function modulesOf(value: unknown): unknown {
  if (value === 'all-linear') return allLinear.toSorted();
  return Array.isArray(value) ? value.map(String).toSorted() : value;
}

/** RLConfig's, from its first version on; those of transformers that change what is trained. */
export const vfRlMeanings: readonly Meaning[] = [
  model,
  environments,
  argument('rollouts_per_example', (spec) => spec.rolloutsPerExample),
  argument('batch_size', (spec) => spec.batchSize),
  argument('max_seq_len', (spec) => spec.seqLen),
  argument('max_prompt_len', (spec) => spec.maxPromptTokens),
  argument('max_steps', (spec) => spec.maxSteps),
  argument('learning_rate', (spec) => spec.learningRate),
  argument('adam_beta1', (spec) => spec.optimizer.beta1),
  argument('adam_beta2', (spec) => spec.optimizer.beta2),
  argument('adam_epsilon', (spec) => spec.optimizer.epsilon),
  argument('weight_decay', (spec) => spec.optimizer.weightDecay),
  argument('max_grad_norm', (spec) => spec.optimizer.maxGradNorm),
  argument('seed', (spec) => spec.seed),
  argument(
    'lr_scheduler_type',
    (spec) => spec.schedule.type,
    (home) =>
      String(home.at('args.lr_scheduler_type'))
        .toLowerCase()
        .replace(/^schedulertype\./, '')
        .replace('_with_warmup', ''),
  ),
  argument(
    'warmup_steps',
    (spec) => spec.schedule.warmupSteps,
    (home) => home.at('args.warmup_steps') ?? 0,
  ),
  argument('mask_ratio_low', (spec) => spec.loss.maskLow),
  argument('mask_ratio_high', (spec) => spec.loss.maskHigh),
  argument('mask_truncated_completions', (spec) => spec.maskTruncated),
  argument('zero_truncated_completions', (spec) => spec.zeroTruncated),
  {
    what: 'max_tokens',
    reads: ['args.max_tokens'],
    says: ['max_tokens', 'max_seq_len'],
    home: (home) => home.at('args.max_tokens', 'args.max_seq_len'),
    here: ({ spec }) => spec.sampling.maxTokens,
  },
  argument('temperature', (spec) => spec.sampling.temperature),
  argument('top_p', (spec) => spec.sampling.topP),
  argument(
    'top_k',
    (spec) => spec.sampling.topK,
    (home) => {
      const topK = home.number('args.top_k');
      return topK !== null && topK > 0 ? topK : null;
    },
  ),
  argument(
    'min_p',
    (spec) => spec.sampling.minP,
    (home) => home.at('args.min_p') ?? 0,
  ),
  argument('repetition_penalty', (spec) => spec.sampling.repetitionPenalty),
  argument('presence_penalty', (spec) => spec.sampling.presencePenalty),
  argument('frequency_penalty', (spec) => spec.sampling.frequencyPenalty),
  argument('use_lora', (spec) => spec.lora !== null),
  ...(['r', 'alpha', 'dropout'] as const).map((key) =>
    argument(
      `lora_${key === 'r' ? 'rank' : key}`,
      (spec) => spec.lora?.[key] ?? null,
      (home) => (home.at('args.use_lora') === true ? home.at(`args.lora_${key === 'r' ? 'rank' : key}`) : null),
    ),
  ),
  argument(
    'lora_target_modules',
    (spec) => modulesOf(spec.lora?.targetModules ?? null),
    (home) => (home.at('args.use_lora') === true ? modulesOf(home.at('args.lora_target_modules')) : null),
  ),
  argument(
    'save_steps',
    (spec) => spec.checkpoints.interval,
    (home) => (home.at('args.save_strategy') === 'no' ? home.at('args.max_steps') : home.at('args.save_steps')),
  ),
];

/** The command leaves to its platform what is not written (null): that is compared which is. */
function written(path: string, says: readonly string[], here: (spec: RunSpec) => unknown): Meaning {
  return {
    what: path,
    reads: [path],
    says,
    home: (home) => home.at(path) ?? 'as the platform has it',
    here: ({ spec }, home) => (home.at(path) === null ? 'as the platform has it' : here(spec)),
  };
}

export const hostedMeanings: readonly Meaning[] = [
  model,
  environments,
  written('loss', ['loss'], ({ loss, teacher }) =>
    teacher === null ? 'rl' : loss.type === 'cross_entropy' ? 'sft' : 'opd',
  ),
  written('max_steps', ['max_steps'], (spec) => spec.maxSteps),
  written('batch_size', ['batch_size'], (spec) => spec.batchSize),
  written('rollouts_per_example', ['rollouts_per_example'], (spec) => spec.rolloutsPerExample),
  written('learning_rate', ['learning_rate'], (spec) => spec.learningRate),
  written('lora_alpha', ['lora_alpha'], (spec) => spec.lora?.alpha),
  written('oversampling_factor', ['oversampling_factor'], (spec) => spec.oversamplingFactor),
  written('max_async_level', ['max_async_level'], (spec) => spec.maxAsyncLevel),
  written('sampling.max_tokens', ['sampling.max_tokens'], (spec) => spec.sampling.maxTokens),
  written('sampling.temperature', ['sampling.temperature'], (spec) => spec.sampling.temperature),
  written(
    'sampling.enable_thinking',
    ['enable_thinking'],
    (spec) => spec.sampling.templateArguments['enable_thinking'],
  ),
  written(
    'sampling.reasoning_effort',
    ['reasoning_effort'],
    (spec) => spec.sampling.templateArguments['reasoning_effort'],
  ),
  written('eval.interval', ['eval'], (spec) => spec.eval?.interval),
  written('checkpoints.interval', ['checkpoints'], (spec) => spec.checkpoints.interval),
  {
    what: 'environments of evaluations',
    reads: ['eval.env'],
    says: ['eval'],
    home: (home) => environmentsOf(home.at<Environments>('eval.env') ?? []),
    here: ({ spec }) => environmentsOf(spec.eval?.environments ?? []),
  },
  {
    what: 'sizes of evaluations',
    reads: ['eval.num_examples', 'eval.rollouts_per_example', 'eval.eval_base_model', 'eval.skip_first_step'],
    says: ['eval'],
    home: (home) =>
      home
        .list('eval.env')
        .map((one) => [
          one.at('num_examples') ?? home.at('eval.num_examples'),
          one.at('rollouts_per_example') ?? home.at('eval.rollouts_per_example'),
        ]),
    here: ({ spec }, home) =>
      home.list('eval.env').map((one, i) => {
        const entry = spec.eval?.environments[i];
        const said = (key: string, value: unknown): unknown =>
          (one.at(key) ?? home.at(`eval.${key}`)) === null ? null : value;
        return [said('num_examples', entry?.numExamples), said('rollouts_per_example', entry?.rolloutsPerExample)];
      }),
  },
];
