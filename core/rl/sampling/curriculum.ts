import { permutation, uniform } from '../../random.ts';
import type { GroupLease } from '../rollout/rollout.ts';
import type { ObjectRef } from '../run-state.ts';

/** Part of every commit. */
export interface CurriculumState {
  /** Ordinal of the next group; the first group of a lineage is 1. */
  readonly nextOrdinal: number;
  readonly environments: Readonly<Record<string, { readonly epoch: number; readonly cursor: number }>>;
  /** → `Pools`; absent while every example is normal. */
  readonly pools?: ObjectRef;
  /** Digest of the system prompt under which an environment's examples were sorted; absent: its own. */
  readonly prompts?: Readonly<Record<string, string>>;
}

/** How often examples are drawn while their environment's dataset is walked. */
export interface ExampleChances {
  /** Probability of an example in each epoch, 0 … 1. */
  of(exampleId: number): number;
  /** Whether any example has one above 0. */
  readonly isAnyDrawn: boolean;
}

interface LeasedEnvironment {
  readonly name: string;
  readonly weight: number;
  readonly datasetLength: number;
  /** Absent: every example comes in every epoch. */
  readonly chances?: ExampleChances | undefined;
}

interface LeaseRequest {
  readonly count: number;
  readonly environments: readonly LeasedEnvironment[];
  readonly seed: number;
  /** The policy version the new groups start from. */
  readonly policyStep: number;
}

export const initialCurriculum: CurriculumState = { nextOrdinal: 1, environments: {} };

/**
 * Leases the next groups. Each ordinal draws its environment by weight from a number keyed by (seed, ordinal). Within
 * an environment every example comes once per epoch, in a permutation keyed by (seed, environment, epoch). An example
 * of a rarer pool is skipped or taken by a number keyed by (seed, environment, epoch, example). So the sequence depends
 * on the seed, the environments and the pools alone, not on the number of groups per lease.
 */
export function leaseGroups(
  state: CurriculumState,
  request: LeaseRequest,
): { readonly state: CurriculumState; readonly leases: GroupLease[] } {
  const { count, environments, seed, policyStep } = request;
  const usable = environments.filter(hasExamples);
  if (count > 0 && usable.length === 0) throw new Error('No environment has examples to lease.');

  const places = new Map(Object.entries(state.environments));
  const orders = new Map<string, number[]>();
  const leases: GroupLease[] = [];
  for (let ordinal = state.nextOrdinal; ordinal < state.nextOrdinal + count; ordinal++) {
    const environment = drawByWeight(usable, uniform(seed, 'environment', ordinal));
    leases.push({ ordinal, environment: environment.name, ...nextExample(environment), policyStep });
  }
  return {
    state: { ...state, nextOrdinal: state.nextOrdinal + count, environments: Object.fromEntries(places) },
    leases,
  };

  function nextExample({ name, datasetLength, chances }: LeasedEnvironment): Pick<GroupLease, 'exampleId' | 'epoch'> {
    for (;;) {
      const { epoch, cursor } = places.get(name) ?? { epoch: 0, cursor: 0 };
      const orderKey = `${name}\n${epoch}`;
      const order = orders.get(orderKey) ?? permutation(datasetLength, seed, 'epoch', name, epoch);
      orders.set(orderKey, order);
      places.set(name, cursor + 1 < datasetLength ? { epoch, cursor: cursor + 1 } : { epoch: epoch + 1, cursor: 0 });
      const exampleId = order[cursor]!;
      const chance = chances?.of(exampleId) ?? 1;
      if (chance >= 1 || uniform(seed, 'pool', name, epoch, exampleId) < chance) return { exampleId, epoch };
    }
  }
}

/**
 * The state after the groups up to `last`, of all that were leased between two states. With pools, whose skipped examples
 * leave no trace, it is that after all of them: no example comes twice.
 */
export function stateWithin(
  [before, after]: readonly [CurriculumState, CurriculumState],
  leases: readonly Pick<GroupLease, 'ordinal' | 'environment' | 'epoch'>[],
  last: number,
): CurriculumState {
  const state = { ...before, nextOrdinal: last + 1 };
  if (before.pools) return { ...state, environments: after.environments };
  const places = Object.entries(after.environments).flatMap(([name, end]) => {
    const own = leases.filter(({ environment }) => environment === name).toSorted((a, b) => a.ordinal - b.ordinal);
    const drawn = own.filter(({ ordinal }) => ordinal <= last);
    const next = own[drawn.length];
    if (next === undefined) return [[name, end] as const];
    const begin = before.environments[name] ?? { epoch: 0, cursor: 0 };
    const { epoch } = next;
    const ofEpoch = drawn.filter((lease) => lease.epoch === epoch).length;
    const cursor = ofEpoch + (begin.epoch === epoch ? begin.cursor : 0);
    const isUntouched = drawn.length === 0 && before.environments[name] === undefined;
    return isUntouched ? [] : [[name, { epoch, cursor }] as const];
  });
  return { ...state, environments: Object.fromEntries(places) };
}

/** Whether an environment can give groups: it has examples, and not all of them are in pools that are never drawn. */
export function hasExamples({ datasetLength, chances }: LeasedEnvironment): boolean {
  return datasetLength > 0 && chances?.isAnyDrawn !== false;
}

/** The choice that a number in [0, 1) falls on, each as wide as its share of the weights. */
export function drawByWeight<T extends { readonly weight: number }>(choices: readonly T[], at: number): T {
  let rest = at * choices.reduce((sum, { weight }) => sum + weight, 0);
  for (const choice of choices) {
    rest -= choice.weight;
    if (rest < 0) return choice;
  }
  return choices.at(-1)!;
}
