import { permutation, uniform } from '../random.ts';
import type { GroupLease } from './rollout.ts';

/** Which example comes next. */

/** Plain data, part of every commit. */
export interface CurriculumState {
  /** Ordinal of the next group; the first group of a lineage is 1. */
  readonly nextOrdinal: number;
  readonly environments: Readonly<Record<string, { readonly epoch: number; readonly cursor: number }>>;
}

export interface LeaseRequest {
  readonly count: number;
  readonly environments: readonly { readonly name: string; readonly weight: number; readonly datasetLength: number }[];
  readonly seed: number;
  /** The policy version the new groups start from. */
  readonly policyStep: number;
}

export const initialCurriculum: CurriculumState = { nextOrdinal: 1, environments: {} };

/**
 * Opens the next groups. Each ordinal draws its environment by weight from a number keyed by (seed, ordinal); within an
 * environment every example comes once per epoch, in a permutation keyed by (seed, environment, epoch). So the sequence
 * depends on the seed and the environments alone, not on how many groups were asked for at a time.
 */
export function leaseGroups(
  state: CurriculumState,
  request: LeaseRequest,
): { readonly state: CurriculumState; readonly leases: GroupLease[] } {
  const { count, environments, seed, policyStep } = request;
  const usable = environments.filter(({ datasetLength }) => datasetLength > 0);
  if (count > 0 && usable.length === 0) throw new Error('No environment has examples to lease.');

  const places = new Map(Object.entries(state.environments));
  const orders = new Map<string, number[]>();
  const leases: GroupLease[] = [];
  for (let ordinal = state.nextOrdinal; ordinal < state.nextOrdinal + count; ordinal++) {
    const { name, datasetLength } = drawByWeight(usable, uniform(seed, 'environment', ordinal));
    const { epoch, cursor } = places.get(name) ?? { epoch: 0, cursor: 0 };
    const orderKey = `${name}\n${epoch}`;
    const order = orders.get(orderKey) ?? permutation(datasetLength, seed, 'epoch', name, epoch);
    orders.set(orderKey, order);
    leases.push({ ordinal, environment: name, exampleId: order[cursor]!, epoch, policyStep });
    places.set(name, cursor + 1 < datasetLength ? { epoch, cursor: cursor + 1 } : { epoch: epoch + 1, cursor: 0 });
  }
  return { state: { nextOrdinal: state.nextOrdinal + count, environments: Object.fromEntries(places) }, leases };
}

function drawByWeight<T extends { readonly weight: number }>(choices: readonly T[], at: number): T {
  let rest = at * choices.reduce((sum, { weight }) => sum + weight, 0);
  for (const choice of choices) {
    rest -= choice.weight;
    if (rest < 0) return choice;
  }
  return choices.at(-1)!;
}
