/** What a run tells its progress by, and a query that only a namespace with all of them understands. */
const names = ['RatchetRun', 'RatchetStep', 'RatchetReward'];
const query = "RatchetRun = 'none' AND RatchetStep = 0 AND RatchetReward = 0.0";

/** gRPC's INVALID_ARGUMENT, PERMISSION_DENIED, UNIMPLEMENTED, UNAUTHENTICATED. */
const [notUnderstood, refusals] = [3, [7, 12, 16]];

interface Namespace {
  /** By the operators' service, which Temporal Cloud has not, and which not everybody may call. */
  readonly list: () => Promise<object>;
  readonly count: (query: string) => Promise<unknown>;
}

/** Whether a namespace has the search attributes of runs; where that may not even be asked, it has none: the memo does as well. */
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

/** Of the call itself, or of what the client put around it. */
function codeOf(error: unknown): number {
  const { code, cause } = error as { readonly code?: unknown; readonly cause?: unknown };
  if (typeof code === 'number') return code;
  return cause instanceof Error ? codeOf(cause) : -1;
}
