/** Meaning of prime-rl's sources of rollouts and of evaluations, at home and here in the same words. */
import { present } from '../../../core/present.ts';
import type { RunSpec } from '../../../config/run-spec.ts';
import { isTable, type Table, tableOr } from '../../../config/toml/tables.ts';
import { isAgent } from '../../../config/dialects/prime-rl/prime-rl-sources.ts';
import type { Meaning } from './compare.ts';
import { Home } from './files.ts';

export function sourcesOf(home: Home): Home[] {
  return home.list('orchestrator.train.source', 'orchestrator.train.env', 'orchestrator.env');
}

function evaluatedOf(home: Home): Home[] {
  return home.list('orchestrator.eval.source', 'orchestrator.eval.env');
}

type Entry = Pick<RunSpec['environments'][number], 'id' | 'name' | 'args' | 'agent' | 'episode' | 'limits'>;

/** Settings that a taskset adds by itself are its own matter: those are compared that a file has. */
function identityOf(source: Home, here: Entry | undefined): unknown {
  const { id, ...args } = tasksetOf(source);
  const written = Object.keys(here?.args ?? {});
  return { id: nameOf(id), args: Object.fromEntries(written.map((key) => [key, within(args[key], here?.args[key])])) };
}

/** Until 0.8.1 a source of the older API stood in `legacy`, until 0.8 in the source itself. */
function tasksetOf(source: Home): Table {
  const taskset = source.at<Table>('env.taskset', 'taskset');
  if (taskset !== null && (taskset['id'] ?? '') !== '') return taskset;
  const older = source.at<Table>('legacy') ?? { id: source.at('id'), args: source.at('args') };
  return { id: older['id'], ...tableOr(older['args']) };
}

/** The part of a table with the keys of another. */
function within(value: unknown, keys: unknown): unknown {
  if (!isTable(value) || !isTable(keys)) return value;
  return Object.fromEntries(Object.keys(keys).map((key) => [key, within(value[key], keys[key])]));
}

