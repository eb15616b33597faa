import { setTimeout as delay } from 'node:timers/promises';
import { WorkflowFailedError } from '@temporalio/client';
import { RawValue } from '@temporalio/common';
import { taskQueues } from '../core/names.ts';
import type { Outcome } from '../test/bad-input/cli-process.ts';
import { some } from '../test/bad-input/part.ts';
import { type SentCase, type SentPayload, sentCases } from '../test/bad-input/workflow-cases.ts';
import type { Random } from '../test/bad-input/damages.ts';
import { closeServer, freshName, openServer } from '../test/workflows/server.ts';

const endMs = 60_000;

/** Some of the wrong inputs, sent to a Temporal server whose workers have the workflows as they are shipped. */
export async function trySent(
  count: number,
  random: Random,
  tell: (one: SentCase, outcome: Outcome) => void,
): Promise<void> {
  const { client } = await openServer();
  const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
  const payload = ({ encoding, text }: SentPayload): RawValue =>
    RawValue.fromPayload({ metadata: encoding === null ? {} : { encoding: bytes(encoding) }, data: bytes(text) });
  // A server refuses larger payloads itself.
  const isSent = ({ sample, mustRefuse, payloads }: SentCase): boolean =>
    sample.kind === 'input' && mustRefuse && payloads.every(({ text }) => text.length < 1_000_000);
  try {
    for (const one of some(sentCases(random).filter(isSent), count)) {
      const handle = await client.workflow.start(one.sample.name, {
        workflowId: freshName(),
        taskQueue: taskQueues.orchestrator,
        args: one.payloads.map(payload),
      });
      const ended = handle.result().then(
        () => ({ code: 0, text: 'it was accepted', chars: 0 }),
        (error: unknown) => {
          const cause = error instanceof WorkflowFailedError ? error.cause : error;
          const text = cause instanceof Error ? cause.message : String(cause);
          return { code: 1, text, chars: text.length };
        },
      );
      const outcome = await Promise.race([ended, delay(endMs, null, { ref: false })]);
      if (outcome === null) await handle.terminate('it hangs');
      tell(one, outcome);
    }
  } finally {
    await closeServer();
  }
}
