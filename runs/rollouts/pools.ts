import { layout } from '../layout.ts';
import type { CurriculumState } from '../../core/rl/sampling/curriculum.ts';
import { poolsUnder, sortIntoPools, type Pools } from '../../core/rl/sampling/pools.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { ObjectRef, Prompts, RunHandle } from '../../core/rl/run-state.ts';
import { sha256 } from '../../store/file-store.ts';
import { encodeJson } from '../../store/objects.ts';
import { readJson, specOf, storeOf } from '../run-access.ts';

/** Which examples are easy or hard; empty while all are normal. */
export async function poolsOf(run: RunHandle, { pools }: Pick<CurriculumState, 'pools'>): Promise<Pools> {
  return pools === undefined ? {} : readJson<Pools>(run, pools);
}

/**
 * The curriculum under these prompts: an environment with a changed prompt loses its pools, and its examples are normal
 * again.
 */
export async function curriculumUnder(
  run: RunHandle,
  before: CurriculumState,
  prompts: Prompts,
): Promise<CurriculumState> {
  const digests = Object.fromEntries(Object.entries(prompts).map(([name, { ref }]) => [name, ref.sha256]));
  const { prompts: sortedUnder = {}, pools, ...rest } = before;
  const names = new Set([...Object.keys(digests), ...Object.keys(sortedUnder)]);
  if ([...names].every((name) => digests[name] === sortedUnder[name])) return before;
  const after = { ...rest, ...(Object.keys(digests).length === 0 ? {} : { prompts: digests }) };
  if (pools === undefined) return after;
  return { ...after, pools: await storePools(run, poolsUnder(await poolsOf(run, before), sortedUnder, digests)) };
}

async function storePools(run: RunHandle, pools: Pools): Promise<ObjectRef> {
  const bytes = encodeJson(pools);
  return storeOf(run).put(layout.pools(sha256(bytes)), bytes);
}

/**
 * The curriculum after these groups were scored. Changed pools are stored as a new object named by its content: the
 * same groups give the same object, and objects of earlier commits stay unchanged.
 */
export async function curriculumAfter(
  run: RunHandle,
  before: CurriculumState,
  groups: readonly ScoredGroup[],
): Promise<CurriculumState> {
  const { environments, minGroupSize } = await specOf(run);
  if (environments.every(({ pools }) => pools === null)) return before;
  const ownGroups = groups.filter(({ environment, prompt }) => before.prompts?.[environment] === prompt);
  const bytes = encodeJson(sortIntoPools(await poolsOf(run, before), ownGroups, environments, minGroupSize));
  const digest = sha256(bytes);
  if (digest === before.pools?.sha256) return before;
  return { ...before, pools: await storeOf(run).put(layout.pools(digest), bytes) };
}
