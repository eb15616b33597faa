import { defaultPayloadConverter, type Payload, type PayloadConverter } from '@temporalio/common';
import { UnreadablePayload } from '../core/shape.ts';

/**
 * The converter of the workflows. What somebody sends to a workflow may be in an encoding that nobody here reads, or no JSON: the SDK's
 * converter throws then, before any code of ours runs, and the workflow task is tried again for ever. Here a value stands in its place,
 * which every check of an input refuses with what came. Bundled with the workflows (`workers/workflow-bundle.ts`).
 */
export const payloadConverter: PayloadConverter = {
  toPayload: (value, context, hint) => defaultPayloadConverter.toPayload(value, context, hint),
  fromPayload<T>(...[payload, context, hint]: Parameters<PayloadConverter['fromPayload']>): T {
    // What an activity of ours answered is not somebody's input.
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
