import { setMaxListeners } from 'node:events';
import type { PlayedSlice, PromptSlice, Reflected } from '../../core/gepa/leases.ts';
import type { PromptSearchHandle } from '../../core/gepa/prompt-search.ts';
import type { ReflectRequest } from '../../core/gepa/search-state.ts';
import type { PolicyVersion } from '../../core/rl/run-state.ts';
import type { AskDependencies } from '../../backends/rollouts/asked-model.ts';
import { keepVersion } from '../../backends/rollouts/evaluated-policy.ts';
import { allOrFirstFailure, OpenedSearch } from '../../backends/rollouts/opened-search.ts';
import { withHeartbeat } from '../around/heartbeat.ts';

interface EvaluatePromptInput {
  readonly handle: PromptSearchHandle;
  readonly slice: PromptSlice;
  /** In place of the version that the search was begun with. */
  readonly policy?: PolicyVersion;
}

/**
 * Plays and scores some examples of one request of a search. Each rollout lies in the store before it counts: a retry, on whichever worker,
 * plays only what is missing.
 */
export const createEvaluatePrompt =
  (dependencies: AskDependencies) =>
  async ({ handle, slice, policy }: EvaluatePromptInput): Promise<PlayedSlice> =>
    withSearch(dependencies, { handle, policy, lease: `${slice.id}.${slice.from}` }, (search) => search.play(slice));

interface ReflectOnPromptInput {
  readonly handle: PromptSearchHandle;
  readonly requests: readonly ReflectRequest[];
}

/** Asks for new texts. Each answer lies in the store before it counts: a retry asks only for those that are missing. */
export const createReflectOnPrompt =
  (dependencies: AskDependencies) =>
  async ({ handle, requests }: ReflectOnPromptInput): Promise<Reflected> =>
    withSearch(dependencies, { handle, lease: requests[0]!.id }, async (search) => {
      const answers = await allOrFirstFailure(requests.map((request) => search.reflect(request)));
      const { adopted, firstFailure } = search.account;
      return { answers, adopted, firstFailure };
    });

interface LeasedSearch extends Pick<EvaluatePromptInput, 'handle'> {
  readonly policy?: PolicyVersion | undefined;
  /** As which servers keep the version. */
  readonly lease: string;
}

/** The servers keep the version whose prompt is searched for as long as this goes on, also while nothing but reflections is waited for. */
function withSearch<T>(
  dependencies: AskDependencies,
  { handle, policy, lease }: LeasedSearch,
  work: (search: OpenedSearch) => Promise<T>,
): Promise<T> {
  return withHeartbeat(async (signal) => {
    setMaxListeners(0, signal); // every rollout listens
    const search = await OpenedSearch.open(dependencies, handle, signal, policy);
    const { prefix } = handle.place;
    const before = policy === undefined ? prefix : undefined; // its run kept the search's own until here
    const kept = await keepVersion(dependencies, `${prefix}${lease}`, search, before);
    try {
      return await work(search);
    } catch (error) {
      signal.throwIfAborted();
      throw error;
    } finally {
      await kept.release();
    }
  });
}
