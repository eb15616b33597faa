import type { Client } from '@temporalio/client';
import { setTimeout as delay } from 'node:timers/promises';
import type { Sample } from '../../backends/metrics/exposition.ts';
import { taskQueues, workerRoles, type WorkerRole } from '../../core/names.ts';
import { freshPollers } from '../roles/find-trainers.ts';
import { workerIn } from '../roles/worker-identity.ts';
import { innermostMessage } from '../temporal/innermost-message.ts';
import { allPendingActivities, rolloutActivities } from '../temporal/pending-activities.ts';

/** Interval between looks; autoscalers ask every 15 to 30 seconds. */
const lookMs = 15_000;
/** Most open workflows that are asked for their work at one look. */
const workflowsMax = 500;

/** Activities by the role that an autoscaler adds workers to. A GPU worker has one for each run that holds it or waits for one. */
const activitiesOf = {
  rollout: rolloutActivities,
  train: new Set(['leaseTrainer']),
} as const satisfies Partial<Record<WorkerRole, ReadonlySet<string>>>;
type ScaledRole = keyof typeof activitiesOf;
const scaledRoles = Object.keys(activitiesOf) as ScaledRole[];

/** What workers of one role have to do. */
interface Tasks {
  waiting: number;
  running: number;
}

/**
 * Counts the workers of a namespace, and the work that they have and that waits for them. A worker is counted that
 * polled within the last minute or holds work: one without room does not poll.
 */
export class FleetWatch {
  readonly #client: () => Client;
  readonly #log: (line: string) => void;
  #samples: readonly Sample[] = [];

  constructor({ client, log }: { readonly client: () => Client; readonly log: (line: string) => void }) {
    this.#client = client;
    this.#log = log;
  }

  /** Empty until the first look, and after a failed one: a figure of some time ago would scale what is there now. */
  samples(): readonly Sample[] {
    return this.#samples;
  }

  /** Looks again and again until the signal. */
  async run(signal: AbortSignal): Promise<void> {
    let complaint = '';
    while (!signal.aborted) {
      try {
        this.#samples = samplesOf(await lookAt(this.#client()));
        complaint = '';
      } catch (error) {
        this.#samples = [];
        const reason = innermostMessage(error);
        if (reason !== complaint) this.#log(`workers and their work could not be counted: ${reason}`);
        complaint = reason;
      }
      await delay(lookMs, undefined, { signal }).catch(() => undefined); // shutting down
    }
  }
}

interface Fleet {
  readonly workers: Readonly<Record<WorkerRole, number>>;
  readonly tasks: Readonly<Record<ScaledRole, Tasks>>;
}

function samplesOf({ workers, tasks }: Fleet): Sample[] {
  return [
    ...workerRoles.map((role) => ({ name: 'ratchet_workers', labels: { role }, value: workers[role] })),
    ...scaledRoles.flatMap((role) =>
      (['waiting', 'running'] as const).map((state) => ({
        name: 'ratchet_tasks',
        labels: { role, state },
        value: tasks[role][state],
      })),
    ),
  ];
}

/** Workers and work as Temporal knows them now. */
async function lookAt(client: Client): Promise<Fleet> {
  const found = new Map<WorkerRole, Set<string>>(workerRoles.map((role) => [role, new Set<string>()]));
  const add = (identity: string): void => {
    const role = workerIn(identity)?.role;
    if (role !== undefined) found.get(role)?.add(identity);
  };
  for (const role of workerRoles)
    for (const { identity } of await freshPollers(client, taskQueues[role])) add(identity);
  const tasks: Record<ScaledRole, Tasks> = {
    rollout: { waiting: 0, running: 0 },
    train: { waiting: 0, running: 0 },
  };
  for (const { name, isRunning, worker } of await allPendingActivities(client, workflowsMax)) {
    const role = scaledRoles.find((one) => (activitiesOf[one] as ReadonlySet<string>).has(name));
    if (isRunning && worker) add(worker);
    if (role !== undefined) tasks[role][isRunning ? 'running' : 'waiting'] += 1;
  }
  const workers = Object.fromEntries(workerRoles.map((role) => [role, found.get(role)!.size])) as Fleet['workers'];
  return { workers, tasks };
}
