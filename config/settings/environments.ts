import { z } from 'zod';
import { groupRolloutsMax, poolFractionMin, rolloutRetriesMax } from '../../core/limits.ts';
import { environmentName } from '../../core/names.ts';
import { present } from '../../core/present.ts';
import { timeoutFates } from '../../core/settings/environments.ts';
import { advantageKinds } from '../../core/settings/learning.ts';
import {
  anyNumber,
  args,
  choice,
  environmentId,
  environmentLabel,
  flag,
  passedVariables,
  positive,
  prompt,
  texts,
  whole,
} from '../toml/values.ts';
import { agentSettings, agentTables, alsoOfEvaluated, programSpec, ProgramSpec } from './agents.ts';
import { budgetOfRollout, BudgetSpec, budgetSpec } from './budgets.ts';
import { EchoSpec, echoRoles, echoSpec } from './echo.ts';
import type { RatchetConfig } from './index.ts';
import { kindOfEnvironment, kindsOf } from './learning.ts';
import { laidOver, samplingSettings, SamplingSpec, samplingSpec } from './sampling.ts';
import {
  inSpec,
  listOf,
  meaning,
  optionalTable,
  required,
  setting,
  specFields,
  table,
  type WrittenIn,
} from './setting.ts';

/** `[[env]]`: environments of the training; their limits, and the choice of examples. */

/** Difficulty pools, in the words of prime-rl's buffer; a fraction is a sampling weight. */
const poolFraction = () =>
  z.union([z.literal(0), z.number().min(poolFractionMin).max(1)]).meta({
    expected: `0, or a number from ${poolFractionMin} to 1: how often its examples are drawn, where normal ones are drawn once`,
  });
const pools = {
  easy_threshold: setting(anyNumber(), 'mean reward of a group from which its example goes to the easy pool'),
  hard_threshold: setting(anyNumber(), 'mean reward up to which it goes to the hard pool'),
  easy_fraction: setting(poolFraction(), 'how often easy examples are drawn, where normal ones are drawn once', {
    neutral: 0,
  }),
  hard_fraction: setting(poolFraction(), 'the same for hard ones', { neutral: 0 }),
};
export const buffer = table({
  online_difficulty_filtering: setting(flag(), 'drops groups whose mean reward is exactly 0 or 1', { default: false }),
  ...pools,
});

const turns = [1_000_000, 'each turn is stored with its rollout', 'fewer turns'] as const;
/** How far a rollout may go, in verifiers' words. */
const limits = {
  max_turns: setting(
    whole(1),
    'turns of the policy in a rollout; after the last one it ends and is scored with what it has (`truncated`; under verifiers 0.3, which calls it completed, not)',
    { most: turns },
  ),
  max_input_tokens: setting(
    whole(1),
    'tokens that the environment feeds into a rollout; looked at between turns, and then as `max_turns`',
  ),
  max_output_tokens: setting(whole(1), 'tokens that the policy says in a rollout; the same'),
  max_total_tokens: setting(whole(1), 'both together; the same'),
  timeout: setting(positive(), 'seconds a rollout may be played; then `on_timeout` says what becomes of it', {
    as: 'timeoutS',
  }),
  on_timeout: setting(
    choice(...timeoutFates),
    'of a rollout that is not finished in time: "drop" or "truncate", in place of the run’s',
  ),
  max_retries: setting(
    whole(0, rolloutRetriesMax),
    'how often a rollout that its environment spoiled is played again, in a fresh one; twice when missing',
  ),
};
const ownPrompt = {
  system_prompt: setting(
    prompt(),
    'in place of the system prompt of its examples: a text; or a file with it, which is one word, or a line that ends with `.txt` or `.md`; "" = none',
    { isLeftOut: true },
  ),
};
const agent = {
  agent: setting(
    args(),
    'of verifiers v1: what solves its tasks, as verifiers has it (`harness`, `runtime`, …); the `null` harness in a process of this machine when missing',
    { isLeftOut: true },
  ),
  episode: setting(
    args(),
    'of verifiers v1: what its environment has beside a taskset and one `agent`: `id`, further agents by their role, settings of its own. One of them is the policy; another has a `model` and a `client`, an endpoint that is not trained',
    { isLeftOut: true },
  ),
};
const variables = {
  env_vars: setting(
    passedVariables(),
    'names of environment variables that it sees beside the usual ones: keys of judges and tools. Each has to be set where the workers run, or in one of `env_files`',
  ),
};

