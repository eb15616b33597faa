import type { Finding } from '../../core/rl/advice/rules-of-thumb.ts';
import { describeFinding } from '../output/findings.ts';
import type { Baseline } from '../../core/rl/advice/baseline.ts';
import { countOutcomes, describeFailures } from '../../core/rl/failures.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';

/** Measured baselines, what the rules of thumb say of them, and the next steps. */
export function describeBaselines(
  file: string,
  {
    baselines,
    findings,
    measured,
  }: {
    readonly baselines: readonly Baseline[];
    readonly findings: readonly Finding[];
    readonly measured: readonly ScoredGroup[];
  },
): string[] {
  return [
    ...baselines.flatMap((baseline) => [...describeBaseline(baseline), ...failuresOf(baseline, measured)]),
    ...findings.flatMap(describeFinding),
    findings.some(({ level }) => level !== 'note')
      ? `change ${file} and measure again`
      : `${file} is worth training: npx ratchet-rl train ${file}`,
  ];
}

function failuresOf({ environment }: Baseline, groups: readonly ScoredGroup[]): string[] {
  const rollouts = groups.filter((group) => group.environment === environment).flatMap((group) => group.rollouts);
  return describeFailures(countOutcomes(rollouts)).map((line) => `  ${line.split('\n')[0]}`);
}

function describeBaseline(baseline: Baseline): string[] {
  const {
    environment,
    groups,
    attempts,
    meanReward,
    least,
    most,
    diverseShare,
    truncatedShare,
    distinctShare,
    failedShare,
    meanTokens,
  } = baseline;
  const percent = (share: number): string => `${Math.round(share * 100)} %`;
  const reward = meanReward === null ? 'no reward' : `reward ${meanReward.toFixed(3)} (${least} to ${most})`;
  return [
    `${environment}: ${reward} over ${attempts} rollouts of ${groups} examples`,
    `  rewards differ in ${percent(diverseShare)} of the groups · ${percent(distinctShare)} of a group's answers differ · ${percent(truncatedShare)} cut off · ${percent(failedShare)} failed · ${meanTokens.toFixed(1)} tokens`,
  ];
}
