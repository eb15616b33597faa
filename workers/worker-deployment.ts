import { setTimeout as delay } from 'node:timers/promises';
import type { Client } from '@temporalio/client';
import { optionalTsToMs } from '@temporalio/common/lib/time.js';
import type { WorkerOptions } from '@temporalio/worker';

/** The name under which a cluster knows all versions of Ratchet's orchestrators. */
export const deploymentName = 'ratchet';

/** A server that has just been told of a version knows it a moment later. */
const firstLookMs = 200;
const lookMsMax = 5_000;
/** Looks before it is said that new runs may still begin under another version. */
const looksMax = 30;

/** What of a client is asked: a fake of three lines in tests. */
export type DeploymentService = Pick<
  Client['workflowService'],
  'listWorkerDeployments' | 'describeWorkerDeployment' | 'setWorkerDeploymentCurrentVersion'
>;

interface Asked {
  readonly service: DeploymentService;
  readonly namespace: string;
}

/**
 * Whether the server knows worker deployments, and lets us ask for them: it has them from 1.28 on. Without them a version is not pinned,
 * and an orchestrator of another one meets histories that it cannot replay, which `ratchet status` says.
 */
export async function hasDeployments({ service, namespace }: Asked): Promise<boolean> {
  try {
    await service.listWorkerDeployments({ namespace, pageSize: 1 });
    return true;
  } catch {
    return false; // not implemented, switched off, or not ours to ask: what there was before works everywhere
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
 * Lets new runs begin under this version, unless a later one is there already: of an upgrade under way, whose older orchestrators may be
 * started again meanwhile. Done twice it changes nothing. Resolves to whether new runs begin under this version now.
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
      if (current !== '' && (createdAt(current) ?? 0) > ours) return false;
      const asked = { namespace, deploymentName, buildId: version, ignoreMissingTaskQueues: true };
      const isDone = await service.setWorkerDeploymentCurrentVersion(asked).then(
        () => true,
        () => false, // somebody else was first, or its poll is not known yet: looked at again
      );
      if (isDone) return true;
    }
    if (look >= looksMax || signal?.aborted === true) return false;
    await delay(waitMs, undefined, { ref: false });
  }
}

/**
 * Lets new runs begin under orchestrators without a deployment version, where one had versions before: what was started by hand on a server
 * whose one orchestrator has none. Where it cannot be done the server has no versions.
 */
export async function beUnversioned({ service, namespace }: Asked): Promise<void> {
  const found = await service.describeWorkerDeployment({ namespace, deploymentName }).catch(() => null);
  if ((found?.workerDeploymentInfo?.routingConfig?.currentDeploymentVersion?.buildId ?? '') === '') return;
  await service.setWorkerDeploymentCurrentVersion({
    namespace,
    deploymentName,
    buildId: '',
    ignoreMissingTaskQueues: true,
  });
}

/** For whoever reads the log of an orchestrator. */
export function currentLine(version: string, isCurrent: boolean): string {
  const name = `version ${version.slice(0, 8)} of the workflow code`;
  return isCurrent
    ? `${name}: new runs begin under it; open ones stay with orchestrators of their own version (ratchet upgrade RUN moves one)`
    : `${name}: new runs begin under another version of the worker deployment "${deploymentName}"; temporal worker deployment describe --name ${deploymentName} shows which`;
}
