import type { Client } from '@temporalio/client';
import { defineSearchAttributeKey } from '@temporalio/common';
import type { FoundPool } from '../../core/fleet/pool-types.ts';
import { RatchetError } from '../../core/errors.ts';
import type { ToldByRun } from '../../ui/overview.ts';
import type { AskPools, AskRun, ListRunning } from '../../ui/run-source.ts';
import type { RunEvent } from '../../workflows/control/messages.ts';
import { readRunningStack } from '../../workers/stack/project-lock.ts';
import { askPools } from '../../workers/temporal/ask-pools.ts';
import { askStatus } from '../../workers/temporal/ask-status.ts';
import { askBranches } from '../describe/prompts.ts';
import { connect, findRunning, temporalHere } from '../../workers/temporal/client.ts';
import { listWorkflows } from '../../workers/temporal/list-workflows.ts';

/** The page asks once a second, and shows the store's state meanwhile. */
const answerWithinMs = 2_000;
/** Interval between looks for a server while there is none. */
const lookAgainMs = 5_000;
/** A busy server may miss some queries: a run's last answer stays valid for so long. */
const heardForMs = 60_000;

/** The queries of a page to a Temporal server. Every call may throw when it is busy or gone. */
export interface PageServer {
  /** Null: the run is not running. `silent`: it is, and no orchestrator answers for it. */
  readonly ask: (run: string) => Promise<ToldByRun | 'silent' | null>;
  readonly running: () => Promise<readonly string[]>;
  readonly pools: () => Promise<readonly FoundPool[]>;
  readonly close: () => Promise<void>;
}

interface PageAsker {
  readonly ask: AskRun;
  readonly running: ListRunning;
  readonly pools: AskPools;
  readonly close: () => Promise<void>;
}

/**
 * Queries running runs for a page, over this folder's Temporal server while there is one. A server that should be there
 * and does not answer differs from none: only then is it unknown whether a run is running.
 */
export function askForPage(projectFolder: string, reach: typeof reachServer = reachServer): PageAsker {
  let open: PageServer | null = null;
  let isExpected = false;
  let lookedAt = -Infinity;
  const heard = new Map<string, { readonly at: number; readonly told: ToldByRun }>();
  const letGo = async (): Promise<void> => {
    const closing = open;
    open = null;
    await closing?.close();
  };
  /** null when no server is expected here. */
  const answerOf = async <T>(question: (server: PageServer) => Promise<T>): Promise<T | 'no answer' | null> => {
    try {
      if (open === null && performance.now() - lookedAt >= lookAgainMs) {
        lookedAt = performance.now();
        isExpected = true; // stays expected unless there is none: failures meanwhile say nothing
        open = await reach(projectFolder);
        isExpected = open !== null;
      }
      if (open !== null) return await question(open);
    } catch (error) {
      if (error instanceof RatchetError && error.code !== 'ServerUnavailable') throw error;
      await letGo(); // the server may have gone; the store still has the state
    }
    return isExpected ? 'no answer' : null;
  };
  return {
    ask: async (run) => {
      const told = await answerOf((server) => server.ask(run));
      const before = heard.get(run);
      if (told === 'no answer') return before && performance.now() - before.at < heardForMs ? before.told : told;
      if (told === null) heard.delete(run);
      else if (told !== 'silent') heard.set(run, { at: performance.now(), told });
      return told;
    },
    running: async () => (await answerOf((server) => server.running())) ?? [],
    pools: () => answerOf((server) => server.pools()),
    close: letGo,
  };
}

/** null without a server. Throws when there should be one. */
async function reachServer(projectFolder: string): Promise<PageServer | null> {
  const settings = await temporalHere(projectFolder);
  if (!settings) return null;
  const [{ client, close }, uiUrl] = [await connect(settings), await uiUrlHere(projectFolder)];
  return {
    ask: (run) => askRun(client, uiUrl, run),
    running: () => runningOn(client),
    pools: () => askPools(client),
    close,
  };
}

async function askRun(client: Client, uiUrl: string | null, run: string): Promise<ToldByRun | 'silent' | null> {
  const handle = await findRunning(client, run);
  if (!handle) return null;
  const status = await askStatus(handle, answerWithinMs);
  if (!status) return 'silent';
  const ask = () => handle.query<readonly RunEvent[], [number]>('events', 0);
  const events = await client.withDeadline(Date.now() + answerWithinMs, ask);
  const temporalUrl = uiUrl && `${uiUrl}/namespaces/default/workflows/${encodeURIComponent(handle.workflowId)}`;
  return { status, events, temporalUrl, branches: await askBranches(client, status) };
}

const runKey = defineSearchAttributeKey('RatchetRun', 'KEYWORD');

async function runningOn(client: Client): Promise<readonly string[]> {
  return client.withDeadline(Date.now() + answerWithinMs, async () => {
    const names: string[] = [];
    const query = "WorkflowType='trainRun' AND ExecutionStatus='Running'";
    for await (const { workflowId, typedSearchAttributes } of listWorkflows(client, query))
      names.push(typedSearchAttributes.get(runKey) ?? workflowId);
    return names;
  });
}

/** UI address of the folder's own server; a server elsewhere has none that is known. */
async function uiUrlHere(projectFolder: string): Promise<string | null> {
  if (process.env['TEMPORAL_ADDRESS']) return null;
  return (await readRunningStack(projectFolder))?.uiUrl ?? null;
}
