/** Limits of the tests' clusters: below those of Temporal's defaults and of Temporal Cloud, and above what a run needs (docs/guide/cluster.md). */
import type { Limits } from './server-config.ts';

export const limits: Limits = {
  // Bytes of a payload, of a memo, and of an execution's history; its events. A run continues as new long before.
  'limit.blobSize.error': 512 * 1024,
  'limit.memoSize.error': 32 * 1024,
  'limit.historySize.error': 4 * 1024 * 1024,
  'limit.historyCount.error': 4_000,
  // Of one execution at a time.
  'limit.numPendingActivities.error': 200,
  'limit.numPendingChildExecutions.error': 50,
  'limit.numPendingSignals.error': 50,
  // Requests per second of a namespace, and those that list or count workflows.
  'frontend.namespaceRPS': 400,
  'frontend.namespaceRPS.visibility': 10,
};
