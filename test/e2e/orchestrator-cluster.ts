/** Orchestrators of several versions on one Temporal server, for tests of upgrades. */
import path from 'node:path';
import type { TestContext } from 'node:test';
import { Client, Connection } from '@temporalio/client';
import { choosePort } from '../../workers/stack/ports.ts';
import { localRoles } from '../../workers/stack/roles.ts';
import { type Role, startStack } from '../../workers/stack/supervisor.ts';
import type { RunStatus } from '../../workflows/control/messages.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { eventually } from '../eventually.ts';
import { type OtherVersion, rolesOf } from '../faults/upgrade.ts';
import { repositoryFolder } from './small-run.ts';

/**
 * A stack with a Temporal server of its own, whose workers work for orchestrators of several versions. `version`: that of
 * its processes, with an orchestrator that takes no run over by itself; null: this one, as on one machine.
 */
export async function startCluster(
  t: TestContext,
  folder: string,
  version: OtherVersion | null,
  {
    hasOrchestrator = true,
    changeRole = (role) => role,
    gpuWorkers = 2,
  }: {
    readonly hasOrchestrator?: boolean;
    readonly changeRole?: (role: Role) => Role;
    /** A trainer for each run that is to train: one that waits for the other's ends only with it. */
    readonly gpuWorkers?: number;
  } = {},
) {
  const count = { train: gpuWorkers };
  const all = localRoles({ weightRoots: [folder], policyPort: await choosePort(0), followsMetrics: false, count });
  const roles = all
    .filter(({ name }) => hasOrchestrator || !name.startsWith('orchestrator'))
    // In a cluster no new worker takes over runs by itself.
    .map((role) => (version === null ? role : { ...role, argsAtOwnServer: [] }))
    .map(changeRole);
  const stack = await startStack({
    projectFolder: folder,
    roles: version === null ? roles : rolesOf(version, roles),
    environment: { ...process.env, RATCHET_CODE_ROOTS: path.join(repositoryFolder, 'test') },
    log: (line) => t.diagnostic(line),
  });
  const connection = await Connection.connect({ address: stack.temporalAddress });
  const client = new Client({ connection });
  const stop = async (): Promise<void> => {
    await connection.close();
    await stack.stop();
  };
  t.after(stop);
  const status = (name: string, isWanted: (status: RunStatus) => boolean): Promise<unknown> =>
    eventually(
      `the wanted status of ${name}`,
      () =>
        client.workflow
          .getHandle(name)
          .query<RunStatus>('status')
          .catch((error: unknown) => error as Error), // not open yet
      (seen) => !(seen instanceof Error) && isWanted(seen),
    );
  return {
    address: stack.temporalAddress,
    client,
    pid: (role: string) => stack.pids()[role],
    stop,
    status,
    start: (name: string) =>
      client.workflow.start<typeof trainRun>('trainRun', {
        workflowId: name,
        taskQueue: 'ratchet',
        args: [{ config: `${name}.toml` }],
        workflowTaskTimeout: '5s',
      }),
    end: (name: string) => client.workflow.getHandle(name).executeUpdate<unknown, [null]>('stop', { args: [null] }),
  };
}
