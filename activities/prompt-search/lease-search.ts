import { setMaxListeners } from 'node:events';
import type { PlayedSlice, PromptSlice, Reflected } from '../../core/gepa/leases.ts';
import type { PromptSearchHandle } from '../../core/gepa/prompt-search.ts';
import type { ReflectRequest } from '../../core/gepa/search-state.ts';
import type { AskDependencies } from '../../backends/rollouts/asked-model.ts';
import { keepVersion } from '../../backends/rollouts/evaluated-policy.ts';
import { allOrFirstFailure, OpenedSearch } from '../../backends/rollouts/opened-search.ts';
import { withHeartbeat } from '../around/heartbeat.ts';

interface EvaluatePromptInput {
  readonly handle: PromptSearchHandle;
  readonly slice: PromptSlice;
}

/**
 * Plays and scores some examples of one request of a search. Each rollout lies in the store before it counts: a retry, on whichever worker,
 * plays only what is missing.
 */
export const createEvaluatePrompt =
  (dependencies: AskDependencies) =>
  async ({ handle, slice }: EvaluatePromptInput): Promise<PlayedSlice> =>
    withSearch(dependencies, handle, `${slice.id}.${slice.from}`, (search) => search.play(slice));

interface ReflectOnPromptInput {
  readonly handle: PromptSearchHandle;
  readonly requests: readonly ReflectRequest[];
}

/** Asks for new texts. Each answer lies in the store before it counts: a retry asks only for those that are missing. */
export const createReflectOnPrompt =
  (dependencies: AskDependencies) =>
  async ({ handle, requests }: ReflectOnPromptInput): Promise<Reflected> =>
    withSearch(dependencies, handle, requests[0]!.id, async (search) => {
      const answers = await allOrFirstFailure(requests.map((request) => search.reflect(request)));
      const { adopted, firstFailure } = search.account;
      return { answers, adopted, firstFailure };
    });

/** The servers keep the version whose prompt is searched for as long as this goes on, also while nothing but reflections is waited for. */
function withSearch<T>(
  dependencies: AskDependencies,
  handle: PromptSearchHandle,
  lease: string,
  work: (search: OpenedSearch) => Promise<T>,
): Promise<T> {
  return withHeartbeat(async (signal) => {
    setMaxListeners(0, signal); // every rollout listens
    const search = await OpenedSearch.open(dependencies, handle, signal);
    const { prefix } = handle.place;
    const kept = await keepVersion(dependencies, `${prefix}${lease}`, search, prefix); // whose run kept it until here
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
