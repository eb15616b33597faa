import type { Client } from '@temporalio/client';
import { defineSearchAttributeKey } from '@temporalio/common';
import { RatchetError } from '../core/errors.ts';
import type { ToldByRun } from '../ui/overview.ts';
import type { AskRun, ListRunning } from '../ui/run-source.ts';
import type { RunEvent } from '../workflows/control/messages.ts';
import { readRunningStack } from '../workers/project-lock.ts';
import { askStatus } from './ask-status.ts';
import { askBranches } from './describe-prompts.ts';
import { connect, findRunning, temporalHere } from './connection.ts';

/** A page asks once a second, and shows what the store says meanwhile. */
const answerWithinMs = 2_000;
/** Where no server was there, one is looked for so much later. */
const lookAgainMs = 5_000;
/** A server that is busy may miss some questions: for so long what a run said before stands. */
const heardForMs = 60_000;

/** A Temporal server, asked for what a page shows. Every call may throw where it is busy or gone. */
export interface PageServer {
  /** Null: the run is not running. `silent`: it is, and no orchestrator answers for it. */
  readonly ask: (run: string) => Promise<ToldByRun | 'silent' | null>;
  readonly running: () => Promise<readonly string[]>;
  readonly close: () => Promise<void>;
}

export interface PageAsker {
  readonly ask: AskRun;
  readonly running: ListRunning;
  readonly close: () => Promise<void>;
}

/**
 * How a page asks runs that are running, over the Temporal server of this folder while one is there. A server that should be there and does not
 * answer is told apart from none: only then nobody knows whether a run is running.
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
  /** Null where no server is expected here. */
  const answerOf = async <T>(question: (server: PageServer) => Promise<T>): Promise<T | 'no answer' | null> => {
    try {
      if (open === null && performance.now() - lookedAt >= lookAgainMs) {
        lookedAt = performance.now();
        isExpected = true; // unless it turns out that there is none: what fails meanwhile is no answer
        open = await reach(projectFolder);
        isExpected = open !== null;
      }
      if (open !== null) return await question(open);
    } catch (error) {
      if (error instanceof RatchetError && error.code !== 'ServerUnavailable') throw error;
      await letGo(); // it may have gone away; the store still tells
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
    close: letGo,
  };
}

/** Null where there is none. Throws where there should be one. */
async function reachServer(projectFolder: string): Promise<PageServer | null> {
  const settings = await temporalHere(projectFolder);
  if (!settings) return null;
  const [{ client, close }, uiUrl] = [await connect(settings), await uiUrlHere(projectFolder)];
  return { ask: (run) => askRun(client, uiUrl, run), running: () => runningOn(client), close };
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
    for await (const { workflowId, typedSearchAttributes } of client.workflow.list({ query }))
      names.push(typedSearchAttributes.get(runKey) ?? workflowId);
    return names;
  });
}

/** Of our own server; of one elsewhere the address is not known. */
async function uiUrlHere(projectFolder: string): Promise<string | null> {
  if (process.env['TEMPORAL_ADDRESS']) return null;
  return (await readRunningStack(projectFolder))?.uiUrl ?? null;
}
