import { leastStepS } from '../core/rl/sampling/late-groups.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import {
  groupSeconds,
  type Simulated,
  type SimulatedGroup,
  type SimulatedRun,
  simulatePrimeRl,
  simulateRatchet,
} from './simulated-sampling.ts';
import { mean, round } from './statistics.ts';

/**
 * Whether a run trains an unbiased part of what it issues, where rollouts have a tail, and how long its steps are. Simulated in virtual time with
 * the project's own window, lease, selection and rule for late groups (`simulated-sampling.ts`), and with prime-rl's rule beside it.
 *
 * The tail: 16 groups of 8 a step, 60 steps, rollouts log-normal with σ = 1.2 and a median of 1 s, longer by e^(2 (d − ½)) at difficulty d, a
 * trainer of 1 s, `max_off_policy_steps` 8. Seeds are 1 … `--seeds`.
 *
 * - `hardest_min`, goal ≥ 0.9: of the hardest quarter of issued groups the share that was trained, ÷ the same of the others, on average over the
 *   seeds; the worst of all levels, with one environment and with two. `details` has the worst seed of each.
 * - `stale_max`, goal ≤ 0.02: of the groups that ended; the worst of all levels and seeds.
 * - `mix_error_max`, goal ≤ 0.02: two environments are drawn as often, and one takes 12 times as long. How far its share of the first 160 trained
 *   groups is from its share of the first 160 issued ones; the worst of all levels and seeds.
 * - `step_ratio`, goal ≤ 1.15: seconds of a step at the default level, 1, ÷ the least with which no more than 2 % of the groups outlast the bound.
 *   An oracle that leases as the window does would need that many.
 * - `filtered_ratio`, goal ≤ 1: with a short tail (σ = 0.5) and a filter that keeps 45 %, seconds of a step at level 2 ÷ those of prime-rl with three
 *   batches in flight.
 * - `steady_ratio`, goal 1: without a tail, seconds of a step ÷ those before there were rules; the worst of four lengths and four levels.
 */
export const samplingBias = measurement(
  'sampling-bias',
  'whether hard groups are trained as often as easy ones',
  measure,
)
  .option('--seeds <n>', 'how many, from 1', Number, 5)
  .option('--steps <n>', 'of each run', Number, 60)
  .addHelpText(
    'after',
    '\nGoals: hardest_min ≥ 0.9, stale_max ≤ 0.02, mix_error_max ≤ 0.02, step_ratio ≤ 1.15, filtered_ratio ≤ 1, steady_ratio 1.',
  );

interface Options {
  readonly seeds: number;
  readonly steps: number;
}

const tail: SimulatedRun = {
  seed: 1,
  steps: 60,
  groupsPerBatch: 16,
  rolloutsPerExample: 8,
  trainS: 1,
  level: 1,
  maxOffPolicySteps: 8,
  keptShare: 1,
  medianS: 1,
  sigma: 1.2,
  hardness: 2,
  slower: 1,
};
const levels = [1, 2, 4, 8];
/** Groups from whose lengths the least step is computed. */
const groupsLookedAt = 200_000;
const hardestFrom = 0.75;
const mixedGroups = 160;
/** Groups that prime-rl has in flight by its example files: three batches. */
const primeGroups = 48;

async function measure(bench: Bench, options: Options): Promise<Figures> {
  const base = { ...tail, steps: options.steps };
  const simulate = (name: string, run: SimulatedRun, how: (run: SimulatedRun) => Simulated): Summary => {
    const runs = Array.from({ length: options.seeds }, (_, i) => factsOf(how({ ...run, seed: i + 1 }), run));
    const summary = summaryOf(runs, run);
    bench.say(`${name.padEnd(34)} ${JSON.stringify(summary)}`);
    return summary;
  };
  const kinds = { tail: base, 'two environments': { ...base, slower: 12 } };
  const details: Record<string, Summary> = {};
  for (const [kind, run] of Object.entries(kinds)) {
    bench.doing(`${kind}: the least step is ${round(leastOf(run))} s`);
    for (const level of levels) {
      for (const rules of ['none', 'unbiased'] as const) {
        const name = `${kind}, level ${level}${rules === 'none' ? ', before' : ''}`;
        details[name] = simulate(name, { ...run, level }, (one) => simulateRatchet(one, rules));
      }
    }
    const name = `${kind}, prime-rl`;
    details[name] = simulate(name, run, (one) => simulatePrimeRl(one, primeGroups));
  }
  const filtered: SimulatedRun = { ...base, sigma: 0.5, keptShare: 0.45, level: 2 };
  for (const rules of ['none', 'unbiased'] as const) {
    const name = `45 % kept, level 2${rules === 'none' ? ', before' : ''}`;
    details[name] = simulate(name, filtered, (one) => simulateRatchet(one, rules));
  }
  details['45 % kept, prime-rl'] = simulate('45 % kept, prime-rl', filtered, (one) =>
    simulatePrimeRl(one, primeGroups),
  );
  const ours = levels.flatMap((level) => Object.keys(kinds).map((kind) => details[`${kind}, level ${level}`]!));
  return {
    hardest_min: Math.min(...ours.map(({ hardest }) => hardest)),
    stale_max: Math.max(...ours.map(({ stale_max }) => stale_max)),
    mix_error_max: Math.max(...ours.map(({ mix_error_max }) => mix_error_max)),
    step_ratio: details['tail, level 1']!.step_ratio,
    filtered_ratio: round(details['45 % kept, level 2']!.step_s / details['45 % kept, prime-rl'].step_s),
    steady_ratio: steadyRatio(base),
    details,
  };
}