/** At least one, unless there is nothing but [sft] data to learn from. */
export const environments = listOf(
  {
    id: required(
      environmentId(),
      'a built-in environment (`ratchet env list`), or a file of yours; with `kind = "agent"` a name of your choice',
    ),
    name: setting(environmentLabel(), 'its name in metrics; else the id without its owner'),
    args: setting(args(), 'its arguments; `ratchet env info ID` lists them', { default: {} }),
    weight: setting(positive(), 'relative probability of drawing an example from it', { default: 1 }),
    advantage: setting(choice(...advantageKinds), 'of its groups, in place of `[trainer] advantage`', {
      isLeftOut: true,
    }),
    rollouts_per_example: setting(
      whole(1),
      'rollouts of its groups, in place of the run’s; where they differ, a batch is whole groups up to the first with which it has `batch_size` rollouts',
      { isLeftOut: true, most: [groupRolloutsMax, 'no group is larger', 'fewer'] },
    ),
    loss: setting(
      choice('rl', 'opd'),
      'what is learned from its rollouts, in place of `loss`: rewards, or log probabilities of the `[teacher]`. Where both are in a run, each is over its own number of tokens, and `[trainer.loss]` is that of rewards',
      { isLeftOut: true },
    ),
    echo: optionalTable(
      meaning(echoRoles, () => 'of this environment, in place of `[trainer.echo]`; with weights of 0 nothing'),
    ),
    buffer: optionalTable(meaning(pools, () => 'of this environment, in place of `[buffer]`')),
    ...variables,
    ...limits,
    ...ownPrompt,
    ...agent,
    ...agentSettings,
    ...agentTables,
    budget: budgetOfRollout,
    sampling: optionalTable({
      ...samplingSettings({
        max_tokens: 'of this environment, in place of `[sampling]`',
        temperature: 'the same; a Tinker server, a trainer of your own and a teacher take that of `[sampling]` alone',
      }),
    }),
  },
  (items) => items.meta({ expected: 'at least one environment: a [[env]] with an id' }).default([]),
);

/** Settings that evaluated environments share with trained ones. */
export const alsoEvaluated = {
  ...meaning({ ...variables, ...limits, ...ownPrompt, ...agent }, (key) =>
    ['env_vars', 'max_turns', 'system_prompt'].includes(key) ? 'as in `[[env]]`' : 'the same',
  ),
  ...alsoOfEvaluated,
};

export const environmentFiles = {
  builtin: setting(
    flag(),
    'takes the built-in environment for `owner/name`, if there is one of that name; `--builtin`',
    { default: false },
  ),
};
export const variableFiles = {
  env_files: setting(
    texts(),
    'files of lines `NAME=value` with keys of judges and tools, which environments in Python see; from the config’s folder, or else the project’s, on every machine with workers. Read where they are needed, never stored',
    { default: [] },
  ),
};

/**
 * Difficulty pools of an environment: a mean reward of a group ≥ easyThreshold makes its example easy, else one ≤
 * hardThreshold makes it hard. A fraction is the frequency of a pool's examples relative to normal ones, which are
 * drawn once per epoch; 0 = never again.
 */
export const PoolSpec = z.strictObject(specFields(pools));
export type PoolSpec = z.infer<typeof PoolSpec>;

/** A package of verifiers: the result of resolving an environment's id. */
export const PythonEnvironmentSpec = z.strictObject({
  /** The module to import: the id with underscores. */
  module: z.string().min(1),
  /** `v0` has load_environment (verifiers 0.3), `v1` a Taskset (0.4 and newer). */
  api: z.enum(['v0', 'v1']),
  /** Absolute path of the virtual environment; its interpreter is `bin/python` in it. */
  folder: z.string().min(1),
  /** Installed versions there: of verifiers, of the package. */
  verifiers: z.string().min(1),
  version: z.string().min(1),
  /** Absolute path of a local package, which is installed editable: its files are imported from there. */
  source: z.string().optional(),
  /** Digest of `source`'s files when the config was read (`folderDigest`), hex. */
  sha256: z.string().optional(),
});
export type PythonEnvironmentSpec = z.infer<typeof PythonEnvironmentSpec>;

/** Their names alone are here, never their values. Missing = no others. */
const EnvironmentVariables = z.strictObject({
  /** Each has to be set where its rollouts are played, there or in one of `files`. */
  names: z.array(z.string().min(1)).default([]),
  /**
   * Absolute paths of files with lines `NAME=value`, all visible to a Python environment; needed on every machine with
   * workers.
   */
  files: z.array(z.string().min(1)).default([]),
});

/**
 * Limits of a rollout. null = only the environment's own. Tokens are checked between turns, so that the turn that
 * reaches a limit is still whole; tokens shared by several turns count once.
 */
export const RolloutLimits = z.strictObject(specFields(limits));
export type RolloutLimits = z.infer<typeof RolloutLimits>;

