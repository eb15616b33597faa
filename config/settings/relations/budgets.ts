import type { RatchetConfig } from '../index.ts';
import { problem, type Relations, spelled } from './problem.ts';

/** Money is limited only where prices are known, and no budget is below what one step takes at least. */
export function* budgetRelations(config: RatchetConfig): Relations {
  const { budget, env, eval: evaluation, gepa, cost, sampling, batch_size, data } = config;
  const limited = [
    ...(budget?.money === undefined ? [] : ['budget.money']),
    ...env.flatMap((entry, i) => (entry.budget?.money === undefined ? [] : [`env.${i}.budget.money`])),
    ...(evaluation?.budget?.money === undefined ? [] : ['eval.budget.money']),
    ...(evaluation?.env ?? []).flatMap((entry, i) =>
      entry.budget?.money === undefined ? [] : [`eval.env.${i}.budget.money`],
    ),
    ...(gepa?.budget?.money === undefined ? [] : ['gepa.budget.money']),
  ];
  for (const path of limited) {
    const isOfSearch = path.startsWith('gepa') || (path === 'budget.money' && gepa !== undefined);
    const needed = [
      'prompt' as const,
      'completion' as const,
      ...(isOfSearch ? (['reflection_prompt', 'reflection_completion'] as const) : []),
    ];
    const missing = needed.filter((key) => cost?.[key] === undefined);
    if (missing.length === 0) continue;
    const expected = `${missing.map((key) => `[cost] ${key}`).join(' and ')} beside it, 0 where it costs nothing: money is limited only at known prices`;
    yield problem([path, 'cost'], expected, 'no price');
  }
  yield* otherModelRelations(config);
  if (budget === undefined || data !== undefined || env.length === 0) return;
  const { tokens, money } = budget;
  const answer = sampling.max_tokens + 1;
  const least = Math.max(answer, 2 * batch_size);
  if (tokens !== undefined && tokens < least) {
    const expected = `at least ${least}: an answer may have ${answer} tokens with its prompt or more, and a step has ${batch_size} rollouts`;
    yield problem(['budget.tokens', 'sampling.max_tokens', 'batch_size'], expected, tokens);
  }
  const price = (sampling.max_tokens * (cost?.completion ?? 0) + (cost?.prompt ?? 0)) / 1e6;
  if (money !== undefined && money < price) {
    const expected = `at least ${price}: one answer of ${sampling.max_tokens} tokens may cost that much`;
    yield problem(['budget.money', 'sampling.max_tokens', 'cost.completion'], expected, money);
  }
}

/** Calls of other models are reserved before they are made: their answers need a bound, and where money is limited a price. */
function* otherModelRelations({ budget, env, eval: evaluation, cost }: RatchetConfig): Relations {
  const limitsOf = (at: string, limits: typeof budget) =>
    (['tokens', 'money'] as const).flatMap((unit) =>
      limits?.[unit] === undefined ? [] : [{ at: `${at}.${unit}`, unit }],
    );
  const ofRun = limitsOf('budget', budget);
  const ofEvaluation = [...ofRun, ...limitsOf('eval.budget', evaluation?.budget)];
  const entries = [
    ...env.map((entry, i) => [`env.${i}`, entry, evaluation?.env === undefined ? ofEvaluation : ofRun] as const),
    ...(evaluation?.env ?? []).map((entry, i) => [`eval.env.${i}`, entry, ofEvaluation] as const),
  ];
  for (const [at, entry, around] of entries) {
    const limits = [...limitsOf(`${at}.budget`, entry.budget), ...around];
    const money = limits.find(({ unit }) => unit === 'money');
    for (const [j, { name, max_tokens: most }] of (entry.models ?? []).entries()) {
      const [first] = limits;
      if (first !== undefined && most === undefined)
        yield problem([`${at}.models.${j}.max_tokens`, `${at}.models.${j}`, first.at], `most tokens of an answer, since ${spelled(first.at)} is limited: a call is reserved before it is made`, 'nothing'); // prettier-ignore
      const isPriced = cost?.models?.some((priced) => priced.name === name) === true;
      if (money !== undefined && !isPriced)
        yield problem([`${at}.models.${j}.name`, money.at], `a [[cost.models]] with name = ${JSON.stringify(name)}, 0 where it costs nothing: ${spelled(money.at)} is limited`, 'no price'); // prettier-ignore
    }
  }
}
