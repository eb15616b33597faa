import { setTimeout as delay } from 'node:timers/promises';
import { type Client, WorkflowNotFoundError } from '@temporalio/client';
import { defineSearchAttributeKey } from '@temporalio/common';
import { RatchetError } from '../../core/errors.ts';
import { isRolloutsWorkflowOf, trainerWaits } from '../../core/names.ts';
import { askStatus } from '../temporal/ask-status.ts';
import { innermostMessage } from '../temporal/innermost-message.ts';
import {
  askedIn,
  type DescribedWorkflow,
  describeWorkflow,
  listWorkflows,
  memoOf,
} from '../temporal/list-workflows.ts';
import { whyStuck } from '../temporal/why-stuck.ts';
import { endFlows, orPinned, takeOverBeside, takeOverRun, versionOf } from './take-over.ts';

const stepAttribute = defineSearchAttributeKey('RatchetStep', 'INT');

/** Interval between looks at all open runs. */
const lookMs = 1_000;
/** A run whose orchestrator has died does not answer, and holds up no other for longer. */
const answerWithinMs = 3_000;
/** Least interval between lines that say what is waited for. */
const progressMs = 10_000;
/** Attempts to move a run before it is left where it is. */
const triesMax = 3;
/** The list of workflows lags a little behind: it is asked once more before the walk is over. */
const lastLookMs = 2_000;
/** Runs named in a line; the others are counted. */
const namedMax = 8;

export interface WalkOptions {
  readonly client: Client;
  /** Workflow code version that all runs are to be at work under; new runs begin under it already. */
  readonly version: string;
  /** Its orchestrators have no deployment version. */
  readonly isUnversioned: boolean;
  /** One run by its workflow id; null: all runs, and what is beside them. */
  readonly only: string | null;
  /** Moves a run in the midst of a step as well. */
  readonly isNow: boolean;
  readonly say: (line: string) => void;
}

/** An open run, as far as the walk goes. */
export interface WalkedRun {
  readonly workflowId: string;
  /** Last committed step; null before it has begun. */
  readonly step: number | null;
  /** Version that wrote its history; null before its first task. */
  readonly version: string | null;
  /** `here`: at work under the wanted version. */
  readonly is: 'here' | 'begins' | 'due' | 'waits';
  /** What it waits for; '' for the others. */
  readonly what: string;
}

/** Where a run was when the walk saw it first. */
interface FirstSeen {
  readonly runId: string;
  readonly step: number;
}

/**
 * Moves open runs to another version of Ratchet, in either direction, while they are at work. A run moves when it has
 * committed a step, or at once where it makes none: so little training is repeated, that of a second. If another GPU
 * worker takes the run, it makes the steps since the newest checkpoint again, as after every change of workers. All that the walk knows is in
 * Temporal: one that was killed is begun again, and goes on. Resolves to the ids of what could not be moved.
 */
export async function walkFleet(options: WalkOptions): Promise<string[]> {
  const walk = new Walk(options);
  await walk.untilAllAreHere();
  if (options.only !== null) {
    await walk.endFlowsOfOne(options.only);
  } else {
    await walk.moveBeside();
    await delay(lastLookMs);
    await walk.untilAllAreHere();
    await walk.moveBeside(); // what failed is tried once more
  }
  return walk.notMoved;
}

/** How all open runs stand, without moving one. */
export async function lookAtFleet(options: Omit<WalkOptions, 'say'>): Promise<readonly WalkedRun[]> {
  return new Walk({ ...options, say: () => undefined }).look();
}

class Walk {
  readonly #options: WalkOptions;
  readonly #writtenBy: typeof versionOf;
  readonly #seen = new Map<string, FirstSeen>();
  readonly #tries = new Map<string, number>();
  readonly #moved = new Set<string>();
  /** What beside runs could not be moved, or ended, at the last attempt. */
  readonly #failedBeside = new Set<string>();
  #saidAt = -Infinity;
  #said = '';

  constructor(options: WalkOptions) {
    this.#options = options;
    this.#writtenBy = options.isUnversioned ? orPinned : versionOf;
  }

