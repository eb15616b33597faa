import { present } from '../../core/present.ts';
import { isUnreadable } from '../../store/objects.ts';
import { layout } from '../layout.ts';
import { firstLineage } from '../../core/names.ts';
import type { ObjectRef, PolicyVersion, StepPlan } from '../../core/rl/run-state.ts';
import { decodeStored } from '../forms/stored-forms.ts';
import { type ReadAnew, verifyVersion } from '../../store/version-files.ts';
import { partsOfPlan } from '../rollouts/batches.ts';
import { readManifest, sealedFor } from '../versions/checkpoints.ts';
import { optimizerObjects } from '../versions/optimizer-state.ts';
import {
  committedSteps,
  type FoundCommit,
  type LineagePlace,
  readCommit,
  storeOf,
  stretchesOf,
} from '../run-access.ts';

/** A committed step that a lineage can continue from. */
export interface ReachableStep {
  readonly step: number;
  /** The checkpoint it is restored from; stored batches lead on from there. */
  readonly checkpoint: number;
  /**
   * Whether its weights are complete in the store, for the policy servers. If not, they are made again from the
   * batches.
   */
  readonly hasWeights: boolean;
}

/** How much is read to verify an object: by default every byte of files that changed since they were read. */
export interface ReadDepth {
  /** Reads unchanged files as well; see `verifyVersion`. */
  readonly anew?: ReadAnew;
  /** Larger files are only checked for existence: each weight file, and all optimizers and batches together. */
  readonly bytesMax?: number;
}

/**
 * Steps that a lineage can be rewound to: those with a sound checkpoint, and those that sound stored batches lead to
 * from one.
 */
export class RestorableSteps {
  readonly #run: LineagePlace;
  readonly #reading: ReadDepth;
  readonly #keys: ReadonlySet<string>;
  /** The lineages that sealed a checkpoint, by its step. */
  readonly #sealed: ReadonlyMap<number, readonly string[]>;
  readonly #from: number;
  readonly #head: number;
  #bytesLeft: number;
  readonly #commits = new Map<number, Promise<FoundCommit | null>>();
  readonly #found = new Map<number, Promise<ReachableStep | null>>();
  readonly #compared = new Map<string, Promise<boolean>>();
  readonly #faults = new Set<string>();

  private constructor(
    run: LineagePlace,
    reading: ReadDepth,
    there: {
      readonly keys: ReadonlySet<string>;
      readonly sealed: ReadonlyMap<number, readonly string[]>;
      readonly from: number;
      readonly head: number;
    },
  ) {
    this.#run = run;
    this.#reading = reading;
    this.#keys = there.keys;
    this.#sealed = there.sealed;
    this.#from = there.from;
    this.#head = there.head;
    this.#bytesLeft = reading.bytesMax ?? Number.POSITIVE_INFINITY;
  }

  static async of(run: LineagePlace, reading: ReadDepth = {}): Promise<RestorableSteps> {
    const sealed = new Map<number, string[]>();
    for (const { step, lineage } of await sealedFor(run)) sealed.set(step, [lineage, ...(sealed.get(step) ?? [])]);
    return new RestorableSteps(run, reading, {
      keys: await storedKeys(run),
      sealed,
      from: (await firstSteps(run)).at(-1)!,
      head: (await committedSteps(run)).at(-1) ?? -1,
    });
  }

