import type { Curves } from '../runs/curves.ts';
import type { EvalFigures } from '../workflows/control/messages.ts';
import { etaOf, medianStepSeconds, seconds, stepsOfMedian } from './view/view-model.ts';

/** How far, how good, how fast: what one asks of a run first. `eta` only where it is training. */
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

/** The first is what the model could before it was trained; the newest say where it is. */
function describeEvals(environment: string, evals: readonly EvalFigures[]): string {
  const shown = evals.length <= evalsShown + 1 ? evals : [evals[0]!, null, ...evals.slice(-evalsShown)];
  const each = shown.map((one) => (one === null ? '…' : `v${one.step} ${one.reward?.toFixed(3) ?? '–'}`));
  const { greedyReward } = evals.at(-1)!;
  const greedy = greedyReward === null ? '' : ` (greedy ${greedyReward.toFixed(3)})`;
  return `evals         ${environment}: ${each.join(' · ')}${greedy}`;
}
