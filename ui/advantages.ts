import { isDeepStrictEqual } from 'node:util';
import type { AdvantageSpec, RunSpec } from '../config/run-spec.ts';
import { codeOfAdvantage } from '../core/rl/learning/advantage.ts';
import { type Baselines, isRoleAdvantage } from '../core/rl/rollout/agents.ts';
import { type GroupAdvantages, Packer } from '../core/rl/learning/pack.ts';
import type { ScoredGroup } from '../core/rl/rollout/rollout.ts';
import { readCommit, type RunPlace } from '../runs/run-access.ts';
import { groupsOfBatch, trainedAdvantages } from '../runs/rollouts/trained-advantages.ts';

/** Advantages of one group, computed when its batch was packed. */
export interface ShownAdvantages {
  /** Keyed by the rollout's index. */
  readonly ofRollouts: ReadonlyMap<number, number>;
  /** Per trained agent of a rollout, in the order of its traces. */
  readonly ofAgents: ReadonlyMap<number, readonly number[]>;
  /** Reason for which none are known; else null. */
  readonly missing: string | null;
}

/** The lineage and step in which a group ended, and its fate. */
interface GroupEnd {
  readonly lineage: string;
  readonly step: number;
  readonly end: string;
}

/**
 * Keyed by the group's ordinal, for a batch whose running means are those of its commit; or the reason why they are
 * unknown.
 */
type OfBatch = ReadonlyMap<number, GroupAdvantages> | string;

/**
 * Advantages from a run's settings, or from the user's function. Those of `rae` depend on earlier groups in the batch,
 * which is read once for all of its groups.
 */
export class Advantages {
  readonly #place: RunPlace;
  #batch: { readonly of: string; readonly told: Promise<OfBatch> } | null = null;

  constructor(place: RunPlace) {
    this.#place = place;
  }

  async of(group: ScoredGroup, at: GroupEnd, spec: RunSpec): Promise<ShownAdvantages> {
    const entry = spec.environments.find(({ name }) => name === group.environment);
    if (entry?.objective !== undefined) return none('this environment is learned from a teacher, without advantages');
    const kind = entry?.advantage ?? spec.advantage;
    if (!isKnown(kind)) return this.#ofOwn(group, at);
    if (!isRoleAdvantage(kind) || kind.type !== 'rae') return shown(packerOf(spec).credit(group));
    if (at.end !== 'trained')
      return none('a reward is compared with the running mean of its role, and only a batch moves that');
    const found = await this.#batchOf(at, spec);
    if (typeof found === 'string') return none(found);
    const own = found.get(group.ordinal);
    return own === undefined ? none('the group is not among those that its batch still has') : shown(own);
  }

  /** Read from the batch, because the page runs no code of the user's. */
  async #ofOwn(group: ScoredGroup, at: GroupEnd): Promise<ShownAdvantages> {
    if (at.end !== 'trained')
      return none('a function of your own gives them, and it was not asked for this group, which is in no batch');
    const found = await this.#held(at, () => trainedAdvantages({ ...this.#place, lineage: at.lineage }, at.step));
    if (typeof found === 'string') return none(`a function of your own gave them, and ${found}`);
    const own = found.get(group.ordinal);
    return own === undefined ? none('the group is not among those that its batch still has') : shown(own);
  }

  #batchOf(at: GroupEnd, spec: RunSpec): Promise<OfBatch> {
    return this.#held(at, () => this.#credited(at.lineage, at.step, spec));
  }

  /** Caches the newest batch: siblings are looked at one after another. */
  #held({ lineage, step }: GroupEnd, read: () => Promise<OfBatch>): Promise<OfBatch> {
    const of = `${lineage} ${step}`;
    if (this.#batch?.of !== of) this.#batch = { of, told: read() };
    const { told } = this.#batch;
    told.catch(() => (this.#batch = null));
    return told;
  }

  /** Recomputes the batch from the running means of the commit before, which must lead to the batch's own. */
  async #credited(lineage: string, step: number, spec: RunSpec): Promise<OfBatch> {
    const place = { ...this.#place, lineage };
    const [before, after] = await Promise.all([readCommit(place, step - 1), readCommit(place, step)]);
    if (before === null || after === null) return `the commit before step ${step} is gone`;
    const packer = packerOf(spec, before.commit.state.baselines);
    const told = new Map<number, GroupAdvantages>();
    for (const group of await groupsOfBatch(place, step)) told.set(group.ordinal, packer.credit(group));
    if (!isDeepStrictEqual(packer.baselines, after.commit.state.baselines))
      return `the running means of step ${step} are not those that its groups lead to: another batch came between, or some groups were removed`;
    return told;
  }
}

/** Advantages that Ratchet computes itself, without a user's function. */
type Known = Exclude<AdvantageSpec, { readonly import: unknown }>;

function isKnown(kind: AdvantageSpec): kind is Known {
  return codeOfAdvantage(kind) === null;
}

/** A user's advantage function covers only environments without a built-in one; `centered` stands in for it. */
function packerOf({ advantage, ...spec }: RunSpec, baselines: Baselines = {}): Packer {
  return new Packer({ ...spec, baselines, advantage: isKnown(advantage) ? advantage : 'centered' });
}

function shown({ advantages, ofAgents }: GroupAdvantages): ShownAdvantages {
  return { ofRollouts: advantages, ofAgents, missing: null };
}

function none(missing: string): ShownAdvantages {
  return { ofRollouts: new Map(), ofAgents: new Map(), missing };
}
