import type { Curves } from '../../runs/metrics/curves.ts';
import type { EvalFigures } from '../../core/rl/figures.ts';
import { etaOf, medianStepSeconds, seconds, stepsOfMedian } from '../view/view-model.ts';

/** Progress, quality and speed of a run. `eta` only while it trains. */
export function describeFigures(
  { step, maxSteps, trend, evals }: { readonly step: number; readonly maxSteps: number } & Curves,
  isTraining: boolean,
): string[] {
  const took = medianStepSeconds(trend);
  const eta = isTraining ? etaOf({ step, maxSteps, trend }) : null;
  return [
    ...describeReward(trend.flatMap(([, reward]) => reward ?? [])),
    ...[...new Set(evals.map(({ environment }) => environment))].map((environment) =>
      describeEvals(
        environment,
        evals.filter((one) => one.environment === environment),
      ),
    ),
    ...(took === null
      ? []
      : [
          `step time     ${seconds(took)}${eta === null ? '' : ` · ${maxSteps - step} steps to go, eta ${seconds(eta)}`}`,
        ]),
  ];
}

function describeReward(rewards: readonly number[]): string[] {
  const last = rewards.at(-1);
  if (last === undefined) return [];
  const before = rewards.slice(-stepsOfMedian);
  const mean = before.reduce((sum, reward) => sum + reward, 0) / before.length;
  const over = before.length < 2 ? '' : ` · mean of the last ${before.length} steps ${mean.toFixed(3)}`;
  return [`reward        ${last.toFixed(3)}${over}`];
}

const evalsShown = 3;

/** The first evaluation shows the model before training; the newest show its state. */
function describeEvals(environment: string, evals: readonly EvalFigures[]): string {
  const shown = evals.length <= evalsShown + 1 ? evals : [evals[0]!, null, ...evals.slice(-evalsShown)];
  const each = shown.map((one) => (one === null ? '…' : `v${one.step} ${one.reward?.toFixed(3) ?? '–'}`));
  // Shows the first and the last version: one kind of reward may rise while the other falls.
  const ends = evals.length === 1 ? evals : [evals[0]!, evals.at(-1)!];
  const greedies = ends.flatMap(({ greedyReward }) => greedyReward?.toFixed(3) ?? []);
  const greedy = evals.at(-1)!.greedyReward === null ? '' : ` (greedy ${greedies.join(' → ')})`;
  return `evals         ${environment}: ${each.join(' · ')}${greedy}`;
}
