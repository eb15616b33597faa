import { type CurriculumState, initialCurriculum, leaseGroups } from '../core/rl/sampling/curriculum.ts';
import { groupsAwaited, staleBudgetAfter } from '../core/rl/sampling/late-groups.ts';
import { decodeRanges, encodeRanges } from '../core/rl/ledger.ts';
import type { KeptGroups } from '../core/rl/run-state.ts';
import { countGroups, selectGroups, type Selection, youngestOf } from '../core/rl/learning/selection.ts';
import { isStale, staleness } from '../core/rl/sampling/staleness.ts';
import {
  batchesRemembered,
  issuedPerBatch,
  type JudgedGroups,
  judgedLately,
  levelOf,
  partsRemembered,
  type SampledBatch,
} from '../core/rl/sampling/window.ts';
import { chunkGroupsOf, type SamplingMeasured, windowRoom } from '../core/rl/sampling/window-room.ts';
import { uniform } from '../core/random.ts';

/** A run in virtual time: rollouts that take long, and a trainer beside them. */
export interface SimulatedRun {
  readonly seed: number;
  readonly steps: number;
  readonly groupsPerBatch: number;
  readonly rolloutsPerExample: number;
  /** Seconds of a step of the trainer. */
  readonly trainS: number;
  readonly level: number;
  readonly maxOffPolicySteps: number;
  /** Share of the groups that the filter keeps. */
  readonly keptShare: number;
  /** Rollouts are log-normal with this σ and median, and longer by e^(hardness · (difficulty − ½)), difficulties being 0 … 1. */
  readonly medianS: number;
  readonly sigma: number;
  readonly hardness: number;
  /** A second environment, drawn as often, takes so many times as long; 1: there is none. */
  readonly slower: number;
}

/** `none`: the first whole batch is trained, and the window knows neither a tail nor a filter, as before there were rules. */
type Rules = 'none' | 'unbiased';

export interface SimulatedGroup {
  readonly ordinal: number;
  readonly environment: string;
  /** 0 … 1. */
  readonly difficulty: number;
  /** Its longest rollout. */
  readonly seconds: number;
  /** Step whose batch it was leased for, the version that it was begun with, and when it ends. */
  readonly step: number;
  readonly policyStep: number;
  readonly endsAt: number;
  fate: 'in play' | 'kept' | 'dropped' | 'stale' | { readonly trainedIn: number };
}

export interface Simulated {
  readonly groups: readonly SimulatedGroup[];
  /** In the order of their training. */
  readonly trained: readonly SimulatedGroup[];
  readonly seconds: number;
}

const examples = 4096;

/** Groups as they are issued, the same whatever the rule. */
class Issue {
  readonly groups: SimulatedGroup[] = [];
  readonly #run: SimulatedRun;
  #curriculum: CurriculumState = initialCurriculum;

  constructor(run: SimulatedRun) {
    this.#run = run;
  }

