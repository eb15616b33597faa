import { Context } from '@temporalio/activity';
import { groupsEndedSignalName } from '../../core/names.ts';
import { outsideOfActivities, signalTo } from './tell-workflow.ts';
import type { PartsNotice, PlayedPart } from '../../core/rl/rollout/played-part.ts';

/**
 * Least time between a worker's signals to a run, and between those of all workers together: a signal costs the run a
 * workflow task, and prevents continue-as-new while it arrives.
 */
const signalMs = 250;
const signalMsOfAll = 125;
/** Limit for runs with an outbox. */
const outboxesMax = 256;
/** Parts in one signal; each has a kilobyte. */
const partsMax = 256;

interface Waiting {
  readonly part: PlayedPart;
  readonly told: (isTold: boolean) => void;
}

/** Parts that this process has yet to send to one run. */
class Outbox {
  send: (parts: readonly PlayedPart[]) => Promise<void> = () => Promise.resolve();
  everyMs = signalMs;
  #waiting: Waiting[] = [];
  #isSending = false;
  #sentAt = -Infinity;

  get isIdle(): boolean {
    return !this.#isSending && this.#waiting.length === 0;
  }

  put(part: PlayedPart): Promise<boolean> {
    return new Promise((told) => {
      this.#waiting.push({ part, told });
      if (!this.#isSending) outsideOfActivities(() => void this.#sendAll());
    });
  }

  async #sendAll(): Promise<void> {
    this.#isSending = true;
    while (this.#waiting.length > 0) {
      const waitMs = this.#sentAt + this.everyMs - performance.now();
      if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs));
      const sent = this.#waiting.splice(0, partsMax);
      this.#sentAt = performance.now();
      const isTold = await this.send(sent.map(({ part }) => part)).then(
        () => true,
        () => false, // the activity's result has them as well
      );
      for (const { told } of sent) told(isTold);
    }
    this.#isSending = false;
  }
}

const outboxes = new Map<string, Outbox>();

/**
 * Notifies a run's workflow of ended groups, together with other pending parts. False when it cannot be notified, or no
 * workflow was named.
 */
export async function tellParts(
  workflowId: string | undefined,
  { lineage, workers = 1 }: { readonly lineage: string; readonly workers?: number | undefined },
  part: PlayedPart,
): Promise<boolean> {
  if (workflowId === undefined) return false;
  const { client, info } = Context.current();
  const key = JSON.stringify([info.namespace, workflowId, lineage]);
  const outbox = outboxes.get(key) ?? new Outbox();
  outbox.send = (parts) =>
    signalTo(client, workflowId, groupsEndedSignalName, { lineage, parts } satisfies PartsNotice);
  // Newest last. A dropped outbox only loses its interval.
  outboxes.delete(key);
  outboxes.set(key, outbox);
  for (const [oldest, { isIdle }] of outboxes) {
    if (outboxes.size <= outboxesMax) break;
    if (isIdle) outboxes.delete(oldest);
  }
  outbox.everyMs = Math.max(signalMs, signalMsOfAll * workers);
  return outbox.put(part);
}
