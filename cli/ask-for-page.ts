import type { Client } from '@temporalio/client';
import { RatchetError } from '../core/errors.ts';
import type { AskRun } from '../ui/run-source.ts';
import type { RunEvent } from '../workflows/control/messages.ts';
import { readRunningStack } from '../workers/project-lock.ts';
import { askStatus } from './ask-status.ts';
import { askBranches } from './describe-prompts.ts';
import { connect, findRunning, temporalHere } from './connection.ts';

/** A page asks once a second, and shows what the store says meanwhile. */
const answerWithinMs = 2_000;
/** Where no server was there, one is looked for so much later. */
const lookAgainMs = 5_000;

/** How a page asks runs that are running, over the Temporal server of this folder while one is there. */
export function askForPage(projectFolder: string): { readonly ask: AskRun; readonly close: () => Promise<void> } {
  let open: { readonly client: Client; readonly uiUrl: string | null; readonly close: () => Promise<void> } | null =
    null;
  let lookedAt = -Infinity;
  const letGo = async (): Promise<void> => {
    const closing = open;
    open = null;
    await closing?.close();
  };
  const client = async () => {
    if (open || performance.now() - lookedAt < lookAgainMs) return open;
    lookedAt = performance.now();
    const settings = await temporalHere(projectFolder);
    if (settings) open = { ...(await connect(settings)), uiUrl: await uiUrlHere(projectFolder) };
    return open;
  };
  return {
    ask: async (run) => {
      try {
        const found = await client();
        const handle = found && (await findRunning(found.client, run));
        if (!handle) return null;
        const status = await askStatus(handle, answerWithinMs);
        if (!status) return 'silent';
        const ask = () => handle.query<readonly RunEvent[], [number]>('events', 0);
        const events = await handle.client.withDeadline(Date.now() + answerWithinMs, ask);
        const { uiUrl } = found;
        const temporalUrl = uiUrl && `${uiUrl}/namespaces/default/workflows/${encodeURIComponent(handle.workflowId)}`;
        return { status, events, temporalUrl, branches: await askBranches(found.client, status) };
      } catch (error) {
        if (error instanceof RatchetError && error.code !== 'ServerUnavailable') throw error;
        await letGo(); // the server went away; the store still tells
        return null;
      }
    },
    close: letGo,
  };
}

/** Of our own server; of one elsewhere the address is not known. */
async function uiUrlHere(projectFolder: string): Promise<string | null> {
  if (process.env['TEMPORAL_ADDRESS']) return null;
  return (await readRunningStack(projectFolder))?.uiUrl ?? null;
}
