import { requireKnownOptions } from './known-options.ts';
import type { RewardFunction, Rubric } from './types.ts';

/** Reward functions with distinct names and finite weights; weight 0 reports a metric without rewarding it. */
export function rubric<State = unknown>(functions: readonly RewardFunction<State>[]): Rubric<State> {
  const names = new Set<string>();
  for (const each of functions) {
    const { name, weight } = each;
    requireKnownOptions<RewardFunction<State>>(`Reward function "${name}"`, each, {
      name: true,
      weight: true,
      score: true,
    });
    if (names.has(name)) throw new TypeError(`Two reward functions are called "${name}".`);
    if (!Number.isFinite(weight)) throw new TypeError(`The weight of reward function "${name}" is ${weight}.`);
    names.add(name);
  }
  return { functions };
}

export interface RubricPart<State = unknown> {
  readonly rubric: Rubric<State>;
  /** Multiplies the weights of its functions; 1 when left out. */
  readonly weight?: number;
  /** Prefix of its functions' names, with a slash, so that two rubrics may use equal names. */
  readonly name?: string;
}

/** Several rubrics as one: the reward is Σ part weight · function weight · score. */
export function combineRubrics<State = unknown>(parts: readonly (Rubric<State> | RubricPart<State>)[]): Rubric<State> {
  return rubric(
    parts.flatMap((part) => {
      const given: RubricPart<State> = 'functions' in part ? { rubric: part } : part;
      requireKnownOptions<RubricPart<State>>('combineRubrics([…]): a part', given, {
        rubric: true,
        weight: true,
        name: true,
      });
      const { rubric: own, weight = 1, name } = given;
      return own.functions.map((judge) => ({
        name: name === undefined ? judge.name : `${name}/${judge.name}`,
        weight: weight * judge.weight,
        score: (input) => judge.score(input),
      }));
    }),
  );
}
