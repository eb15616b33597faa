import {
  type Client,
  WorkflowClient,
  type WorkflowExecutionDescription,
  type WorkflowExecutionInfo,
} from '@temporalio/client';
import type { PayloadCodec } from '@temporalio/common';
import { decodeMapFromPayloads } from '@temporalio/common/lib/internal-non-workflow/index.js';
import { memoKeys } from '../../core/names.ts';
import type { AskedOfRun } from '../../core/rl/run-state.ts';
import { innermostMessage } from './innermost-message.ts';

/** A workflow in Temporal's list, without its memo, which `memoOf` decodes. */
export type ListedWorkflow = Omit<WorkflowExecutionInfo, 'memo'>;
/** Description of a workflow, without its memo. */
export type DescribedWorkflow = Omit<WorkflowExecutionDescription, 'memo'>;

type Asked = Pick<Client, 'connection' | 'options'>;

/**
 * Lists workflows, the newest first. A namespace may have some of another program or of another key: the SDK's own list
 * decodes every memo, and ends with an error at the first that it cannot decode.
 */
export function listWorkflows(client: Asked, query: string, pageSize?: number): AsyncIterable<ListedWorkflow> {
  return undecoding(client).list({ query, ...(pageSize === undefined ? {} : { pageSize }) });
}

/** What `describe` of a handle resolves to, also where the memo cannot be decoded. The newest execution without a run id. */
export function describeWorkflow(client: Asked, workflowId: string, runId?: string): Promise<DescribedWorkflow> {
  return undecoding(client).getHandle(workflowId, runId).describe();
}

/** Decodes a memo; where it cannot, calls `unreadable` with the reason, and resolves to null. */
export async function memoOf(
  client: Pick<Client, 'options'>,
  raw: Pick<ListedWorkflow['raw'], 'memo'> | null | undefined,
  unreadable: (why: string) => void,
): Promise<Readonly<Record<string, unknown>> | null> {
  try {
    return (await decodeMapFromPayloads(client.options.loadedDataConverter, raw?.memo?.fields)) ?? {};
  } catch (error) {
    unreadable(innermostMessage(error));
    return null;
  }
}

/** What people have asked of a run, which its memo has. */
export function askedIn(memo: Readonly<Record<string, unknown>>): AskedOfRun | undefined {
  return memo[memoKeys.asked] as AskedOfRun | undefined;
}

const nothing = { metadata: { encoding: new TextEncoder().encode('binary/null') } };

/** A client over the same connection that decodes each payload to nothing. */
function undecoding({ connection, options: { namespace } }: Asked): WorkflowClient {
  const codec: PayloadCodec = {
    encode: () => Promise.reject(new Error('this client only reads')),
    decode: (payloads) => Promise.resolve(payloads.map(() => nothing)),
  };
  return new WorkflowClient({ connection, namespace, dataConverter: { payloadCodecs: [codec] } });
}
