import { defaultPayloadConverter, type Payload, type PayloadConverter } from '@temporalio/common';
import { UnreadablePayload } from '../core/shape.ts';

/**
 * Payload converter for workflows. A client may send an unknown encoding or invalid JSON. The SDK's converter then throws before our code
 * runs, and Temporal retries the workflow task for ever. This one returns a placeholder, which every input check refuses with what was
 * received. It is bundled with the workflows (`workers/program/workflow-bundle.ts`).
 */
export const payloadConverter: PayloadConverter = {
  toPayload: (value, context, hint) => defaultPayloadConverter.toPayload(value, context, hint),
  fromPayload<T>(...[payload, context, hint]: Parameters<PayloadConverter['fromPayload']>): T {
    // Results of our own activities are not client input, so errors may throw.
    if (context?.type === 'activity') return defaultPayloadConverter.fromPayload<T>(payload, context, hint as never);
    try {
      return defaultPayloadConverter.fromPayload<T>(payload, context, hint as never);
    } catch (error) {
      return new UnreadablePayload(encodingOf(payload), error instanceof Error ? error.message : String(error)) as T;
    }
  },
};

function encodingOf({ metadata }: Payload): string {
  const bytes = metadata?.['encoding'];
  return bytes === undefined ? 'none' : String.fromCharCode(...bytes.slice(0, 40));
}
