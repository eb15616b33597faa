import { setTimeout as delay } from 'node:timers/promises';
import type { Client } from '@temporalio/client';
import { optionalTsToMs } from '@temporalio/common/lib/time.js';
import type { WorkerOptions } from '@temporalio/worker';

/** The name under which a cluster knows all versions of Ratchet's orchestrators. */
export const deploymentName = 'ratchet';

/** A server lists a version a moment after it was registered. */
const firstLookMs = 200;
const lookMsMax = 5_000;
/** Looks before a warning that new runs may still begin under another version. */
const looksMax = 30;

/** The part of a client that is used, so that tests can fake it in three lines. */
export type DeploymentService = Pick<
  Client['workflowService'],
  'listWorkerDeployments' | 'describeWorkerDeployment' | 'setWorkerDeploymentCurrentVersion'
>;

interface Asked {
  readonly service: DeploymentService;
  readonly namespace: string;
}

/**
 * Whether the server has worker deployments, which exist from 1.28 on, and permits queries for them. Without them a
 * version is not pinned, and an orchestrator of another version meets histories that it cannot replay, which `ratchet
 * status` reports.
 */
export async function hasDeployments({ service, namespace }: Asked): Promise<boolean> {
  try {
    await service.listWorkerDeployments({ namespace, pageSize: 1 });
    return true;
  } catch {
    return false; // not implemented, switched off, or not permitted: unpinned workers run everywhere
  }
}

/** An open run stays with orchestrators of the version that began it. */
export function pinnedTo(version: string): Pick<WorkerOptions, 'workerDeploymentOptions'> {
  return {
    workerDeploymentOptions: {
      version: { deploymentName, buildId: version },
      useWorkerVersioning: true,
      defaultVersioningBehavior: 'PINNED',
    },
  };
}

/**
 * Lets new runs begin under this version, if it is newer than the choice of the present one: orchestrators of an older
 * version may be restarted after an upgrade, and of a newer one after `ratchet upgrade` went back. Idempotent. Resolves
 * to whether new runs begin under this version now.
 */
export async function beCurrent(
  { service, namespace }: Asked,
  version: string,
  { signal }: { readonly signal?: AbortSignal } = {},
): Promise<boolean> {
  for (let look = 1, waitMs = firstLookMs; ; look++, waitMs = Math.min(waitMs * 2, lookMsMax)) {
    const found = await service.describeWorkerDeployment({ namespace, deploymentName }).catch(() => null);
    const { versionSummaries = [], routingConfig } = found?.workerDeploymentInfo ?? {};
    const current = routingConfig?.currentDeploymentVersion?.buildId ?? '';
    if (current === version) return true;
    const summaryOf = (buildId: string) =>
      versionSummaries?.find(({ deploymentVersion }) => deploymentVersion?.buildId === buildId);
    const createdAt = (buildId: string) => optionalTsToMs(summaryOf(buildId)?.createTime) ?? null;
    const ours = createdAt(version);
    if (ours !== null) {
      const chosenAt = optionalTsToMs(routingConfig?.currentVersionChangedTime) ?? 0;
      if (current !== '' && chosenAt > ours) return false;
      const isDone = await makeCurrent({ service, namespace }, version).then(
        () => true,
        () => false, // another worker was first, or its poll is not known yet: looked at again
      );
      if (isDone) return true;
    }
    if (look >= looksMax || signal?.aborted === true) return false;
    await delay(waitMs, undefined, { ref: false });
  }
}

/** Lets new runs begin under this version, which the server has to know; '': under orchestrators without one. */
export async function makeCurrent({ service, namespace }: Asked, version: string): Promise<void> {
  const asked = { namespace, deploymentName, buildId: version, ignoreMissingTaskQueues: true };
  await service.setWorkerDeploymentCurrentVersion(asked);
}

/** The version under which new runs begin; '' for orchestrators without one, null on a server without versions. */
export async function currentVersion({ service, namespace }: Asked): Promise<string | null> {
  const found = await service.describeWorkerDeployment({ namespace, deploymentName }).catch(() => null);
  if (!found) return null;
  return found.workerDeploymentInfo?.routingConfig?.currentDeploymentVersion?.buildId ?? '';
}

/**
 * Lets new runs begin under orchestrators without a deployment version, on a server that had versions before: the
 * orchestrator was started by hand without one. A failure means that the server has no versions.
 */
export async function beUnversioned(asked: Asked): Promise<void> {
  if (((await currentVersion(asked)) ?? '') !== '') await makeCurrent(asked, '');
}

/** Log line of an orchestrator. */
export function currentLine(version: string, isCurrent: boolean): string {
  const name = `version ${version.slice(0, 8)} of the workflow code`;
  return isCurrent
    ? `${name}: new runs begin under it; open ones stay with orchestrators of their own version (ratchet upgrade moves them)`
    : `${name}: new runs begin under another version of the worker deployment "${deploymentName}"; ratchet upgrade --dry-run shows which, and ratchet upgrade --to ${version.slice(0, 8)} goes to this one`;
}
