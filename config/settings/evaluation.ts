import { z } from 'zod';
import { groupRolloutsMax } from '../../core/limits.ts';
import { liveSettings } from '../../core/rl/live-settings.ts';
import { evalMoments, regressionActions } from '../evaluations/eval-words.ts';
import { args, choice, countOrAll, environmentId, environmentLabel, flag, whole } from '../toml/values.ts';
import { budgetOfEvaluation, budgetOfRollout, BudgetSpec, budgetSpec } from './budgets.ts';
import { alsoEvaluated, EnvironmentSpec, ofEnvironment, withNames } from './environments.ts';
import type { RatchetConfig } from './index.ts';
import {
  laidOver,
  samplingSettings,
  SamplingSpec,
  samplingSpec,
  type WrittenEvalSampling,
  type WrittenSampling,
} from './sampling.ts';
import { inSpec, listOf, optionalTable, required, setting, specFields, type WrittenIn } from './setting.ts';

/** `[eval]`: evaluations on held-out examples during training. */

const rolloutsBound = [
  groupRolloutsMax,
  'they are played and scored together',
  'fewer; more examples say more',
] as const;

const whenAndHow = {
  when: setting(
    choice(...evalMoments),
    '`beside` the training; `pause` it meanwhile; `defer` to after the last step. Missing: beside where the servers hold several versions, else pause',
  ),
  on_regression: setting(
    choice(...regressionActions),
    'when a version is worse than those before it: `flag` it; `pause` or `stop` the run once two evaluations in a row are, beyond doubt and on at least ten examples. One alone is only marked',
    { default: 'flag' },
  ),
};
const ofOne = {
  skip_first: setting(whole(0), 'held-out examples that are left out at the start', { neutral: 0 }),
  interval: setting(whole(1), 'in place of `[eval] interval`'),
};

const evaluated = {
  id: required(environmentId(), 'an environment to evaluate on; without such tables, those that are trained on'),
  name: setting(environmentLabel(), 'its name in metrics'),
  args: setting(args(), 'its arguments', { default: {} }),
  num_examples: setting(countOrAll('examples'), 'in place of `[eval] num_examples`'),
  rollouts_per_example: setting(whole(1), 'in place of `[eval] rollouts_per_example`', { most: rolloutsBound }),
  ...alsoEvaluated,
  ...ofOne,
  budget: budgetOfRollout,
  sampling: optionalTable({
    ...samplingSettings({
      max_tokens: 'of this environment, in place of `[eval.sampling]`',
    }),
  }),
};

export const evaluation = optionalTable({
  interval: setting(whole(1), 'steps between evaluations; the first is of v0, the last of the last version', {
    default: 100,
    live: liveSettings['eval.interval'],
  }),
  num_examples: setting(countOrAll('examples'), 'held-out examples of each environment', { default: -1 }),
  rollouts_per_example: setting(whole(1), 'rollouts of each', { default: 1, most: rolloutsBound }),
  skip_first_step: setting(flag(), 'no evaluation of v0'),
  eval_base_model: setting(flag(), 'the older name of its opposite'),
  /** Missing settings are those of [sampling]. */
  sampling: optionalTable({
    ...samplingSettings({
      max_tokens: 'as in `[sampling]`, which applies where nothing is written here',
      temperature: 'the same; 0 = greedy',
    }),
  }),
  ...whenAndHow,
  budget: budgetOfEvaluation,
  env: listOf(evaluated, (items) => items.min(1).meta({ expected: 'a list of tables: [[eval.env]]' }).optional()),
});

/** Evaluations may be greedy: temperature 0. */
const EvalSamplingSpec = SamplingSpec.extend({ temperature: z.number().min(0) });

export const EvalSpec = z.strictObject({
  /** Steps between evaluations; the first is at step 0 unless skipped, the last after the last step. */
  interval: z.int().positive(),
  skipFirstStep: z.boolean(),
  /** null = as in training rollouts. */
  sampling: EvalSamplingSpec.nullable().default(null),
  ...specFields(whenAndHow),
  /** Of each evaluation of an environment; missing = nothing is limited but by the run's. */
  budget: BudgetSpec.optional(),
  environments: z.array(
    EnvironmentSpec.omit({
      sampling: true,
      weight: true,
      pools: true,
      rolloutsPerExample: true,
      objective: true,
      echo: true,
    }).extend({
      /** −1 = all of them. */
      numExamples: z.int(),
      rolloutsPerExample: z.int().positive(),
      ...specFields(ofOne),
      sampling: EvalSamplingSpec.nullable().default(null),
    }),
  ),
});
export type EvalSpec = z.infer<typeof EvalSpec>;

export function evalSpec(config: RatchetConfig): EvalSpec | null {
  const written = config.eval;
  if (written === undefined) return null;
  const { interval, skip_first_step, eval_base_model = true, num_examples, rollouts_per_example } = written;
  return {
    interval,
    sampling: written.sampling === undefined ? null : samplingSpec(evalSampling(config)),
    ...inSpec(whenAndHow, written),
    ...budgetSpec(written.budget),
    skipFirstStep: skip_first_step ?? !eval_base_model,
    environments: withNames(written.env ?? trainedOn(config)).map((entry) => ({
      id: entry.id,
      ...ofEnvironment(config, entry),
      name: entry.name,
      args: entry.args,
      numExamples: entry.num_examples ?? num_examples,
      rolloutsPerExample: entry.rollouts_per_example ?? rollouts_per_example,
      ...inSpec(ofOne, entry),
      sampling: entry.sampling === undefined ? null : samplingSpec(evalSampling(config, entry.sampling)),
    })),
  };
}

/** [sampling], overridden by [eval.sampling] and then by the environment's own. */
export function evalSampling(
  { sampling, eval: written }: RatchetConfig,
  own: Partial<WrittenEvalSampling> = {},
): WrittenSampling {
  return laidOver(sampling, { ...written?.sampling, ...own });
}

/** Default for evaluations: the trained environments with their limits, names and sampling. */
function trainedOn(config: RatchetConfig): WrittenIn<typeof evaluated>[] {
  return withNames(config.env).map(({ weight: _weight, buffer: _buffer, sampling: _sampling, ...entry }) => entry);
}