  /** Damage found so far among the objects that the requested steps depend on. */
  get faults(): readonly string[] {
    return [...this.#faults];
  }

  /** All reachable steps, ascending. */
  async all(): Promise<ReachableStep[]> {
    const steps = Array.from({ length: Math.max(0, this.#head - this.#from + 1) }, (_, i) => this.#from + i);
    await Promise.all(steps.map((step) => this.#commit(step)));
    const found: ReachableStep[] = [];
    for (const step of steps) {
      const reached = await this.at(step);
      if (reached) found.push(reached);
    }
    return found;
  }

  /** Reads no more than it takes to restore this step. */
  at(step: number): Promise<ReachableStep | null> {
    return remembered(this.#found, step, () => this.#find(step));
  }

  /** Whether the store has every batch after `from`, up to `to`. */
  async leadOn(from: number, to: number): Promise<boolean> {
    for (let step = from + 1; step <= to; step++) {
      const plan = (await this.#commit(step))?.commit.plan;
      if (!plan || !this.#keys.has(plan.key) || !(await this.#leadsOn(plan))) return false;
    }
    return true;
  }

  async #find(step: number): Promise<ReachableStep | null> {
    const found = step < this.#from ? null : await this.#commit(step);
    if (!found) return null;
    const { policy, plan, state } = found.commit;
    const isOwnReference = state.reference.step === step;
    if (!isOwnReference && !(await this.#isWhole(state.reference))) return null;
    for (const lineage of this.#sealed.get(step) ?? []) {
      if (await this.#isCheckpointWhole(lineage, step))
        return { step, checkpoint: step, hasWeights: await this.#isWhole(policy) };
    }
    const before = plan && this.#keys.has(plan.key) ? await this.at(step - 1) : null;
    if (!plan || !before || !(await this.#leadsOn(plan))) return null;
    return { step, checkpoint: before.checkpoint, hasWeights: await this.#isWhole(policy) };
  }

  #commit(step: number): Promise<FoundCommit | null> {
    return remembered(this.#commits, step, () => readCommit(this.#run, step));
  }

  #isCheckpointWhole(lineage: string, step: number): Promise<boolean> {
    return this.#passes(async () => {
      const { policy, optimizer } = await readManifest({ ...this.#run, lineage }, step);
      if (!(await this.#isWhole(policy))) return false;
      if (!optimizer) return true;
      if (!this.#keys.has(optimizer.key)) return false;
      const store = storeOf(this.#run);
      for (const object of await optimizerObjects(store, optimizer)) {
        if (!this.#keys.has(object.key)) return false;
        if (this.#mayRead(object)) await store.verify(object);
      }
      return true;
    });
  }

  async #isWhole(version: PolicyVersion): Promise<boolean> {
    if (!this.#keys.has(version.file.key)) return false;
    return remembered(this.#compared, `${version.weights} ${version.sums.sha256}`, () =>
      this.#passes(async () => {
        const { anew, bytesMax: weightsBytesMax } = this.#reading;
        const options = present({ anew, weightsBytesMax });
        await verifyVersion(storeOf(this.#run), version, options);
        return true;
      }),
    );
  }

  /** Whether the step that is planned there can be trained again. */
  #leadsOn(ref: ObjectRef): Promise<boolean> {
    return this.#passes(async () => {
      const store = storeOf(this.#run);
      const plan = decodeStored<StepPlan>(await store.get(ref), ref.key);
      const isThere = async (object: ObjectRef): Promise<boolean> => {
        if (this.#keys.has(object.key) && this.#mayRead(object)) await store.verify(object);
        return this.#keys.has(object.key);
      };
      for (const object of [plan.packed, ...(plan.taught ? [plan.taught.logprobs] : [])])
        if (!(await isThere(object))) return false;
      for (const part of await partsOfPlan(this.#run, plan)) if (!(await isThere(part))) return false;
      return this.#isWhole(plan.reference);
    });
  }

  #mayRead({ bytes }: ObjectRef): boolean {
    if (bytes > this.#bytesLeft) return false;
    this.#bytesLeft -= bytes;
    return true;
  }

  async #passes(look: () => Promise<boolean>): Promise<boolean> {
    try {
      return await look();
    } catch (error) {
      if (!isUnreadable(error)) throw error;
      this.#faults.add(error.message);
      return false;
    }
  }
}

function remembered<Key, Value>(known: Map<Key, Promise<Value>>, key: Key, find: () => Promise<Value>): Promise<Value> {
  const there = known.get(key) ?? find();
  known.set(key, there);
  return there;
}

/** The first step of each stretch, newest first; a fork's first is later than 0. */
async function firstSteps(run: LineagePlace): Promise<number[]> {
  const stretches = await stretchesOf(run);
  const [root] = await committedSteps({ ...run, lineage: firstLineage });
  return stretches.map(({ lineage, from }) => (lineage === firstLineage ? (root ?? 0) : from));
}

/** Keys of stored weights, checkpoints and batches, in all lineages that a lineage continues. */
export async function storedKeys(run: LineagePlace): Promise<Set<string>> {
  const keys: string[] = [];
  for (const { lineage } of await stretchesOf(run)) {
    const prefixes = [layout.allWeights(lineage), layout.allCheckpoints(lineage), layout.allBatches(lineage)];
    for (const prefix of prefixes) keys.push(...(await storeOf(run).list(prefix)));
  }
  return new Set(keys);
}
