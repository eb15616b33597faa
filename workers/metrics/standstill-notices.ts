import type { Client, WorkflowExecutionInfo } from '@temporalio/client';
import { WorkflowFailedError } from '@temporalio/client';
import type { AskedOfRun } from '../../core/rl/run-state.ts';
import { writeFailure, writePause } from '../../runs/metrics/notices.ts';
import { innermostMessage } from '../temporal/innermost-message.ts';
import { openedRun } from '../stack/take-over.ts';

interface Options {
  readonly client: () => Client;
  readonly log: (line: string) => void;
}

type Found = Pick<WorkflowExecutionInfo, 'workflowId' | 'runId'>;

/**
 * Writes notices of runs that failed, or that stand still without a user's pause. These reasons come from Temporal and
 * are in no metric.
 */
export class StandstillNotices {
  readonly #options: Options;
  /** Notices written by this process. */
  readonly #done = new Set<string>();
  #complaint = '';

  constructor(options: Options) {
    this.#options = options;
  }

  async paused({ workflowId, runId }: Found, asked: AskedOfRun | undefined): Promise<void> {
    const reason = asked?.pausedBecause ?? null;
    if (reason === null || asked?.isPausedByPerson) {
      this.#done.delete(`${workflowId} paused`);
      return;
    }
    await this.#once(`${workflowId} paused`, async () => {
      const run = await openedRun(this.#options.client(), workflowId, runId);
      if (run) await writePause(run, reason);
    });
  }

  async failed({ workflowId, runId }: Found): Promise<void> {
    await this.#once(`${workflowId}/${runId} failed`, async () => {
      const run = await openedRun(this.#options.client(), workflowId, runId);
      const reason = await this.#reasonOf(workflowId, runId);
      if (run && reason !== null) await writeFailure(run, reason);
    });
  }

  async #reasonOf(workflowId: string, runId: string): Promise<string | null> {
    try {
      await this.#options.client().workflow.getHandle(workflowId, runId, { followRuns: false }).result();
      return null;
    } catch (error) {
      if (!(error instanceof WorkflowFailedError)) throw error;
      return innermostMessage(error);
    }
  }

  /** A folder that cannot be written does not stop other runs from being followed. */
  async #once(what: string, write: () => Promise<void>): Promise<void> {
    if (this.#done.has(what)) return;
    this.#done.add(what);
    try {
      await write();
    } catch (error) {
      this.#done.delete(what);
      const complaint = `${what}: could not be noted: ${error instanceof Error ? error.message : String(error)}`;
      if (complaint !== this.#complaint) this.#options.log(complaint);
      this.#complaint = complaint;
    }
  }
}