  next(count: number, at: { readonly step: number; readonly policyStep: number; readonly now: number }): void {
    const { seed, slower } = this.#run;
    const environments = (slower === 1 ? ['quick'] : ['quick', 'slow']).map((name) => {
      return { name, weight: 1, datasetLength: examples };
    });
    const asked = { count, environments, seed, policyStep: at.policyStep };
    const { state, leases } = leaseGroups(this.#curriculum, asked);
    this.#curriculum = state;
    for (const { ordinal, environment, exampleId, policyStep } of leases) {
      const difficulty = (exampleId + 0.5) / examples;
      const seconds = secondsOfGroup(this.#run, { ordinal, difficulty, environment });
      const endsAt = at.now + seconds;
      const { step } = at;
      this.groups.push({ ordinal, environment, difficulty, seconds, step, policyStep, endsAt, fate: 'in play' });
    }
  }

  of(ordinal: number): SimulatedGroup {
    return this.groups[ordinal - 1]!;
  }

  /** Decides the fate of a group that has ended. */
  judge(group: SimulatedGroup): 'kept' | 'dropped' {
    group.fate = uniform(this.#run.seed, 'kept', group.ordinal) < this.#run.keptShare ? 'kept' : 'dropped';
    return group.fate;
  }
}

function secondsOfGroup(
  { seed, rolloutsPerExample, medianS, sigma, hardness, slower }: SimulatedRun,
  { ordinal, difficulty, environment }: Pick<SimulatedGroup, 'ordinal' | 'difficulty' | 'environment'>,
): number {
  let longest = -Infinity;
  for (let index = 0; index < rolloutsPerExample; index++) {
    const [length, angle] = [uniform(seed, 'length', ordinal, index), uniform(seed, 'angle', ordinal, index)];
    longest = Math.max(longest, Math.sqrt(-2 * Math.log(1 - length)) * Math.cos(2 * Math.PI * angle));
  }
  const times = environment === 'slow' ? slower : 1;
  return medianS * times * Math.exp(sigma * longest + hardness * (difficulty - 0.5));
}

/** Durations of so many groups of such a run, however they are sampled. */
export function groupSeconds(run: SimulatedRun, count: number): number[] {
  const issue = new Issue(run);
  issue.next(count, { step: 1, policyStep: 0, now: 0 });
  return issue.groups.map(({ seconds }) => seconds);
}

/** Ratchet's window, lease, selection and bound on age, as `workflows/step` calls them. */
class Simulation {
  readonly #run: SimulatedRun;
  readonly #rules: Rules;
  readonly #issue: Issue;
  readonly #inPlay = new Set<SimulatedGroup>();
  readonly #trained: SimulatedGroup[] = [];
  readonly #level: number;
  #kept: SimulatedGroup[] = [];
  #now = 0;
  /** The newest version. */
  #version = 0;
  #collecting: number | null = 1;
  #ahead: number | null = null;
  #trainsUntil: number | null = null;
  #playS: number[] = [];
  #batches: SampledBatch[] = [];
  #judged: readonly JudgedGroups[] = [];
  #staleBudget = 0;
  #batchAt = 0;
  #batchS: number | null = null;
  #groupSeconds = 0;
  /** Since the batch that was taken last. */
  #since = { ended: 0, stale: 0 };

  constructor(run: SimulatedRun, rules: Rules) {
    this.#run = run;
    this.#rules = rules;
    this.#issue = new Issue(run);
    this.#level = levelOf({ maxAsyncLevel: run.level, maxOffPolicySteps: run.maxOffPolicySteps });
  }

  simulate(): Simulated {
    while (this.#version < this.#run.steps) {
      while (this.#collect() || this.#train());
      this.#wait();
    }
    return { groups: this.#issue.groups, trained: this.#trained, seconds: this.#now };
  }

  /** True when a batch was taken. */
  #collect(): boolean {
    const step = this.#collecting;
    if (step === null) return false;
    const { groupsPerBatch, maxOffPolicySteps } = this.#run;
    const size = { groups: groupsPerBatch, total: null };
    const selection = selectGroups({ step, size, maxOffPolicySteps, kept: this.#keptGroups() });
    const batch = selection.trained.flatMap(({ ordinals }) => decodeRanges(ordinals));
    const isWhole = selection.share === 1;
    if (this.#level === 0) {
      if (this.#inPlay.size > 0) return false;
      if (!isWhole) this.#lease(step, groupsPerBatch - batch.length);
      return isWhole && this.#take(step, batch, selection.stale);
    }
    if (isWhole && !this.#isHeld(step, selection)) return this.#take(step, batch, selection.stale);
    const youngest = isWhole ? youngestOf(selection.trained) : 0;
    this.#fill(step, batch.length + countGroups(selection.surplus), youngest);
    return false;
  }

  #isHeld(step: number, { trained, surplus }: Selection): boolean {
    if (this.#rules === 'none') return false;
    const { maxOffPolicySteps } = this.#run;
    const asked = { step, trained, surplus, inPlay: this.#inPlay, groupsPerBatch: this.#issued(), maxOffPolicySteps };
    return groupsAwaited({ ...asked, staleBudget: this.#staleBudget - this.#since.stale }) > 0;
  }

  #take(step: number, batch: readonly number[], stale: string): true {
    for (const ordinal of decodeRanges(stale)) this.#growsStale(this.#issue.of(ordinal));
    for (const ordinal of batch) {
      const group = this.#issue.of(ordinal);
      group.fate = { trainedIn: step };
      this.#trained.push(group);
    }
    this.#kept = this.#kept.filter(({ fate }) => fate === 'kept');
    const { groupsPerBatch } = this.#run;
    const { ended, stale: grownOld } = this.#since;
    const counts = { ended: ended + batch.length, stale: grownOld, groupsPerBatch };
    this.#staleBudget = staleBudgetAfter(this.#staleBudget, counts);
    this.#since = { ended: 0, stale: 0 };
    const seconds = this.#now - this.#batchAt;
    this.#batchS = seconds;
    if (seconds > 0) {
      const taken = { inPlay: this.#groupSeconds / seconds, seconds };
      this.#batches = [...this.#batches, taken].slice(-batchesRemembered);
    }
    [this.#groupSeconds, this.#batchAt, this.#ahead, this.#collecting] = [0, this.#now, step, null];
    return true;
  }

  #fill(step: number, waiting: number, youngest: number): void {
    const { steps, groupsPerBatch, maxOffPolicySteps } = this.#run;
    const toEnd = steps - step + 1;
    const left = Math.min(toEnd, this.#version + 1 + this.#level - step + 1);
    const collected = { step, groupsPerBatch, left, toEnd, within: maxOffPolicySteps };
    const { window, nextRound } = windowRoom(this.#settings, this.#measured, collected);
    const size = chunkGroupsOf(this.#settings, this.#measured, { groupsPerBatch, window });
    for (;;) {
      const inPlay = [...this.#inPlay].filter((group) => group.step >= step && group.ordinal > youngest).length;
      const [playing, policyStep] = [this.#inPlay.size, this.#version];
      const round = nextRound({ waiting, inPlay, playing, chunks: Math.ceil(playing / size), policyStep });
      if (round === null) return;
      this.#lease(round.step, round.count);
    }
  }

  get #settings() {
    const { maxOffPolicySteps, rolloutsPerExample } = this.#run;
    return {
      maxAsyncLevel: this.#level,
      // Before there were rules, the window held whatever it had room for.
      maxOffPolicySteps: this.#rules === 'none' ? Infinity : maxOffPolicySteps,
      maxConcurrent: null,
      oversamplingFactor: 1,
      batchFill: 'full',
      rolloutsPerExample,
    } as const;
  }

  get #measured(): SamplingMeasured {
    // Without rules a window knows the slowest of the newest groups, and so no tail, and nothing of a filter.
    const slowest = this.#playS.length === 0 ? [] : [Math.max(...this.#playS)];
    const [playS, judged] = this.#rules === 'none' ? [slowest, []] : [this.#playS, this.#judged];
    return { playS, occupancies: [], batches: this.#batches, batchS: this.#batchS, judged, workers: 1 };
  }

  #issued(): number {
    return issuedPerBatch(this.#run.groupsPerBatch, this.#rules === 'none' ? [] : this.#judged, 'full');
  }

  #lease(step: number, count: number): void {
    const known = this.#issue.groups.length;
    this.#issue.next(count, { step, policyStep: this.#version, now: this.#now });
    for (const group of this.#issue.groups.slice(known)) this.#inPlay.add(group);
  }

  /** True when a step was begun. */
  #train(): boolean {
    if (this.#trainsUntil !== null || this.#ahead === null) return false;
    const next = this.#ahead + 1;
    [this.#trainsUntil, this.#ahead] = [this.#now + this.#run.trainS, null];
    this.#collecting = next <= this.#run.steps ? next : null;
    return true;
  }

  /** To the next end of a group or of a step. */
  #wait(): void {
    const ends = [...this.#inPlay].reduce((soonest, { endsAt }) => Math.min(soonest, endsAt), Infinity);
    const next = Math.min(this.#trainsUntil ?? Infinity, ends);
    if (next === Infinity) throw new Error(`nothing happens any more after step ${this.#version}`);
    this.#groupSeconds += this.#inPlay.size * (next - this.#now);
    this.#now = next;
    for (const group of this.#inPlay) if (group.endsAt <= next) this.#end(group);
    if (this.#trainsUntil === null || this.#trainsUntil > next) return;
    [this.#trainsUntil, this.#version] = [null, this.#version + 1];
    for (const group of this.#inPlay) {
      if (!isStale(group.policyStep, this.#version + 1, this.#run.maxOffPolicySteps)) continue;
      this.#inPlay.delete(group);
      this.#growsStale(group);
    }
  }

  #end(group: SimulatedGroup): void {
    this.#inPlay.delete(group);
    this.#playS = [...this.#playS, group.seconds].slice(-partsRemembered);
    const isKept = this.#issue.judge(group) === 'kept';
    if (isKept) this.#kept.push(group);
    else this.#since.ended += 1;
    this.#judged = judgedLately(this.#judged, { groups: 1, kept: isKept ? 1 : 0 }, this.#run.groupsPerBatch);
  }

  #growsStale(group: SimulatedGroup): void {
    group.fate = 'stale';
    this.#since = { ended: this.#since.ended + 1, stale: this.#since.stale + 1 };
  }

  #keptGroups(): KeptGroups[] {
    return this.#kept.map(({ ordinal, policyStep }) => {
      return { ordinals: encodeRanges([ordinal]), policyStep, scored: { key: '', sha256: '', bytes: 0 } };
    });
  }
}

export function simulateRatchet(run: SimulatedRun, rules: Rules): Simulated {
  return new Simulation(run, rules).simulate();
}

/** prime-rl's trainer is so many steps behind at most. */
const primeLag = 1;

/**
 * prime-rl's orchestrator (dispatcher.py, train_sink.py): so many groups in flight, finished ones trained in the order in which they finished, and
 * those dropped that are older than `max_off_policy_steps`, in flight or not.
 */
export function simulatePrimeRl(run: SimulatedRun, inFlightMax: number): Simulated {
  const issue = new Issue(run);
  const inFlight = new Set<SimulatedGroup>();
  const [trained, queue]: [SimulatedGroup[], SimulatedGroup[]] = [[], []];
  let [now, version, shipped] = [0, 0, 0];
  let trainsUntil: number | null = null;
  const dropOld = (groups: Iterable<SimulatedGroup>, step: number, remove: (group: SimulatedGroup) => void): void => {
    for (const group of Array.from(groups)) {
      if (staleness(step, group.policyStep) <= run.maxOffPolicySteps) continue;
      group.fate = 'stale';
      remove(group);
    }
  };
  while (version < run.steps) {
    const known = issue.groups.length;
    issue.next(inFlightMax - inFlight.size, { step: shipped + 1, policyStep: version, now });
    for (const group of issue.groups.slice(known)) inFlight.add(group);
    while (shipped < Math.min(run.steps, version + 1 + primeLag)) {
      dropOld(queue, shipped + 1, (group) => queue.splice(queue.indexOf(group), 1));
      if (queue.length < run.groupsPerBatch) break;
      shipped += 1;
      for (const group of queue.splice(0, run.groupsPerBatch)) {
        group.fate = { trainedIn: shipped };
        trained.push(group);
      }
    }
    if (trainsUntil === null && shipped > version) trainsUntil = now + run.trainS;
    now = [...inFlight].reduce((soonest, { endsAt }) => Math.min(soonest, endsAt), trainsUntil ?? Infinity);
    for (const group of inFlight) {
      if (group.endsAt > now) continue;
      inFlight.delete(group);
      if (issue.judge(group) === 'kept') queue.push(group);
    }
    if (trainsUntil === null || trainsUntil > now) continue;
    [trainsUntil, version] = [null, version + 1];
    dropOld(inFlight, version + 1, (group) => inFlight.delete(group));
  }
  return { groups: issue.groups, trained, seconds: now };
}
