/** Rows in which a part of a Temporal cluster is lost while all of Ratchet's processes live. */
import assert from 'node:assert/strict';
import { setTimeout as delay } from 'node:timers/promises';
import type { ClusterProcess } from '../cluster/test-cluster.ts';
import { limits } from '../cluster/limits.ts';
import { until } from '../eventually.ts';
import type { Row, Rows, Struck } from './row.ts';

/** How long a part is away: its place may be taken by another host of it, or by itself when it is started again. */
const awayMs = 2_000;

const lost = (name: ClusterProcess): Row => ({
  stage: 'cluster',
  action: 'hold',
  strike: (struck) => losePart(struck, name),
  columns: {
    only: ['open', 'generate', 'trained', 'commit', 'continue-as-new'],
    because: 'what is asked of the server there is asked in the other columns, too',
  },
});

export const clusterFaults = {
  'frontend killed (cluster)': lost('frontend'),
  'history killed (cluster)': lost('history'),
  'matching killed (cluster)': lost('matching'),
  'worker killed (cluster)': {
    ...lost('worker'),
    columns: {
      only: ['open', 'trained'],
      because: 'it serves schedules and versions of workers, for which no run waits',
    },
  },
  'PostgreSQL killed (cluster)': lost('PostgreSQL'),
  'rate limit reached (cluster)': {
    stage: 'cluster',
    action: 'hold',
    strike: throttle,
    columns: {
      only: ['generate', 'trained', 'commit'],
      because: 'all requests of a namespace are counted together, whoever makes them',
    },
  },
} satisfies Rows;

async function losePart({ stage, release, harmEnds }: Struck, name: ClusterProcess): Promise<void> {
  const cluster = stage.surroundings.cluster!;
  const before = cluster.pid(name);
  await cluster.kill(name);
  release();
  await delay(awayMs);
  await cluster.restart(name);
  assert.notEqual(cluster.pid(name), before);
  harmEnds();
}

/** Requests per second of the namespace: fewer than its workers make. */
const fewRequests = 2;
const throttledMs = 10_000;

/** The namespace may make few requests for a while, and its workers are refused some. */
async function throttle({ stage, release, harmEnds, noteInFlight }: Struck): Promise<void> {
  const cluster = stage.surroundings.cluster!;
  const refused = (): Promise<number> =>
    cluster.counted('frontend', 'service_errors_resource_exhausted', `namespace="${cluster.namespace}"`);
  const before = await refused();
  // A rate limiter of the server takes another limit within a minute.
  cluster.setLimits({ 'frontend.namespaceRPS': fewRequests });
  await until('requests are refused', async () => (await refused()) > before);
  await noteInFlight();
  release();
  await delay(throttledMs);
  cluster.setLimits({ 'frontend.namespaceRPS': limits['frontend.namespaceRPS']! });
  harmEnds();
}
