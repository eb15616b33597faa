import { setMaxListeners } from 'node:events';
import type { AnsweredLease, LeasedWork, SearchLease } from '../../core/gepa/leases.ts';
import { next } from '../../core/gepa/search.ts';
import { searchDrainMs } from '../../core/limits.ts';
import { onAbort } from '../../core/on-abort.ts';
import { FollowedSearch } from '../../play/followed-search.ts';
import { allOrFirstFailure, OpenedSearch } from '../../play/opened-search.ts';
import type { AskDependencies } from '../../play/policy/asked-model.ts';
import { keepVersion } from '../../play/policy/evaluated-policy.ts';
import { workerSlots } from '../../play/slots.ts';
import { attemptHere, isShutdown, withHeartbeat, workflowHere } from '../around/heartbeat.ts';

/**
 * Answers a lease of a search: plays slices of its requests, reflects, or takes the whole search on for a while. Each rollout and each
 * reflection is in the store before its answer counts: a retry, on whichever worker, asks only for what is missing.
 */
export const createAnswerSearch =
  (dependencies: AskDependencies) =>
  async ({ handle, policy, work }: SearchLease): Promise<AnsweredLease> => {
    let followed: FollowedSearch | null = null;
    const answer = async (cancelled: AbortSignal): Promise<AnsweredLease> => {
      const broken = new AbortController();
      setMaxListeners(0, broken.signal); // every rollout listens
      const forget = breakOff(broken, cancelled, work.kind === 'search' ? searchDrainMs : 0);
      const search = await OpenedSearch.open(dependencies, handle, broken.signal, {
        policy,
        retry: attemptHere(),
        workflow: workflowHere(),
      });
      const { prefix } = handle.place;
      const { id, rollouts } = sizeOf(work);
      // A run kept the version for its search until here.
      const kept = await keepVersion(dependencies, `${prefix}${id}`, search, policy === undefined ? prefix : undefined);
      const leave = workerSlots.enter(rollouts);
      try {
        if (work.kind === 'slices') return await playSlices(search, work, rollouts);
        if (work.kind === 'reflections') {
          const answers = await allOrFirstFailure(work.requests.map((request) => search.reflect(request)));
          return { played: [], answers: [answers], ...search.account, pace: null };
        }
        followed = new FollowedSearch(search, work);
        await followed.finish(cancelled);
        if (isShutdown(cancelled)) cancelled.throwIfAborted(); // the next worker goes on from the store
        return { played: [], answers: followed.answers, ...search.account, pace: followed.pace };
      } catch (error) {
        cancelled.throwIfAborted();
        throw error;
      } finally {
        forget();
        leave();
        await kept.release();
        await search.leave();
      }
    };
    return withHeartbeat(answer, () => followed?.progress());
  };

async function playSlices(
  search: OpenedSearch,
  { slices }: Extract<LeasedWork, { kind: 'slices' }>,
  rollouts: number,
): Promise<AnsweredLease> {
  const startedAt = performance.now();
  const beside = Math.max(rollouts, workerSlots.wanted);
  const played = await search.play(slices);
  const { adopted } = search.account;
  const pace = { seconds: (performance.now() - startedAt) / 1000, beside };
  return { played, answers: [], ...search.account, pace: adopted === rollouts ? null : pace };
}

/** Names a lease, as servers keep the version for it; and how many rollouts it begins with. */
function sizeOf(work: LeasedWork): { readonly id: string; readonly rollouts: number } {
  const count = (asked: readonly object[]): number =>
    asked.reduce((sum, one) => sum + ('examples' in one ? (one.examples as readonly number[]).length : 0), 0);
  if (work.kind === 'slices')
    return { id: `${work.slices[0]!.id}.${work.slices[0]!.from}`, rollouts: count(work.slices) };
  const requests = work.kind === 'search' ? next(work.state) : work.requests;
  return { id: requests[0]?.id ?? 'search', rollouts: count(requests) };
}

/** Breaks off what is under way so long after the lease was told to end; at a shutdown of the worker at once, for the next one goes on. */
function breakOff(broken: AbortController, cancelled: AbortSignal, afterMs: number): () => void {
  const end = (): void => broken.abort(cancelled.reason);
  let timer: NodeJS.Timeout | undefined;
  const begin = (): void => {
    if (afterMs === 0 || isShutdown(cancelled)) end();
    else timer = setTimeout(end, afterMs);
  };
  const forget = onAbort(cancelled, begin);
  if (cancelled.aborted) begin();
  return () => {
    forget();
    clearTimeout(timer); // all came in time
  };
}
