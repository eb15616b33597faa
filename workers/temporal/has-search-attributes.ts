/** Search attributes with a run's progress, and a query that only a namespace with all of them accepts. */
const names = ['RatchetRun', 'RatchetStep', 'RatchetReward'];
const query = "RatchetRun = 'none' AND RatchetStep = 0 AND RatchetReward = 0.0";

/** gRPC's INVALID_ARGUMENT, PERMISSION_DENIED, UNIMPLEMENTED, UNAUTHENTICATED. */
const [notUnderstood, refusals] = [3, [7, 12, 16]];

interface Namespace {
  /** Asks the operator service, which Temporal Cloud lacks and not every user may call. */
  readonly list: () => Promise<object>;
  readonly count: (query: string) => Promise<unknown>;
}

/**
 * Whether a namespace has the search attributes of runs. If that may not be asked, the answer is no: the memo serves as
 * well.
 */
export async function hasSearchAttributes({ list, count }: Namespace): Promise<boolean> {
  try {
    const found = await list();
    return names.every((name) => name in found);
  } catch (error) {
    if (!refusals.includes(codeOf(error))) throw error;
  }
  try {
    await count(query);
    return true;
  } catch (error) {
    if ([notUnderstood, ...refusals].includes(codeOf(error))) return false;
    throw error;
  }
}

/** gRPC status code of the call, or of the error that the client wrapped. */
function codeOf(error: unknown): number {
  const { code, cause } = error as { readonly code?: unknown; readonly cause?: unknown };
  if (typeof code === 'number') return code;
  return cause instanceof Error ? codeOf(cause) : -1;
}
