import type { Client } from '@temporalio/client';
import { teamDefaults } from '../../core/fleet/pool-types.ts';
import { poolSharesQueryName } from '../../core/names.ts';
import { askOpenPool } from '../../activities/around/tell-pool.ts';

/** Maps each team to the share of each of its runs. */
type Shares = Readonly<Record<string, number>>;

/** Milliseconds for which the answer of a pool counts, and in which it has to come. */
const countedMs = 10_000;
const answerWithinMs = 5_000;

/**
 * The shares of runs in their pools' rollout workers. Nobody waits for a pool: the newest answer counts, and a question
 * brings the next one about. A pool that does not answer leaves the shares as they were.
 */
export function sharesInPools(
  client: () => Client,
  say: (line: string) => void,
): (pool: string, team: string) => number | undefined {
  const known = new Map<string, { shares: Shares | null; askedAt: number; isSilent: boolean }>();
  return (pool, team) => {
    const one = known.get(pool) ?? { shares: null, askedAt: -Infinity, isSilent: false };
    known.set(pool, one);
    if (performance.now() - one.askedAt > countedMs) {
      one.askedAt = performance.now();
      askPool(client(), pool).then(
        (shares) => {
          one.shares = shares ?? one.shares;
          one.isSilent = false;
        },
        (error: unknown) => {
          if (!one.isSilent)
            say(`the pool ${pool} does not say how its teams share its rollout workers: ${String(error)}`);
          one.isSilent = true;
        },
      );
    }
    return one.shares === null ? undefined : (one.shares[team] ?? teamDefaults.weight);
  };
}

function askPool(client: Client, pool: string): Promise<Shares | null> {
  return client.withDeadline(Date.now() + answerWithinMs, () =>
    askOpenPool<Shares, []>(client, pool, poolSharesQueryName),
  );
}
