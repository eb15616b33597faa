import type { WorkerRole } from '../../core/names.ts';
import { workerTag, workerTagVar } from '../roles/worker-identity.ts';
import { localTemporal, remoteTemporal } from '../temporal/temporal-settings.ts';

interface NoticePlace {
  readonly temporalAddress: string;
  /** Null when the server is not the stack's own. */
  readonly uiUrl: string | null;
  readonly environment: Readonly<NodeJS.ProcessEnv>;
  readonly log: (line: string) => void;
}

/**
 * What tells Temporal of a worker's death: a tag for its identity, and what is called when its process has died. Without
 * an answer its activities wait for their heartbeat timeout, as on a machine that is lost.
 */
export function deathNotice(
  role: WorkerRole,
  { temporalAddress: address, uiUrl, environment, log }: NoticePlace,
): { readonly env: Readonly<Record<string, string>>; readonly onDeath: (pid: number, how: string) => void } {
  const tag = workerTag();
  const tell = async (pid: number, how: string): Promise<void> => {
    const [{ connect }, { tellDeath }] = await Promise.all([
      import('../temporal/client.ts'),
      import('../temporal/tell-death.ts'),
    ]);
    const settings = uiUrl === null ? remoteTemporal(address, environment) : localTemporal(address);
    const { client, close } = await connect(settings);
    try {
      await tellDeath(client, { role, pid, tag, how });
    } finally {
      await close();
    }
  };
  return {
    env: { [workerTagVar]: tag },
    onDeath: (pid, how) =>
      void tell(pid, how).catch((error: unknown) => {
        const reason = error instanceof Error ? error.message : String(error);
        log(`Temporal was not told that a worker died (its work waits for its heartbeat timeout): ${reason}`);
      }),
  };
}
