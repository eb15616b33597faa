import { setTimeout as delay } from 'node:timers/promises';
import { type Client, WorkflowNotFoundError } from '@temporalio/client';
import { innermostMessage } from '../temporal/innermost-message.ts';
import { describeWorkflow, type ListedWorkflow, listWorkflows } from '../temporal/list-workflows.ts';
import { lastTaskFailure, orchestratorPollers } from '../temporal/why-stuck.ts';
import { evaluationTypes } from './take-over-evaluations.ts';
import { takeOverBeside, takeOverRun, versionOf } from './take-over.ts';

/** Interval between looks. What is broken in two of them is begun anew: the next task of one may still succeed. */
const lookMs = 15_000;
/** Workflows that all orchestrators together ask for in a look; those of a large fleet take turns. */
const askedMax = 300;
/** The first task after a failure. A task of a busy workflow fails now and then, and succeeds at once. */
const secondAttempt = 2;
/** One that breaks again waits so long for its next beginning, then twice as long, up to `waitMsMax`. */
const waitMsFirst = 30_000;
const waitMsMax = 3_600_000;

interface Options {
  /** Returns the client of the current connection. */
  readonly client: () => Client;
  /** Version of this process's workflow code: what other code wrote is left to an upgrade. */
  readonly version: string;
  readonly say: (line: string) => void;
  readonly now?: () => number;
}

type Open = Pick<ListedWorkflow, 'type' | 'workflowId' | 'runId' | 'parentExecution'>;

/**
 * Begins workflows anew whose history their own code cannot replay: a run from its newest commit, a pool, an evaluation, a
 * search or a sweep with what is stored of it. On a machine that is too slow, the SDK has a query see events that came
 * after it, and then numbers timers otherwise than a replay does (sdk-core, temporalio/sdk-go#755).
 */
export class BrokenHistories {
  readonly #options: Options;
  readonly #now: () => number;
  /** Executions that were broken at the look before. */
  #suspects: ReadonlySet<string> = new Set();
  /** The last one whose turn it was, by its id. */
  #turn = '';
  /** When each workflow was begun anew last, and how long it waits for the next time. */
  readonly #begun = new Map<string, { readonly at: number; readonly waitMs: number }>();

  constructor(options: Options) {
    this.#options = options;
    this.#now = options.now ?? (() => performance.now());
  }

  /** Looks until the signal. */
  async watch(signal: AbortSignal, everyMs = lookMs): Promise<void> {
    let trouble: string | null = null;
    while (!signal.aborted) {
      try {
        await this.look();
        trouble = null;
      } catch (error) {
        const why = innermostMessage(error);
        if (why !== trouble) this.#options.say(`whether histories are broken could not be found out: ${why}`);
        trouble = why;
      }
      // Orchestrators that look at one moment would each ask for the same, and say the same.
      const pauseMs = everyMs * (1 + Math.random() / 2);
      await delay(pauseMs, undefined, { signal }).catch(() => undefined); // it ends
    }
  }

