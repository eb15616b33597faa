import { watchVersions } from '../stack/other-versions.ts';
import { createOrchestratorActivities } from '../../activities/of-orchestrator.ts';
import { codeVersion } from '../program/code-version.ts';
import { findTrainers, pollerCounts } from './find-trainers.ts';
import { sharesInPools } from './pool-shares.ts';
import { scheduleSweeps } from '../temporal/sweep-schedule.ts';
import { historyOfChanges } from '../temporal/history-of-changes.ts';
import {
  commandForSearchAttributes,
  lackOfSearchAttributes,
  missingSearchAttributes,
} from '../temporal/search-attributes.ts';
import { inferenceFor, say, type WorkerSettings } from './worker-settings.ts';
import type { TemporalLink } from '../temporal/temporal-link.ts';

/** The activities that are glue between stored objects, and what they ask Temporal. */
export function orchestratorActivities(settings: WorkerSettings, link: TemporalLink) {
  const { projectFolder } = settings;
  const { namespace } = settings.temporal;
  const whatSearchAttributesLack = async (): Promise<string | null> => {
    const missing = await missingSearchAttributes({
      list: async () => (await link.connection.operatorService.listSearchAttributes({ namespace })).customAttributes,
      count: (query) => link.client.workflow.count(query),
    });
    if (missing === null) return null;
    const command = commandForSearchAttributes(settings.temporal, missing);
    return `${lackOfSearchAttributes(settings.temporal, missing)}. Its administrator makes them with: ${command}`;
  };
  return createOrchestratorActivities({
    projectFolder,
    codeVersion,
    inference: inferenceFor(settings),
    findTrainers: () => findTrainers(link.client),
    countRolloutWorkers: pollerCounts(() => link.client),
    shareInPool: sharesInPools(() => link.client, say),
    otherVersions: watchVersions(() => link.client),
    history: historyOfChanges(() => link.client),
    whatSearchAttributesLack,
    beginSweeps: (store) => scheduleSweeps(link.client, store),
    isWorkflowRunning: async (workflowId) => {
      try {
        return (await link.client.workflow.getHandle(workflowId).describe()).status.name === 'RUNNING';
      } catch (error) {
        if (error instanceof Error && error.name === 'WorkflowNotFoundError') return false;
        throw error;
      }
    },
  });
}
