import type { RatchetConfig } from '../index.ts';
import { problem, type Relations } from './problem.ts';

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