/** The figures of one simulated run. */
interface Facts {
  readonly hardest: number;
  readonly stale: number;
  readonly mixError: number;
  readonly stepS: number;
  readonly age: number;
  readonly secondsOfTrained: number;
  readonly secondsOfIssued: number;
  readonly firstDifficulty: number;
}

interface Summary {
  readonly hardest: number;
  readonly hardest_min: number;
  readonly stale: number;
  readonly stale_max: number;
  readonly mix_error_max: number;
  readonly step_s: number;
  readonly step_ratio: number;
  /** Versions that trained groups were behind, on average. */
  readonly age: number;
  /** Mean seconds of a group. */
  readonly trained_s: number;
  readonly issued_s: number;
  /** Mean difficulty of the groups in the first quarter of the steps: 0.5 is unbiased. */
  readonly first_difficulty: number;
}

function factsOf({ groups, trained, seconds }: Simulated, { steps, groupsPerBatch }: SimulatedRun): Facts {
  const ended = groups.filter(({ fate }) => fate !== 'in play' && fate !== 'kept');
  const isHard = ({ difficulty }: SimulatedGroup): boolean => difficulty >= hardestFrom;
  const first = trained.slice(0, Math.ceil(steps / 4) * groupsPerBatch);
  return {
    hardest: rateOf(groups.filter(isHard)) / rateOf(groups.filter((group) => !isHard(group))),
    stale: ended.filter(({ fate }) => fate === 'stale').length / ended.length,
    mixError: Math.abs(slowShare(trained.slice(0, mixedGroups)) - slowShare(groups.slice(0, mixedGroups))),
    stepS: seconds / steps,
    age: mean(trained.map(({ fate, policyStep }) => (typeof fate === 'object' ? fate.trainedIn - 1 - policyStep : 0))),
    secondsOfTrained: mean(trained.map((group) => group.seconds)),
    secondsOfIssued: mean(groups.map((group) => group.seconds)),
    firstDifficulty: mean(first.map(({ difficulty }) => difficulty)),
  };
}

/** Share that came to its step, or to the filter. */
function rateOf(groups: readonly SimulatedGroup[]): number {
  return groups.filter(({ fate }) => typeof fate === 'object' || fate === 'dropped').length / groups.length;
}

function slowShare(groups: readonly SimulatedGroup[]): number {
  return groups.filter(({ environment }) => environment === 'slow').length / groups.length;
}

function summaryOf(runs: readonly Facts[], run: SimulatedRun): Summary {
  const meanOf = (of: keyof Facts): number => mean(runs.map((facts) => facts[of]));
  const stepS = meanOf('stepS');
  return {
    hardest: round(meanOf('hardest')),
    hardest_min: round(Math.min(...runs.map(({ hardest }) => hardest))),
    stale: round(meanOf('stale')),
    stale_max: round(Math.max(...runs.map(({ stale }) => stale))),
    mix_error_max: round(Math.max(...runs.map(({ mixError }) => mixError))),
    step_s: round(stepS),
    step_ratio: round(stepS / leastOf(run)),
    age: round(meanOf('age')),
    trained_s: round(meanOf('secondsOfTrained')),
    issued_s: round(meanOf('secondsOfIssued')),
    first_difficulty: round(meanOf('firstDifficulty')),
  };
}

const known = new Map<string, number>();

/** Seconds of a step, the trainer's time at least, however far sampling is ahead. */
function leastOf({ trainS, maxOffPolicySteps, ...run }: SimulatedRun): number {
  const key = [run.medianS, run.sigma, run.hardness, run.slower].join(' ');
  const least =
    known.get(key) ?? leastStepS(groupSeconds({ ...tail, ...run, seed: 0 }, groupsLookedAt), maxOffPolicySteps);
  known.set(key, least);
  return Math.max(trainS, least);
}

/** The ratio with equal durations of all rollouts. */
function steadyRatio(base: SimulatedRun): number {
  const ratios = [0.2, 1, 3, 10].flatMap((medianS) =>
    levels.map((level) => {
      const run = { ...base, sigma: 0, hardness: 0, medianS, level };
      return simulateRatchet(run, 'unbiased').seconds / simulateRatchet(run, 'none').seconds;
    }),
  );
  return round(Math.max(...ratios));
}