function nameOf(id: unknown): string {
  return String(id).replace(/^.*\//, '').replace(/@.*$/, '');
}

/** Role, harness and runtime of each player. */
function playersOf(source: Home): unknown {
  const env = source.at<Table>('env');
  const isOlder =
    source.at('legacy.id') !== null ||
    (source.at('id') ?? '') !== '' ||
    (env === null && !source.has('harness.runtime'));
  if (isOlder) return [['agent', 'null', 'subprocess']];
  if (env === null) return [['agent', source.at('harness.id') ?? 'null', source.at('harness.runtime.type')]];
  const roles = Object.entries(env).filter(([, value]) => isTable(value) && 'runtime' in value);
  return roles.map(([role, value]) => {
    const { harness, runtime, model, client, sampling } = value as Table;
    const own = [model, tableOr(client)['base_url'], sampling].filter((one) => one !== null && one !== undefined);
    return [role, tableOr(harness)['id'] ?? 'the taskset’s', tableOr(runtime)['type'], ...own];
  });
}

/** A table without a type is given to verifiers as it is, whose default is a sandbox (loadRequest). */
function playersHere({ agent, episode }: Entry): unknown {
  const others = Object.entries(tableOr(episode)).filter(([, value]) => isAgent(value));
  return (others.length === 0 ? [['agent', agent] as const] : others).map(([role, said]) => {
    const { harness, runtime, model, client, sampling } = tableOr(said);
    const own = [model, tableOr(client)['base_url'], sampling].filter((one) => one !== undefined);
    const place = tableOr(runtime)['type'] ?? (runtime === undefined ? 'subprocess' : 'prime');
    return [role, tableOr(harness)['id'] ?? 'null', place, ...own];
  });
}

function limitsOf(source: Home): unknown {
  const at = (key: string) => source.at(`env.agent.${key}`, key);
  const total = source.number('max_total_completion_tokens');
  const output = at('max_output_tokens') ?? (total !== null && total > 0 ? total : null);
  const seconds = source.at('env.agent.timeout.rollout', 'env.timeout.episode', 'timeout');
  return [at('max_turns'), at('max_input_tokens'), output, at('max_total_tokens'), isTable(seconds) ? null : seconds];
}

function limitsHere({ limits }: Entry): unknown {
  const { maxTurns, maxInputTokens, maxOutputTokens, maxTotalTokens, timeoutS } = limits ?? {};
  return [maxTurns, maxInputTokens, maxOutputTokens, maxTotalTokens, timeoutS].map((one) => one ?? null);
}

/** Fields that prime-rl sends with every request of the policy, besides neutral ones. */
const sentAnyway = [
  'return_token_ids',
  'top_k',
  'min_p',
  'top_p',
  'repetition_penalty',
  'chat_template_kwargs',
  'seed',
];

function samplingOf(sampling: Home, usual: unknown, context: unknown, renderer: Table = {}): Record<string, unknown> {
  const at = (key: string) => sampling.at(key, `extra_body.${key}`) ?? usual;
  const extra = sampling.at<Table>('extra_body') ?? {};
  const further = Object.fromEntries(Object.entries(extra).filter(([key]) => !sentAnyway.includes(key)));
  const topK = sampling.number('top_k', 'extra_body.top_k');
  return {
    temperature: sampling.at('temp_scheduler') ?? sampling.at('temperature') ?? usual ?? 1,
    tokens: sampling.at('max_completion_tokens', 'max_tokens') ?? context,
    topP: at('top_p') ?? 1,
    topK: topK === null ? usual : topK > 0 ? topK : null,
    minP: at('min_p') ?? 0,
    repetitionPenalty: at('repetition_penalty') ?? 1,
    minTokens: sampling.at('min_tokens', 'extra_body.min_tokens') ?? 0,
    seed: sampling.at('seed', 'extra_body.seed'),
    template: withoutUsualThinking({
      ...present({ enable_thinking: renderer['enable_thinking'] ?? undefined }),
      ...sampling.at<Table>('extra_body.chat_template_kwargs'),
    }),
    effort: sampling.at('reasoning_effort'),
    further,
  };
}

/** Thinking is what a template does without a word; a renderer of prime-rl has it as a field. */
function withoutUsualThinking({ enable_thinking: thinking, ...others }: Table): Table {
  return thinking === undefined || thinking === true ? others : { enable_thinking: thinking, ...others };
}

type Sampling = Omit<RunSpec['sampling'], 'contextTokens'> & { readonly contextTokens?: number | undefined };

function samplingHere(sampling: Sampling): Record<string, unknown> {
  const { temperature, maxTokens, contextTokens, topP, topK, minP, repetitionPenalty, minTokens, seed } = sampling;
  const { reasoning_effort: effort = null, ...template } = sampling.templateArguments;
  const tokens = contextTokens === undefined ? maxTokens : { context: contextTokens };
  return {
    temperature,
    tokens,
    topP,
    topK,
    minP,
    repetitionPenalty,
    minTokens,
    seed: seed ?? null,
    template: withoutUsualThinking(template),
    effort,
    further: {},
  };
}

/** Without a limit prime-rl sends none, so a turn may fill the server's context. */
function contextOf(home: Home): unknown {
  const served = home.at('inference.vllm.max_model_len', 'inference.model.max_model_len', 'max_model_len');
  return { context: served ?? 'of the model' };
}

const asTheServer = 'as the server has it';

function evaluationOf(home: Home, one: Home): unknown {
  const all = (key: string, older: string): unknown =>
    one.at(key, older) ?? home.at(`orchestrator.eval.${key}`, `orchestrator.eval.${older}`);
  return {
    examples: all('num_examples', 'num_examples'),
    rollouts: all('group_size', 'rollouts_per_example'),
    interval: all('interval', 'interval'),
    skipped: one.at('skip_first') ?? 0,
  };
}

const trained: readonly Meaning[] = [
  {
    what: 'environments',
    reads: [
      'orchestrator.env[].id',
      'orchestrator.env[].args',
      'orchestrator.train.env[].id',
      'orchestrator.train.env[].args',
      'orchestrator.train.source[].env.taskset',
      'orchestrator.train.source[].env.id',
      'orchestrator.train.source[].legacy',
      'orchestrator.train.env[].taskset',
      'orchestrator.train.env[].legacy',
    ],
    says: ['env.taskset'],
    home: (home) => sourcesOf(home).length,
    here: ({ spec }) => spec.environments.length,
  },
  {
    what: 'which environments',
    reads: [],
    says: ['taskset'],
    home: (home) => sourcesOf(home).map(() => 'as here'),
    here: ({ spec }, home) =>
      sourcesOf(home).map((source, i) => {
        const { id, args } = spec.environments[i]!;
        const here = { id: nameOf(id), args };
        const there = identityOf(source, spec.environments[i]);
        return JSON.stringify(there) === JSON.stringify(here) ? 'as here' : [there, here];
      }),
  },
  {
    what: 'names of environments',
    reads: ['orchestrator.env[].name', 'orchestrator.train.env[].name', 'orchestrator.train.source[].name'],
    says: ['name'],
    home: (home) => sourcesOf(home).map((source) => source.at('name')),
    here: ({ spec }, home) =>
      sourcesOf(home).map((source, i) => (source.at('name') === null ? null : spec.environments[i]!.name)),
  },
  {
    what: 'ratios',
    reads: [
      'orchestrator.train.source[].ratio',
      'orchestrator.train.env[].ratio',
      'orchestrator.buffer.env_ratios',
      'orchestrator.env_mix',
    ],
    says: ['env_ratios', 'ratio'],
    home: (home) =>
      sourcesOf(home).map((source, i, all) => {
        const ratios = home.at<number[]>('orchestrator.buffer.env_ratios', 'orchestrator.env_mix.probabilities');
        return source.at('ratio') ?? ratios?.[i] ?? (all.length === 1 || source.has('ratio') ? 1 : 'by size');
      }),
    here: ({ spec }, home) => sourcesOf(home).map((_, i) => spec.environments[i]!.weight),
  },
  {
    what: 'pools',
    reads: [
      'orchestrator.buffer.easy_threshold',
      'orchestrator.buffer.hard_threshold',
      'orchestrator.buffer.easy_fraction',
      'orchestrator.buffer.hard_fraction',
      'orchestrator.train.source[].curriculum',
      'orchestrator.train.env[].buffer',
    ],
    says: ['pool', 'curriculum', 'gate', 'threshold', 'fraction'],
    home: (home) => sourcesOf(home).map((source) => poolsOf(home, source)),
    here: ({ spec }, home) =>
      sourcesOf(home).map((_, i) => {
        const { pools } = spec.environments[i]!;
        return pools && [pools.easyThreshold, pools.hardThreshold, pools.easyFraction, pools.hardFraction];
      }),
  },
  ...['filter_min_threshold', 'filter_max_threshold'].map((key): Meaning => ({
    what: key,
    reads: [`orchestrator.buffer.${key}`],
    says: [key],
    home: (home) => home.at(`orchestrator.buffer.${key}`),
    here: () => null,
  })),
  {
    what: 'players',
    reads: ['orchestrator.train.source[].env', 'orchestrator.train.env[].env', 'orchestrator.train.env[].harness'],
    says: ['harness', 'env.agent', 'runtime'],
    home: (home) => sourcesOf(home).map(playersOf),
    here: ({ spec }, home) => sourcesOf(home).map((_, i) => playersHere(spec.environments[i]!)),
  },
  {
    what: 'limits of rollouts',
    reads: [
      'timeout',
      'max_turns',
      'max_input_tokens',
      'max_output_tokens',
      'max_total_tokens',
      'max_total_completion_tokens',
    ].flatMap((key) => [`orchestrator.train.env[].${key}`, `orchestrator.env[].${key}`]),
    says: ['max_turns', 'timeout', 'tokens'],
    home: (home) => sourcesOf(home).map(limitsOf),
    here: ({ spec }, home) => sourcesOf(home).map((_, i) => limitsHere(spec.environments[i]!)),
  },
  {
    what: 'sampling',
    reads: [
      'orchestrator.sampling',
      'orchestrator.train.sampling',
      'orchestrator.train.source[].sampling',
      'orchestrator.train.env[].sampling',
      'max_model_len',
    ],
    says: ['sampling'],
    home: (home) =>
      sourcesOf(home).map((source) => {
        const own =
          source.at<Table>('sampling') ?? home.at<Table>('orchestrator.train.sampling', 'orchestrator.sampling');
        return samplingOf(new Home(own ?? {}), null, contextOf(home), tableOr(home.at('orchestrator.renderer')));
      }),
    here: ({ spec }, home) =>
      sourcesOf(home).map((_, i) => samplingHere(spec.environments[i]!.sampling ?? spec.sampling)),
  },
];

function poolsOf(home: Home, source: Home): unknown {
  const curriculum = source.at<Table>('curriculum');
  if (curriculum !== null && tableOr(curriculum['sampler'])['type'] === 'difficulty_pool') {
    return Object.values(tableOr(tableOr(curriculum['sampler'])['pools'])).map((pool) => Object.values(pool as Table));
  }
  const at = (key: string): unknown => home.at(`orchestrator.buffer.${key}`);
  if (at('easy_threshold') === null && at('hard_threshold') === null) return null;
  return [at('easy_threshold'), at('hard_threshold'), 0, 0];
}

const evaluated: readonly Meaning[] = [
  {
    what: 'evaluations',
    reads: ['orchestrator.eval'],
    says: ['eval'],
    home: (home) =>
      home.at('orchestrator.eval') === null ? null : evaluatedOf(home).map((one) => evaluationOf(home, one)),
    here: ({ spec: { eval: evaluation } }) =>
      evaluation &&
      evaluation.environments.map(({ numExamples, rolloutsPerExample, interval, skipFirst }) => ({
        examples: numExamples,
        rollouts: rolloutsPerExample,
        interval: interval ?? evaluation.interval,
        skipped: skipFirst,
      })),
  },
  {
    what: 'evaluation of the base model',
    reads: ['orchestrator.eval.skip_first_step', 'orchestrator.eval.eval_base_model'],
    says: ['skip_first_step', 'eval_base_model'],
    home: (home) =>
      home.at('orchestrator.eval') === null
        ? null
        : (home.at('orchestrator.eval.skip_first_step') ?? home.at('orchestrator.eval.eval_base_model') === false),
    here: ({ spec }) => spec.eval && spec.eval.skipFirstStep,
  },
  {
    what: 'environments of evaluations',
    reads: [],
    says: ['eval'],
    home: (home) => evaluatedOf(home).map(() => 'as here'),
    here: ({ spec }, home) =>
      evaluatedOf(home).map((one, i) => {
        const entry = spec.eval?.environments[i];
        const here = { id: nameOf(entry?.id), args: entry?.args };
        const there = identityOf(one, entry);
        return JSON.stringify(there) === JSON.stringify(here) ? 'as here' : [there, here];
      }),
  },
  {
    what: 'players of evaluations',
    reads: ['orchestrator.eval.source[].env'],
    says: ['harness', 'env.agent', 'runtime'],
    home: (home) => evaluatedOf(home).map(playersOf),
    here: ({ spec }, home) => evaluatedOf(home).map((_, i) => playersHere(spec.eval!.environments[i]!)),
  },
  {
    what: 'limits of evaluations',
    reads: [],
    says: ['max_turns', 'timeout', 'tokens'],
    home: (home) => evaluatedOf(home).map(limitsOf),
    here: ({ spec }, home) => evaluatedOf(home).map((_, i) => limitsHere(spec.eval!.environments[i]!)),
  },
  {
    what: 'sampling of evaluations',
    reads: ['orchestrator.eval.sampling'],
    says: ['eval.sampling'],
    home: (home) =>
      evaluatedOf(home).map((one) => {
        const own = one.at<Table>('sampling') ?? home.at<Table>('orchestrator.eval.sampling');
        return samplingOf(new Home(own ?? {}), asTheServer, asTheServer);
      }),
    here: ({ spec }, home) =>
      evaluatedOf(home).map((_, i) =>
        samplingHere(spec.eval!.environments[i]!.sampling ?? spec.eval!.sampling ?? spec.sampling),
      ),
  },
];

export const environmentMeanings: readonly Meaning[] = [...trained, ...evaluated];
