/** Runs on a Temporal cluster of several processes with PostgreSQL, behind mTLS and with its limits on. */
import { limits } from '../cluster/limits.ts';
import { clusterPrograms } from '../cluster/programs.ts';
import { startTestCluster } from '../cluster/test-cluster.ts';
import { hasOpenssl } from '../workers/fixtures/tls.ts';
import type { Surroundings } from './stage-kinds.ts';
import { StageUnavailable } from './stage-unavailable.ts';

export async function startCluster(): Promise<Surroundings> {
  if (!hasOpenssl()) throw new StageUnavailable('there is no openssl to make certificates with');
  const programs = await clusterPrograms(() => undefined);
  if (typeof programs === 'string') throw new StageUnavailable(programs);
  const cluster = await startTestCluster({ programs, hasTls: true, limits });
  return { cluster, environment: cluster.environment, close: () => cluster.stop() };
}
