import { Context } from '@temporalio/activity';
import { groupsEndedSignalName } from '../../core/names.ts';
import { outsideOfActivities, signalTo } from './tell-workflow.ts';
import type { PartsNotice, PlayedPart } from '../../core/rl/played-part.ts';

/** A run is told no oftener than this: a signal costs it a task. */
const signalMs = 250;
/** Parts in one signal; each has a kilobyte. */
const partsMax = 256;

interface Waiting {
  readonly part: PlayedPart;
  readonly told: (isTold: boolean) => void;
}

/** What the activities of this process have to tell one run. */
class Outbox {
  readonly #send: (parts: readonly PlayedPart[]) => Promise<void>;
  #waiting: Waiting[] = [];
  #isSending = false;
  #sentAt = -Infinity;

  constructor(send: (parts: readonly PlayedPart[]) => Promise<void>) {
    this.#send = send;
  }

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
      const waitMs = this.#sentAt + signalMs - performance.now();
      if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs));
      const sent = this.#waiting.splice(0, partsMax);
      this.#sentAt = performance.now();
      const isTold = await this.#send(sent.map(({ part }) => part)).then(
        () => true,
        () => false, // the end of its activity says it
      );
      for (const { told } of sent) told(isTold);
    }
    this.#isSending = false;
  }
}

const outboxes = new Map<string, Outbox>();

/** Tells a run's workflow of groups that have ended, with what else there is to tell it. False where it could not be told, or nobody is to be. */
export async function tellParts(workflowId: string | undefined, lineage: string, part: PlayedPart): Promise<boolean> {
  if (workflowId === undefined) return false;
  const { client, info } = Context.current();
  const key = JSON.stringify([info.namespace, workflowId, lineage]);
  const outbox = outboxes.get(key) ?? new Outbox((parts) => signalTo(client, workflowId, groupsEndedSignalName, { lineage, parts } satisfies PartsNotice));
  outboxes.set(key, outbox);
  try {
    return await outbox.put(part);
  } finally {
    if (outbox.isIdle) outboxes.delete(key);
  }
}