  async look(): Promise<void> {
    const client = this.#options.client();
    const open = await openWorkflows(client);
    const lookers = Math.max(1, (await orchestratorPollers(client)).length);
    const broken: Open[] = [];
    let trouble: Error | null = null;
    for (const one of this.#inTurn(open, Math.ceil(askedMax / lookers))) {
      try {
        if (await this.#isBroken(client, one)) broken.push(one);
      } catch (error) {
        trouble ??= new Error(`${one.workflowId}: ${innermostMessage(error)}`, { cause: error }); // the others are looked at
      }
    }
    const due = broken.filter(({ runId, workflowId }) => this.#suspects.has(runId) && this.#isDue(workflowId));
    this.#suspects = new Set(broken.map(({ runId }) => runId));
    if (due.length > 0) await this.#beginAnew(client, due, open);
    if (trouble !== null) throw trouble;
  }

  /** Pools, for which many runs wait, what was broken before, and so many of the others. */
  #inTurn(open: readonly Open[], max: number): Open[] {
    const isFirst = ({ type, runId }: Open): boolean => type === 'pool' || this.#suspects.has(runId);
    const others = open.filter((one) => !isFirst(one)).toSorted((a, b) => (a.workflowId < b.workflowId ? -1 : 1));
    const from = others.findIndex(({ workflowId }) => workflowId > this.#turn);
    const turned = from === -1 ? others : [...others.slice(from), ...others.slice(0, from)];
    const chosen = turned.slice(0, max);
    this.#turn = chosen.at(-1)?.workflowId ?? '';
    return [...open.filter(isFirst), ...chosen];
  }

  async #isBroken(client: Client, { workflowId, runId }: Open): Promise<boolean> {
    try {
      const found = await describeWorkflow(client, workflowId, runId);
      const { attempt = 0 } = found.raw.pendingWorkflowTask ?? {};
      if (found.status.name !== 'RUNNING' || Number(attempt) < secondAttempt) return false;
      if (versionOf(found) !== this.#options.version) return false;
      const failed = await lastTaskFailure(client.workflow.getHandle(workflowId), runId);
      return failed?.isNondeterminism === true && (await this.#isOurs(client, failed.identity));
    } catch (error) {
      if (error instanceof WorkflowNotFoundError) return false; // it has ended meanwhile
      throw error;
    }
  }

  /** Whether no orchestrator of other code failed with it. One that is gone tells no more. */
  async #isOurs(client: Client, identity: string): Promise<boolean> {
    const worker = (await orchestratorPollers(client)).find((one) => one.identity === identity);
    return worker === undefined || worker.version === this.#options.version;
  }

  #isDue(workflowId: string): boolean {
    const before = this.#begun.get(workflowId);
    return before === undefined || this.#now() - before.at >= before.waitMs;
  }

  async #beginAnew(client: Client, due: readonly Open[], open: readonly Open[]): Promise<void> {
    const { version, say } = this.#options;
    const executions = new Set(withParents(due, open).map(({ runId }) => runId));
    // All but these are left as if our code had written them: what other code wrote waits for an upgrade, and may be another program's.
    const writtenBy: typeof versionOf = (found) => (executions.has(found.runId) ? 'broken' : version);
    const failed = (workflowId: string, reason: unknown): void =>
      say(`${workflowId}: its history cannot be replayed, and it could not be begun anew: ${innermostMessage(reason)}`);
    for (const { type, workflowId, runId } of open) {
      if (type !== 'trainRun' || !executions.has(runId)) continue;
      try {
        const run = await takeOverRun({ client, version, writtenBy, why: 'broken' }, workflowId);
        if (run !== null) say(`${run}: its history cannot be replayed; it continues from its newest commit`);
      } catch (error) {
        failed(workflowId, error);
      }
    }
    if (due.some(({ type }) => type !== 'trainRun')) {
      await takeOverBeside({
        client,
        version,
        writtenBy,
        said: (what) => say(`${what} anew, as its history cannot be replayed`),
        failed,
        isWanted: ({ runId }) => executions.has(runId),
      });
    }
    for (const { workflowId } of due) this.#noteBegun(workflowId);
  }

  #noteBegun(workflowId: string): void {
    const now = this.#now();
    const before = this.#begun.get(workflowId);
    const isAgain = before !== undefined && now - before.at < before.waitMs + waitMsMax;
    const waitMs = isAgain ? Math.min(waitMsMax, 2 * before.waitMs) : waitMsFirst;
    this.#begun.set(workflowId, { at: now, waitMs });
  }
}

const types = ['trainRun', 'playRounds', 'pool', ...evaluationTypes];

async function openWorkflows(client: Client): Promise<Open[]> {
  const query = `WorkflowType IN (${types.map((type) => `'${type}'`).join(', ')}) AND ExecutionStatus='Running'`;
  const open: Open[] = [];
  for await (const one of listWorkflows(client, query)) open.push(one);
  return open;
}

/**
 * These, and what began them: a parent would take the end of its part for a failure. A run takes the end of what generates
 * its rounds for what it is, and a sweep that of its runs.
 */
function withParents(broken: readonly Open[], open: readonly Open[]): Open[] {
  const chosen = new Set(broken);
  for (const one of chosen) {
    if (one.type === 'playRounds' || one.type === 'trainRun') continue;
    const parent = open.find(({ workflowId }) => workflowId === one.parentExecution?.workflowId);
    if (parent !== undefined) chosen.add(parent); // visited in its turn
  }
  return [...chosen];
}
