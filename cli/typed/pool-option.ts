import { memoKeys } from '../../core/names.ts';
import { readJoinedPool } from '../../workers/roles/joined-pool.ts';

/** `--pool` of an evaluation or a search: what its processes and its workflow need of it. Throws `ConfigInvalid`. */
export function poolOf({ pool: typed }: { readonly pool?: string }): {
  readonly needs: { readonly pool?: string };
  readonly start: { readonly memo?: Record<string, string> };
} {
  const pool = readJoinedPool(typed)?.pool;
  if (pool === undefined) return { needs: {}, start: {} };
  return { needs: { pool }, start: { memo: { [memoKeys.pool]: pool } } };
}