  /** Ids of what could not be moved. */
  get notMoved(): string[] {
    return [...this.#runsLeft, ...this.#failedBeside];
  }

  /** Runs that could not be moved, and stay as they are. */
  get #runsLeft(): string[] {
    return [...this.#tries].flatMap(([id, tries]) => (tries >= triesMax ? id : []));
  }

  async untilAllAreHere(): Promise<void> {
    for (;;) {
      const runs: WalkedRun[] = [];
      const moved = new Set<string>();
      for (const workflowId of await this.#open()) {
        const run = await this.#standing(workflowId);
        if (run === null) continue;
        runs.push(run);
        // One that begins may continue, as new, an execution of another version.
        if ((run.is !== 'due' && run.is !== 'begins') || this.#runsLeft.includes(workflowId)) continue;
        if (await this.#move(workflowId)) moved.add(workflowId); // at once, before its next step trains
      }
      // Rounds of a run that was moved would be sampled twice.
      if (moved.size > 0 && this.#options.only === null) await this.#endFlows([...moved]);
      const left = runs.filter(({ is, workflowId }) => is !== 'here' && !this.#runsLeft.includes(workflowId));
      if (left.length === 0) return;
      this.#tell(
        runs,
        left.filter(({ workflowId }) => !moved.has(workflowId)),
      );
      await delay(lookMs);
    }
  }

  async look(): Promise<WalkedRun[]> {
    const runs: WalkedRun[] = [];
    for (const workflowId of await this.#open()) {
      const run = await this.#standing(workflowId);
      if (run !== null) runs.push(run);
    }
    return runs;
  }

  /** Moves pools, evaluations, searches and sweeps; tries those again that failed before. */
  async moveBeside(): Promise<void> {
    const { client, version, say } = this.#options;
    this.#failedBeside.clear();
    await takeOverBeside({
      client,
      version,
      writtenBy: this.#writtenBy,
      said: (what) => say(`${what} under the wanted version`),
      failed: (workflowId, reason) => this.#besideFailed(workflowId, reason),
      // A run that stays as it is needs them.
      isWanted: ({ workflowId }) => !this.#runsLeft.some((run) => isRolloutsWorkflowOf(run, workflowId)),
    });
  }

  /** Ends what generates rounds for an earlier execution of this run, also if an earlier command moved it. */
  async endFlowsOfOne(workflowId: string): Promise<void> {
    if (this.#runsLeft.includes(workflowId)) return;
    if (this.#moved.has(workflowId)) await delay(lastLookMs);
    await this.#endFlows([workflowId]);
  }

  async #endFlows(runs: readonly string[]): Promise<void> {
    const { client, version } = this.#options;
    await endFlows(client, {
      version,
      writtenBy: this.#writtenBy,
      failed: (workflowId, reason) => this.#besideFailed(workflowId, reason),
      isWanted: ({ workflowId }) => runs.some((run) => isRolloutsWorkflowOf(run, workflowId)),
    });
  }

  #failed(workflowId: string, reason: unknown): void {
    const tries = (this.#tries.get(workflowId) ?? 0) + 1;
    this.#tries.set(workflowId, tries);
    if (tries !== triesMax) return;
    this.#options.say(`${workflowId}: could not be moved, and stays as it is: ${innermostMessage(reason)}`);
  }

  /** A run of another program, or of another key: it is named once. */
  #unreadable(workflowId: string, why: string): void {
    if (this.#runsLeft.includes(workflowId)) return;
    this.#tries.set(workflowId, triesMax);
    this.#options.say(`${workflowId}: could not be read, and stays as it is: ${why}`);
  }

  #besideFailed(workflowId: string, reason: unknown): void {
    this.#failedBeside.add(workflowId);
    this.#options.say(`${workflowId}: could not be moved: ${innermostMessage(reason)}`);
  }

  async #open(): Promise<string[]> {
    const { client, only } = this.#options;
    if (only !== null) return [only];
    const ids = new Set<string>();
    const query = "WorkflowType='trainRun' AND ExecutionStatus='Running'";
    for await (const { workflowId } of listWorkflows(client, query, 100)) ids.add(workflowId);
    return [...ids];
  }

  /** null for a run that is over. */
  async #standing(workflowId: string): Promise<WalkedRun | null> {
    const { client, version, isNow } = this.#options;
    const handle = client.workflow.getHandle(workflowId);
    const found = await unlessGone(describeWorkflow(client, workflowId));
    if (found?.status.name !== 'RUNNING') return null;
    const { runId, typedSearchAttributes } = found;
    const memo = await memoOf(client, found.raw.workflowExecutionInfo, (why) => this.#unreadable(workflowId, why));
    if (memo === null) return null;
    const step = stepOf({ memo, typedSearchAttributes });
    const written = this.#writtenBy(found);
    const run = { workflowId, step, version: written };
    const stuck = found.raw.pendingWorkflowTask ? await whyStuck(handle, workflowId) : null;
    // Under the wanted version, and only without an orchestrator for now: to begin it anew would not help.
    if (written === version && stuck?.is !== 'wedged') return { ...run, is: 'here', what: '' };
    if (written === null) return { ...run, is: 'begins', what: 'its first task by an orchestrator of that version' };
    const due: WalkedRun = { ...run, is: 'due', what: '' };
    const isPaused = askedIn(memo)?.pausedBecause;
    if (isNow || step === null || stuck !== null || typeof isPaused === 'string') return due;
    const status = await askStatus(handle, answerWithinMs);
    // Without a trainer it may wait for the steps of other runs; what it has sampled is stored.
    if (status?.waitingOn.some(({ what }) => hasNoTrainer(what)) === true) return due;
    const first = this.#seen.get(workflowId) ?? { runId, step };
    this.#seen.set(workflowId, first);
    if (step === first.step && runId === first.runId)
      return { ...run, is: 'waits', what: `the end of its step ${step + 1}` };
    if (status !== null && status.step >= status.maxSteps) return { ...run, is: 'waits', what: 'its own end' };
    return due;
  }

  async #move(workflowId: string): Promise<boolean> {
    const { client, version, say } = this.#options;
    try {
      const stuck = await whyStuck(client.workflow.getHandle(workflowId), workflowId);
      const isWedged = stuck?.is === 'wedged';
      if (isWedged && this.#moved.has(workflowId)) throw new RatchetError('ServerUnavailable', stuck.text);
      const why = isWedged ? 'wedged' : 'other code';
      const run = await takeOverRun({ client, version, writtenBy: this.#writtenBy, why }, workflowId);
      if (run === null) return false; // it is over, or was moved by somebody else
      this.#moved.add(workflowId);
      say(`${run}: continues from its newest commit under the wanted version`);
      return true;
    } catch (error) {
      this.#failed(workflowId, error);
      return false;
    }
  }

  #tell(runs: readonly WalkedRun[], left: readonly WalkedRun[]): void {
    const here = runs.length - left.length;
    const named = left
      .slice(0, namedMax)
      .map(({ workflowId, what }) => (what === '' ? workflowId : `${workflowId} (${what})`));
    const more = left.length > namedMax ? ` and ${left.length - namedMax} more` : '';
    const line = `${here} of ${runs.length} runs at work under it, ${this.#moved.size} moved; waits for: ${named.join(', ')}${more}`;
    if (left.length === 0 || line === this.#said || performance.now() - this.#saidAt < progressMs) return;
    [this.#said, this.#saidAt] = [line, performance.now()];
    this.#options.say(line);
  }
}

/** null for what is not there any more. */
async function unlessGone<T>(found: Promise<T>): Promise<T | null> {
  try {
    return await found;
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return null;
    throw error;
  }
}

function hasNoTrainer(wait: string): boolean {
  return Object.values(trainerWaits).some((label) => wait.startsWith(label));
}

/** Last committed step: a search attribute, or in the memo where the namespace has none; null before the first. */
function stepOf({
  memo,
  typedSearchAttributes,
}: Pick<DescribedWorkflow, 'typedSearchAttributes'> & {
  readonly memo: Readonly<Record<string, unknown>>;
}): number | null {
  const step = typedSearchAttributes.get(stepAttribute) ?? memo['step'];
  return typeof step === 'number' ? step : null;
}
