import type { PoolSettings } from '../../settings/rollouts.ts';
import type { ExampleChances } from './curriculum.ts';
import { isLost } from '../failures.ts';
import { decodeRanges, encodeRanges } from '../ledger.ts';
import type { ScoredGroup } from '../rollout/rollout.ts';

/**
 * Difficulty pools, per environment: an example is easy, normal or hard by the mean reward of its latest group. The
 * thresholds and their precedence are prime-rl's (v0.4, orchestrator/buffer.py). The sampling weights of pools, by
 * which an example returns to be judged anew, are from its later `difficulty_pool` sampler.
 */

type Pool = 'easy' | 'normal' | 'hard';

/** Ids of the examples that are not normal, as ranges, by environment. An object in the store, named by each commit. */
export type Pools = Readonly<Record<string, { readonly easy: string; readonly hard: string }>>;

type PooledEnvironment = { readonly name: string; readonly pools: PoolSettings | null };

/** mean ≥ easy_threshold is easy, else mean ≤ hard_threshold is hard. */
export function poolOf(mean: number, { easyThreshold, hardThreshold }: PoolSettings): Pool {
  if (easyThreshold !== null && mean >= easyThreshold) return 'easy';
  return hardThreshold !== null && mean <= hardThreshold ? 'hard' : 'normal';
}

/**
 * Assigns every example of the groups to the pool of its mean reward; of two groups of one example the later ordinal
 * decides. A group lost to failures says nothing about its example, which stays where it is.
 */
export function sortIntoPools(
  before: Pools,
  groups: readonly Pick<ScoredGroup, 'ordinal' | 'environment' | 'exampleId' | 'rollouts'>[],
  environments: readonly PooledEnvironment[],
  minGroupSize: number | null = null,
): Pools {
  const after: Record<string, Pools[string]> = { ...before };
  for (const { name, pools } of environments) {
    const judged = groups
      .filter((group) => group.environment === name && !isLost(group, minGroupSize))
      .toSorted((a, b) => a.ordinal - b.ordinal)
      .flatMap(({ exampleId, rollouts }) => {
        const rewards = rollouts.flatMap(({ reward }) => reward ?? []);
        const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
        return Number.isFinite(mean) ? [{ exampleId, mean }] : [];
      });
    if (pools === null || judged.length === 0) continue;
    const members = membersOf(before, name);
    for (const { exampleId, mean } of judged) {
      const pool = poolOf(mean, pools);
      members.easy.delete(exampleId);
      members.hard.delete(exampleId);
      if (pool !== 'normal') members[pool].add(exampleId);
    }
    after[name] = { easy: encodeRanges([...members.easy]), hard: encodeRanges([...members.hard]) };
  }
  return after;
}

/** Drops pools of environments with a changed prompt: their examples must be judged anew. */
export function poolsUnder(
  before: Pools,
  sortedUnder: Readonly<Record<string, string>>,
  prompts: Readonly<Record<string, string>>,
): Pools {
  return Object.fromEntries(Object.entries(before).filter(([name]) => sortedUnder[name] === prompts[name]));
}

/** How often an environment's examples are drawn in an epoch: a normal one once, others with their pool's fraction. */
export function chancesOf(
  pools: Pools,
  { name, pools: spec, datasetLength }: PooledEnvironment & { readonly datasetLength: number },
): ExampleChances | undefined {
  if (spec === null) return undefined;
  const { easy, hard } = membersOf(pools, name);
  const inPool = (id: number): number => (easy.has(id) ? spec.easyFraction : spec.hardFraction);
  const hasNormal = easy.size + hard.size < datasetLength;
  const hasOther = (easy.size > 0 && spec.easyFraction > 0) || (hard.size > 0 && spec.hardFraction > 0);
  return { of: (id) => (easy.has(id) || hard.has(id) ? inPool(id) : 1), isAnyDrawn: hasNormal || hasOther };
}

/** Number of examples in each pool; unused examples are normal. */
export function poolSizes(
  pools: Pools,
  { name, datasetLength }: { readonly name: string; readonly datasetLength: number },
): Record<Pool, number> {
  const { easy, hard } = membersOf(pools, name);
  return { easy: easy.size, normal: datasetLength - easy.size - hard.size, hard: hard.size };
}

/**
 * Metrics `pool/<env>/easy` and so on for environments with pools, and `pool/easy` over all of them, as in prime-rl.
 */
export function poolMetrics(
  pools: Pools,
  environments: readonly (PooledEnvironment & { readonly datasetLength: number })[],
): Record<string, number> {
  const metrics: Record<string, number> = {};
  for (const environment of environments) {
    if (environment.pools === null) continue;
    for (const [pool, size] of Object.entries(poolSizes(pools, environment))) {
      metrics[`pool/${environment.name}/${pool}`] = size;
      metrics[`pool/${pool}`] = (metrics[`pool/${pool}`] ?? 0) + size;
    }
  }
  return metrics;
}

/** `short 12 easy, 480 normal, 3 hard` for each environment that a commit's metrics have pools of. */
export function describePools(metrics: Readonly<Record<string, number | string>>): string[] {
  return Object.entries(metrics).flatMap(([key, easy]) => {
    const name = /^pool\/(.+)\/easy$/.exec(key)?.[1];
    if (name === undefined) return [];
    const size = (pool: Pool) => metrics[`pool/${name}/${pool}`] ?? 0;
    return [`${name} ${easy} easy, ${size('normal')} normal, ${size('hard')} hard`];
  });
}

function membersOf(pools: Pools, name: string): Record<'easy' | 'hard', Set<number>> {
  const { easy = '', hard = '' } = pools[name] ?? {};
  return { easy: new Set(decodeRanges(easy)), hard: new Set(decodeRanges(hard)) };
}
