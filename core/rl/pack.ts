import { type AdvantageFunction, type AdvantageKind, customAdvantages, groupAdvantages } from './advantage.ts';
import {
  type Baselines,
  groupOfSamples,
  isRoleAdvantage,
  type RoleAdvantage,
  roleAdvantages,
  type Sample,
} from './agents.ts';
import { type Credit, ofTokens, scalarOf, turnAdvantages, type TurnCredit } from './turn-credit.ts';
import { type PackedRow, tokensIn } from './batch.ts';
import { allFlags, filtersOf, isEnforced } from './filters.ts';
import { type LengthShaping, withLengthsCounted } from './length-penalty.ts';
import type { ScoredGroup, ScoredRollout } from './rollout.ts';
import {
  type EchoWeights,
  rowsOfRollout,
  type TokenRow,
  type TrajectorySettings,
  usualTrajectories,
} from './trajectories.ts';
import { present } from '../present.ts';
import type { RunSpec } from '../../config/run-spec.ts';

/** From scored groups to the rows a trainer gets. */

interface PackStats {
  readonly groups: number;
  /** Rollouts with a reward; those without are not trained. */
  readonly rollouts: number;
  readonly rows: number;
  readonly totalTokens: number;
  /** Tokens that count in the loss. */
  readonly trainedTokens: number;
  /** Of those, tokens that teach something: all but those that have an advantage, which is 0. */
  readonly signalTokens: number;
  /** Of the trained ones, those that an environment said. */
  readonly observedTokens: number;
}

/** What of the rollouts is not in the batch, or not whole, and why. */
export interface SetAside {
  /** Rows longer than `seqLen`. */
  readonly overlongRows: number;
  /** Rollouts without loss because they were cut or too long. */
  readonly maskedRollouts: number;
  /** Rollouts that a filter took the loss of. */
  readonly filteredRollouts: number;
  /** Messages of environments that would be learned, and that the chat template writes in another way. */
  readonly unplacedMessages: number;
}

/** How credit is given: one of ours by name or with its settings, or a function of the user's. */
export type Advantage = AdvantageKind | RoleAdvantage | AdvantageFunction;

interface PackOptions extends Partial<TrajectorySettings>, CreditOptions, Partial<OfEnvironments> {
  readonly advantage: Advantage;
  /** As the batch before left them; none where there was none. */
  readonly baselines?: Baselines;
  readonly rolloutFilters?: RunSpec['rolloutFilters'];
}

/** What advantages are made of beside rewards. */
interface CreditOptions extends LengthShaping {
  /** Absent: a rollout has one advantage, which is that of all its tokens. */
  readonly turnCredit?: TurnCredit | undefined;
}

/** Where the temperature and the advantage of a group stand that has none of its own. */
type OfEnvironments = Pick<RunSpec, 'sampling' | 'environments'>;

/** What the rollouts of one group are credited with. */
export interface GroupAdvantages {
  /** By the index of the rollout; 0 where there is no reward. */
  readonly advantages: ReadonlyMap<number, number>;
  /** Of each trained agent, or of a rollout that has one: by the index of the rollout, in the order of its traces. */
  readonly ofAgents: ReadonlyMap<number, readonly number[]>;
}

/** What one group gives. */
interface PackedGroup extends GroupAdvantages {
  /** With the rollout that each is of, or the agent of an episode, among those of all groups. */
  readonly rows: readonly { readonly sample: PackedRow; readonly rollout: number }[];
}

/**
 * Packs groups one after the other, which come by ordinal, and rollouts by index; trajectories.ts says what the rows of a
 * rollout are. An episode of several trained agents is as many rollouts. Every sampled token has its rollout's advantage, or its
 * turn's. Advantages are of the whole group: a rollout that a filter, or its length, takes the loss of counts in the baseline. Of a
 * group nothing is kept but counts.
 */
export class Packer {
  readonly #advantage: PackOptions['advantage'];
  readonly #filters: RunSpec['rolloutFilters'];
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
    this.#settings = { ...usualTrajectories, ...trajectories };
  }

  get stats(): PackStats {
    return this.#stats;
  }

  get setAside(): SetAside {
    return this.#setAside;
  }

  /** As the groups so far left them; undefined where the advantage keeps none. */
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

  /** What `pack` says of the next group, without its rows: its turns may be missing. Baselines move on as they do there. */
  credit(group: ScoredGroup): GroupAdvantages {
    const { inOrder, credits } = this.#credited(group);
    return creditsInTotal(inOrder, credits);
  }

  #entryOf({ environment }: ScoredGroup): RunSpec['environments'][number] | undefined {
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

/** What of its environment and its group a rollout is packed with. */
interface OfRollout {
  readonly own: Pick<PackedRow, 'temperature' | 'objective'>;
  readonly credit: Credit;
  readonly filters: RunSpec['rolloutFilters'];
  readonly echo: EchoWeights | undefined;
}

/** What the environment said is learned also where the policy's own tokens have no advantage, and are taken out (prime-rl's `_prune_zero_advantages`). */
function observedAlone(row: TokenRow): TokenRow {
  const { behaviorLogprobs: _, samplingLogprobs: __, ...others } = row;
  return { ...others, lossMask: row.lossMask.map(() => 0) };
}

function unplaced({ turns }: Pick<ScoredRollout, 'turns'>): number {
  return turns.reduce((count, { heardAt = [] }) => count + heardAt.filter(({ tokens }) => tokens === null).length, 0);
}

/** Groups that are in memory, whatever the order they arrived in. */
export function packSamples(
  groups: readonly ScoredGroup[],
  options: PackOptions,
): { readonly samples: readonly PackedRow[]; readonly stats: PackStats; readonly setAside: SetAside } {
  const packer = new Packer(options);
  const rows = groups.toSorted((a, b) => a.ordinal - b.ordinal).flatMap((group) => packer.pack(group).rows);
  const { stats, setAside } = packer;
  const isEachOne = rows.length === stats.rollouts && rows.every(({ rollout }, row) => rollout === row);
  const samples = rows.map(({ sample, rollout }) =>
    isEachOne ? sample : { ...sample, rollout: { index: rollout, of: stats.rollouts } },
  );
  return { samples, stats, setAside };
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

/** Of several agents a rollout has the mean of what is not 0. */
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

/** As its environment says, or else as the run does. */
export function ownAdvantage<Usual extends Advantage>(
  { environment }: Pick<ScoredGroup, 'environment'>,
  usual: Usual,
  environments: RunSpec['environments'] = [],
): Usual | AdvantageKind {
  return environments.find(({ name }) => name === environment)?.advantage ?? usual;
}

/** Where it is another than the plan's, which is that of `[sampling]`. */
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
    ...(behaviorLogprobs === undefined ? {} : { behaviorLogprobs }),
    advantages,
    ...(samplingLogprobs === undefined ? {} : { samplingLogprobs }),
    ...(observed === undefined ? {} : { observed }),
  };
}

function countSignal({ lossMask, advantages }: PackedRow): number {
  return lossMask.reduce((count, mask, t) => (mask === 1 && advantages[t] !== 0 ? count + 1 : count), 0);
}

/** Whatever came before, nothing that is not a finite number enters a batch, and no token without its log probability. */
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
