import { type AdvantageFunction, customAdvantages, groupAdvantages } from './advantage.ts';
import { type Baselines, groupOfSamples, isRoleAdvantage, roleAdvantages, type Sample } from '../rollout/agents.ts';
import { type Credit, ofTokens, scalarOf, turnAdvantages, type TurnCredit } from './turn-credit.ts';
import { type PackedRow, tokensIn } from './batch.ts';
import { allFlags, filtersOf, isEnforced } from '../filters/filters.ts';
import { type LengthShaping, withLengthsCounted } from './length-penalty.ts';
import type { ScoredGroup, ScoredRollout } from '../rollout/rollout.ts';
import { rowsOfRollout, type TokenRow, defaultTrajectories } from '../rollout/trajectories.ts';
import { present } from '../../present.ts';
import type { AdvantageKind, RoleAdvantage } from '../../settings/learning.ts';
import type {
  EchoWeights,
  RolloutFilters,
  SamplingSettings,
  TrainedEnvironment,
  TrajectorySettings,
} from '../../settings/rollouts.ts';

/** Turns scored groups into rows for a trainer. */

interface PackStats {
  readonly groups: number;
  /** Rollouts with a reward; those without are not trained. */
  readonly rollouts: number;
  readonly rows: number;
  readonly totalTokens: number;
  /** Tokens that count in the loss. */
  readonly trainedTokens: number;
  /** Trained tokens with a learning signal: all but those whose advantage is 0. */
  readonly signalTokens: number;
  /** Trained tokens from the environment. */
  readonly observedTokens: number;
}

/** Parts of the rollouts that are missing in the batch, by reason. */
export interface SetAside {
  /** Rows longer than `seqLen`. */
  readonly overlongRows: number;
  /** Rollouts without loss because they were cut or too long. */
  readonly maskedRollouts: number;
  /** Rollouts that a filter removed from the loss. */
  readonly filteredRollouts: number;
  /** Messages of environments that should be trained on, but that the chat template rewrites. */
  readonly unplacedMessages: number;
}

/** An advantage of ours, by name or with its settings, or the user's function. */
export type Advantage = AdvantageKind | RoleAdvantage | AdvantageFunction;

interface PackOptions extends Partial<TrajectorySettings>, CreditOptions, Partial<OfEnvironments> {
  readonly advantage: Advantage;
  /** Baselines after the previous batch; absent for the first. */
  readonly baselines?: Baselines;
  readonly rolloutFilters?: RolloutFilters;
}

/** Settings of advantages beside rewards. */
interface CreditOptions extends LengthShaping {
  /** Absent: a rollout has one advantage for all its tokens. */
  readonly turnCredit?: TurnCredit | undefined;
}

/** Settings with the temperature and the advantage of groups without their own. */
interface OfEnvironments {
  readonly sampling: Pick<SamplingSettings, 'temperature'>;
  readonly environments: readonly TrainedEnvironment[];
}

export interface GroupAdvantages {
  /** Keyed by the rollout's index; 0 without a reward. */
  readonly advantages: ReadonlyMap<number, number>;
  /**
   * One for each trained agent, in the order of its traces; a rollout of one agent has one. Keyed by the rollout's
   * index.
   */
  readonly ofAgents: ReadonlyMap<number, readonly number[]>;
}

interface PackedGroup extends GroupAdvantages {
  /** `rollout` is the index among all groups' rollouts, or agents of episodes, of the row's own. */
  readonly rows: readonly { readonly sample: PackedRow; readonly rollout: number }[];
}

/**
 * Packs groups one after the other in order of ordinals, and rollouts by index; trajectories.ts defines the rows of a
 * rollout. An episode of several trained agents counts as several rollouts. Every sampled token has its rollout's
 * advantage, or its turn's. Advantages are computed over the whole group: a rollout without loss, due to a filter or
 * its length, still counts in the baseline. Only counts of a group are kept.
 */
