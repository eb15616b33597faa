/** The answers of a Temporal server to those who list and describe workflows, for clients of a few lines. */
import type { Client } from '@temporalio/client';
import { defaultPayloadConverter } from '@temporalio/common';
import { msToTs } from '@temporalio/common/lib/time.js';
import proto from '@temporalio/proto';

type Raw = proto.temporal.api.workflow.v1.IWorkflowExecutionInfo;
type RawDescription = proto.temporal.api.workflowservice.v1.IDescribeWorkflowExecutionResponse;

export interface ListedAs {
  readonly workflowId: string;
  readonly runId?: string;
  readonly type?: string;
  readonly parent?: string | undefined;
  readonly memo?: Readonly<Record<string, unknown>>;
  /** Its memo cannot be decoded. */
  readonly isOfOtherKey?: boolean;
}

interface Answers {
  readonly list?: (query: string) => Iterable<ListedAs>;
  readonly describe?: (workflowId: string, runId: string | undefined) => ListedAs & { readonly raw?: RawDescription };
}

/** Every workflow of these answers runs. */
export function connectionWith({ list = () => [], describe }: Answers): Client['connection'] {
  const workflowService = {
    listWorkflowExecutions: async ({ query }: { readonly query: string }) => ({ executions: [...list(query)].map(rawOf) }), // prettier-ignore
    describeWorkflowExecution: async ({ execution: { workflowId, runId } }: { execution: Record<string, string> }) => {
      const found = asServer(() => describe!(workflowId!, runId));
      return { ...found.raw, workflowExecutionInfo: { ...rawOf(found), ...found.raw?.workflowExecutionInfo } };
    },
  };
  return { workflowService } as unknown as Client['connection'];
}

/** The client makes the same error of this one. */
function asServer<T>(answer: () => T): T {
  try {
    return answer();
  } catch (error) {
    if ((error as Error).name !== 'WorkflowNotFoundError') throw error;
    throw Object.assign(new Error('not found'), { code: 5, details: 'not found', metadata: { get: () => [] } });
  }
}

function rawOf({ workflowId, runId = '1', type = 'trainRun', parent, memo = {}, isOfOtherKey }: ListedAs): Raw {
  const fields = Object.entries(memo).map(([key, value]) => [key, defaultPayloadConverter.toPayload(value)]);
  if (isOfOtherKey === true) fields.push(['secret', { metadata: { encoding: Buffer.from('binary/encrypted') } }]);
  return {
    execution: { workflowId, runId },
    type: { name: type },
    status: proto.temporal.api.enums.v1.WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING,
    historyLength: { toNumber: () => 1 } as NonNullable<Raw['historyLength']>,
    startTime: msToTs(0),
    memo: { fields: Object.fromEntries(fields) as Record<string, proto.temporal.api.common.v1.IPayload> },
    parentExecution: parent === undefined ? null : { workflowId: parent, runId: '1' },
  };
}
