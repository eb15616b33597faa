import { layout } from '../core/layout.ts';
import type { CurriculumState } from '../core/rl/curriculum.ts';
import { sortIntoPools, type Pools } from '../core/rl/pools.ts';
import type { ScoredGroup } from '../core/rl/rollout.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { encodeJson } from '../backends/store/objects.ts';
import { readJson, specOf, storeOf } from './run-access.ts';

/** Which examples are easy or hard; empty while all are normal. */
export async function poolsOf(run: RunHandle, { pools }: Pick<CurriculumState, 'pools'>): Promise<Pools> {
  return pools === undefined ? {} : readJson<Pools>(run, pools);
}

/**
 * The curriculum after these groups were scored. Pools that changed are a new object, named by its content: the same groups
 * give the same object, and what an earlier commit names stays as it was.
 */
export async function curriculumAfter(
  run: RunHandle,
  before: CurriculumState,
  groups: readonly ScoredGroup[],
): Promise<CurriculumState> {
  const { environments } = await specOf(run);
  if (environments.every(({ pools }) => pools === null)) return before;
  const bytes = encodeJson(sortIntoPools(await poolsOf(run, before), groups, environments));
  const digest = sha256(bytes);
  if (digest === before.pools?.sha256) return before;
  return { ...before, pools: await storeOf(run).put(layout.pools(digest), bytes) };
}