export class Packer {
  readonly #advantage: PackOptions['advantage'];
  readonly #filters: RolloutFilters;
  readonly #settings: TrajectorySettings;
  readonly #shaping: CreditOptions;
  readonly #own: Partial<OfEnvironments>;
  #baselines: Baselines;
  readonly #stats = {
    groups: 0,
    rollouts: 0,
    rows: 0,
    totalTokens: 0,
    trainedTokens: 0,
    signalTokens: 0,
    observedTokens: 0,
  };
  readonly #setAside = { overlongRows: 0, maskedRollouts: 0, filteredRollouts: 0, unplacedMessages: 0 };

  constructor({
    advantage,
    rolloutFilters = { pre: [], post: [] },
    lengthPenalty = null,
    overlongPenalty = null,
    turnCredit,
    sampling,
    environments,
    baselines = {},
    ...trajectories
  }: PackOptions) {
    this.#baselines = baselines;
    this.#shaping = { lengthPenalty, overlongPenalty, turnCredit };
    this.#own = present({ sampling, environments });
    this.#advantage = advantage;
    this.#filters = rolloutFilters;
    this.#settings = { ...defaultTrajectories, ...trajectories };
  }

  get stats(): PackStats {
    return this.#stats;
  }

  get setAside(): SetAside {
    return this.#setAside;
  }

  /** Baselines after the groups so far; undefined if the advantage keeps none. */
  get baselines(): Baselines | undefined {
    const kind = this.#advantage;
    return isRoleAdvantage(kind) && kind.type === 'rae' ? this.#baselines : undefined;
  }

  pack(group: ScoredGroup): PackedGroup {
    const { inOrder, credits } = this.#credited(group);
    const entry = this.#entryOf(group);
    this.#stats.groups += 1;
    const own = { ...ownTemperature(group, this.#own), ...present({ objective: entry?.objective }) };
    const filters = filtersOf(this.#filters, entry);
    return {
      rows: inOrder.flatMap((rollout, i) =>
        this.#rowsOf(rollout, { own, credit: credits[i]!, filters, echo: entry?.echo }),
      ),
      ...creditsInTotal(inOrder, credits),
    };
  }

  /**
   * The result of `pack` for the next group without its rows: its turns may be missing. Baselines advance as in `pack`.
   */
  credit(group: ScoredGroup): GroupAdvantages {
    const { inOrder, credits } = this.#credited(group);
    return creditsInTotal(inOrder, credits);
  }

  #entryOf({ environment }: ScoredGroup): TrainedEnvironment | undefined {
    return this.#own.environments?.find(({ name }) => name === environment);
  }

  #credited(group: ScoredGroup): { readonly inOrder: readonly Sample[]; readonly credits: readonly Credit[] } {
    const samples = groupOfSamples(group);
    const kind = ownAdvantage(group, this.#advantage, this.#own.environments);
    const isCredited = this.#entryOf(group)?.objective === undefined;
    return {
      inOrder: samples.rollouts,
      credits: isCredited ? this.#creditsOf(samples, kind) : samples.rollouts.map(() => 0),
    };
  }

  #creditsOf(samples: ScoredGroup, kind: Advantage): Credit[] {
    if (!isRoleAdvantage(kind)) return creditsOf(samples, kind, this.#shaping);
    const { advantages, baselines } = roleAdvantages(samples, kind, this.#baselines);
    this.#baselines = baselines;
    return advantages;
  }

  #rowsOf(rollout: ScoredRollout, { own, credit, filters, echo }: OfRollout): PackedGroup['rows'] {
    if (rollout.reward === null) return [];
    requireSound(rollout, credit);
    const index = this.#stats.rollouts++;
    const enforced = allFlags(rollout, { advantage: scalarOf(credit), filters }).filter((flag) => isEnforced([flag]));
    const isPruned = enforced.length > 0;
    if (isPruned) this.#setAside.filteredRollouts += 1;
    if (isPruned && (!echo || enforced.some(({ name }) => name !== 'zero_advantage'))) return [];
    const made = rowsOfRollout(rollout, { ...this.#settings, echo });
    this.#setAside.overlongRows += made.overlongRows;
    this.#setAside.maskedRollouts += made.isMasked ? 1 : 0;
    if (echo) this.#setAside.unplacedMessages += unplaced(rollout);
    return made.rows.flatMap((row) => {
      if (isPruned && !row.observed) return [];
      const sample = { ...withCredit(isPruned ? observedAlone(row) : row, credit), ...own };
      this.#count(sample);
      return [{ sample, rollout: index }];
    });
  }

  #count(sample: PackedRow): void {
    const observed = tokensIn(sample.observed ?? []);
    this.#stats.rows += 1;
    this.#stats.totalTokens += sample.tokenIds.length;
    this.#stats.trainedTokens += sum(sample.lossMask) + observed;
    this.#stats.signalTokens += (sample.objective ? sum(sample.lossMask) : countSignal(sample)) + observed;
    this.#stats.observedTokens += observed;
  }
}

/** Settings of a rollout from its environment and group. */
interface OfRollout {
  readonly own: Pick<PackedRow, 'temperature' | 'objective'>;
  readonly credit: Credit;
  readonly filters: RolloutFilters;
  readonly echo: EchoWeights | undefined;
}

/**
 * Observed tokens are trained on even if the policy's own have no advantage and are masked out (prime-rl's
 * `_prune_zero_advantages`).
 */
function observedAlone(row: TokenRow): TokenRow {
  const { behaviorLogprobs: _, samplingLogprobs: __, ...others } = row;
  return { ...others, lossMask: row.lossMask.map(() => 0) };
}

function unplaced({ turns }: Pick<ScoredRollout, 'turns'>): number {
  return turns.reduce((count, { heardAt = [] }) => count + heardAt.filter(({ tokens }) => tokens === null).length, 0);
}

/** Aligned with the group's rollouts; 0 where there is no reward. */
export function advantagesOf(
  group: ScoredGroup,
  kind: AdvantageKind | AdvantageFunction,
  options: CreditOptions = {},
): number[] {
  const samples = groupOfSamples(group);
  const found = creditsInTotal(samples.rollouts, creditsOf(samples, kind, options)).advantages;
  return group.rollouts.map(({ index }) => found.get(index)!);
}

/** A rollout of several agents gets the mean of their advantages other than 0. */
export function creditsInTotal(samples: readonly Sample[], credits: readonly Credit[]): GroupAdvantages {
  const ofAgents = new Map<number, number[]>();
  for (const [i, { index }] of samples.entries()) {
    ofAgents.set(index, [...(ofAgents.get(index) ?? []), scalarOf(credits[i]!)]);
  }
  const advantages = new Map(
    [...ofAgents].map(([index, [first, ...others]]) => [
      index,
      others.length === 0 ? first! : scalarOf([first!, ...others]),
    ]),
  );
  return { advantages, ofAgents };
}

function creditsOf(
  group: ScoredGroup,
  kind: AdvantageKind | AdvantageFunction,
  { turnCredit, ...shaping }: CreditOptions,
): Credit[] {
  const counted = withLengthsCounted(group, shaping);
  if (typeof kind !== 'string') return customAdvantages(counted, kind);
  if (turnCredit)
    return turnAdvantages(counted, kind, turnCredit).map((advantages, i) =>
      ofTokens(group.rollouts[i]!.reward === null ? [] : group.rollouts[i]!.turns, advantages),
    );
  return groupAdvantages(
    counted.rollouts.map(({ reward }) => reward),
    kind,
  );
}

/** The environment's advantage, else the run's. */
export function ownAdvantage<OwnAdvantage extends Advantage>(
  { environment }: Pick<ScoredGroup, 'environment'>,
  fallback: OwnAdvantage,
  environments: readonly TrainedEnvironment[] = [],
): OwnAdvantage | AdvantageKind {
  return environments.find(({ name }) => name === environment)?.advantage ?? fallback;
}

/** The temperature if it differs from that of `[sampling]`, which is the plan's. */
function ownTemperature(
  { temperature, environment }: ScoredGroup,
  { sampling, environments = [] }: Partial<OfEnvironments>,
): Pick<PackedRow, 'temperature'> {
  const entry = environments.find(({ name }) => name === environment);
  const own = temperature ?? entry?.sampling?.temperature ?? sampling?.temperature;
  return own === sampling?.temperature ? {} : present({ temperature: own });
}

function withCredit(
  { tokenIds, lossMask, behaviorLogprobs, samplingLogprobs, sampledAt, observed }: TokenRow,
  credit: Credit,
): PackedRow {
  const advantages = lossMask.map((mask, t) =>
    mask === 0 ? 0 : typeof credit === 'number' ? credit : credit[sampledAt[t]!]!,
  );
  return {
    tokenIds,
    lossMask,
    ...present({ behaviorLogprobs }),
    advantages,
    ...present({ samplingLogprobs, observed }),
  };
}

function countSignal({ lossMask, advantages }: PackedRow): number {
  return lossMask.reduce((count, mask, t) => (mask === 1 && advantages[t] !== 0 ? count + 1 : count), 0);
}

/** Last check before a batch: every number is finite, and every token has its log probability. */
function requireSound(rollout: ScoredRollout, credit: Credit): void {
  const place = `Rollout ${rollout.group}/${rollout.index}`;
  for (const { tokenIds, logprobs, samplingLogprobs } of rollout.turns) {
    const uneven = [logprobs, samplingLogprobs].find((given) => given && given.length !== tokenIds.length);
    if (uneven) throw new Error(`${place} has ${tokenIds.length} sampled tokens but ${uneven.length} logprobs.`);
  }
  const logprobs = rollout.turns.flatMap(({ logprobs: own, samplingLogprobs = [] }) => [own ?? [], samplingLogprobs]);
  for (const [what, values] of [
    ['reward', [rollout.reward]],
    ['advantage', [credit].flat()],
    ...logprobs.map((list) => ['log probability', list] as const),
  ] as const) {
    const strange = values.find((value) => !Number.isFinite(value));
    if (strange === undefined) continue;
    throw new Error(`${place} has the ${what} ${strange}, which must not be trained.`);
  }
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