export const EnvironmentSpec = z.strictObject({
  /** A built-in environment, the absolute path of a user's file, or the name of a package (`python`) or an agent. */
  id: z.string().min(1),
  /** Set for an agent. */
  program: ProgramSpec.optional(),
  /** Digest of the file that the id names, hex, at the time of reading; missing if the id is no file. */
  sha256: z.string().optional(),
  python: PythonEnvironmentSpec.optional(),
  variables: EnvironmentVariables.optional(),
  limits: RolloutLimits.optional(),
  /** Of each of its rollouts; missing = nothing is limited. */
  budget: BudgetSpec.optional(),
  /** The text itself: a file is read together with the config. */
  ...specFields(ownPrompt),
  ...specFields(agent),
  /** Group size that replaces the run's; missing = the run's. */
  rolloutsPerExample: z.int().positive().optional(),
  /** Replaces the run's; missing = the run's. */
  sampling: SamplingSpec.optional(),
  /** Unique within the run; the id unless two entries share it. */
  name: z.string().min(1),
  args: args(),
  /** Relative probability of drawing an example from this environment, > 0. */
  weight: z.number().positive(),
  /** Advantage of its groups; missing = the run's. */
  advantage: z.enum(advantageKinds).optional(),
  /** Its rollouts are trained on the teacher alone, beside others; missing = by the run's `loss`. */
  objective: z.literal('ref_kl').optional(),
  /** Trains on its own messages too; missing = not. */
  echo: EchoSpec.optional(),
  /** null = all examples are drawn equally. */
  pools: PoolSpec.nullable().default(null),
});
export type EnvironmentSpec = z.infer<typeof EnvironmentSpec>;

export function environmentSpecs(config: RatchetConfig): EnvironmentSpec[] {
  return withNames(config.env).map((entry) => ({
    id: entry.id,
    ...ofEnvironment(config, entry),
    ...(ownGroupSize(config, entry) && { rolloutsPerExample: entry.rollouts_per_example }),
    ...(entry.sampling && { sampling: samplingSpec(laidOver(config.sampling, entry.sampling)) }),
    name: entry.name,
    args: entry.args,
    weight: entry.weight,
    ...(entry.advantage && { advantage: entry.advantage }),
    ...(kindsOf(config).size > 1 && kindOfEnvironment(config, entry) === 'opd' && { objective: 'ref_kl' as const }),
    ...echoSpec(entry.echo, config.trainer.echo),
    pools: poolSpec(writtenPools(config, entry.buffer)),
  }));
}

/** Reports environments whose groups have another size than the run's. */
function ownGroupSize(
  { rollouts_per_example: size }: RatchetConfig,
  { rollouts_per_example: own = size }: RatchetConfig['env'][number],
): boolean {
  return own !== size;
}

/** Settings that trained and evaluated environments may share. */
export function ofEnvironment(
  { env_files: files }: RatchetConfig,
  entry: WrittenIn<typeof alsoEvaluated> & WrittenIn<{ readonly budget: typeof budgetOfRollout }>,
): Pick<EnvironmentSpec, 'variables' | 'limits' | 'budget' | 'systemPrompt' | 'agent' | 'episode' | 'program'> {
  const names = [...new Set(entry.env_vars)];
  const bounds = inSpec(limits, entry);
  const isBounded = Object.values(bounds).some((bound) => bound !== null);
  return {
    ...(names.length + files.length > 0 && { variables: { names, files } }),
    ...(isBounded && { limits: bounds }),
    ...budgetSpec(entry.budget),
    ...inSpec(ownPrompt, entry),
    ...inSpec(agent, entry),
    ...present({ program: programSpec(entry) }),
  };
}

type WrittenPools = WrittenIn<typeof pools>;

/** Pools of [buffer], overridden by the environment's own. */
export function writtenPools({ buffer }: RatchetConfig, own: WrittenPools = {}): WrittenPools {
  return { ...buffer, ...own };
}

/** Examples of a pool are set aside by default, as in prime-rl. */
function poolSpec(written: WrittenPools): PoolSpec | null {
  const { easy_threshold, hard_threshold } = written;
  return easy_threshold === undefined && hard_threshold === undefined ? null : inSpec(pools, written);
}

/** The default name of an environment is its id, numbered when that name is taken. */
export function withNames<T extends { readonly id: string; readonly name?: string | undefined }>(
  environments: readonly T[],
): (T & { readonly name: string })[] {
  const taken = new Set(environments.flatMap(({ name }) => name ?? []));
  return environments.map((environment) => {
    if (environment.name !== undefined) return { ...environment, name: environment.name };
    const base = environmentName(environment.id);
    let name = base;
    for (let i = 2; taken.has(name); i++) name = `${base}-${i}`;
    taken.add(name);
    return { ...environment, name };
  });
}
