import { bootstrapMean } from '../../core/eval/bootstrap.ts';
import type { EvaluationPlace } from '../../core/eval/evaluation.ts';
import type { AskedRollouts } from '../../core/gepa/leases.ts';
import type {
  OpenedTrial,
  PromptSearchHandle,
  PromptTrial,
  StoredPromptSearch,
} from '../../core/gepa/prompt-search.ts';
import { systemPrompt } from '../../core/gepa/prompt-parts.ts';
import { RatchetError } from '../../core/errors.ts';
import { layout } from '../../runs/layout.ts';
import { versionName } from '../../core/names.ts';
import type { ObjectRef, PolicyVersion } from '../../core/rl/run-state.ts';
import { decodeStored, encodeStored } from '../../runs/stored-forms.ts';
import type { AskDependencies } from '../../backends/rollouts/asked-model.ts';
import { keepVersion } from '../../backends/rollouts/evaluated-policy.ts';
import { withHeartbeat } from '../around/heartbeat.ts';
import { storeOf } from '../../runs/run-access.ts';
import { OpenedSearch } from '../../backends/rollouts/opened-search.ts';
import { recordSearchCost, trialRequest } from '../../runs/search-cost.ts';
import { handleOf, searchKeys, textName } from '../../runs/search-store.ts';

export interface TryPromptInput {
  /** Where the search lies that found it. */
  readonly place: EvaluationPlace;
  /** What it found. */
  readonly prompt: ObjectRef;
  /** The newest version. */
  readonly policy: PolicyVersion;
}

interface OpenDependencies {
  readonly countRolloutWorkers: () => Promise<number>;
}

/** Says what a trial asks for, so that its rollouts can be leased. Only reads. */
export const createOpenTrial =
  ({ countRolloutWorkers }: OpenDependencies) =>
  async ({ place, prompt, policy }: TryPromptInput): Promise<OpenedTrial> =>
    withHeartbeat(async () => {
      const { handle, stored } = await reopened(place);
      const text = await storeOf(place).get(prompt);
      const workers = await countRolloutWorkers().catch(() => 1);
      return { handle: { ...handle, workers }, asked: trialOf(stored, nameOf(text), policy) };
    });

/**
 * Plays the winner of a branch and the prompt it began with once more, on another version than the one it was found with and on examples
 * that the branch has not seen, with the same random numbers. What was leased of it, or played before, is not played again.
 */
export const createTryPrompt =
  (dependencies: AskDependencies) =>
  async ({ place, prompt, policy }: TryPromptInput): Promise<PromptTrial> =>
    withHeartbeat(async (signal) => {
      const { handle, stored } = await reopened(place);
      const store = storeOf(place);
      const text = await store.get(prompt);
      const kept = await store.put(layout.prompt(prompt.sha256), text);
      const search = await OpenedSearch.open(dependencies, handle, signal, policy);
      const held = await keepVersion(dependencies, `${place.prefix}trial`, search);
      try {
        const name = nameOf(text);
        const [before, after] = await Promise.all(
          trialOf(stored, name, policy).map(async (asked) => {
            const rows = await search.score({ ...asked, examples: stored.test });
            return rows.map(({ reward }) => reward);
          }),
        );
        const both = before!.flatMap((was, i) => (was === null || after![i] == null ? [] : [{ was, is: after![i] }]));
        const key = [stored.input.seed, 'prompt', name, policy.digest];
        const trial = { prompt: kept, ...comparedOn(both, key) };
        await recordSearchCost(place, 'trial');
        const trialKey = `${place.prefix}trial.json`;
        await store.put(trialKey, encodeStored(trialKey, { ...trial, version: versionName(policy) }));
        return trial;
      } finally {
        await held.release();
      }
    });

/** What is asked for of the prompt in use, and of the winner: the same examples. */
function trialOf({ input, start, test }: StoredPromptSearch, winner: string, policy: PolicyVersion): AskedRollouts[] {
  const ask = (id: string, texts: AskedRollouts['texts']): AskedRollouts => ({
    id: `${trialRequest}${versionName(policy)}.${id}`,
    texts,
    set: 'test',
    keepsTraces: false,
    examples: test.map((_, position) => position),
  });
  // An environment's own prompts may differ from example to example.
  return [ask('current', input.startPrompt ? start : null), ask(winner, { [systemPrompt]: winner })];
}

function nameOf(text: Uint8Array): string {
  return textName(Buffer.from(text).toString('utf8'));
}

function comparedOn(
  both: readonly { readonly was: number; readonly is: number }[],
  key: readonly (string | number)[],
): Omit<PromptTrial, 'prompt'> {
  if (both.length === 0) return { examples: 0, before: null, after: null, difference: null };
  return {
    examples: both.length,
    before: mean(both.map(({ was }) => was)),
    after: mean(both.map(({ is }) => is)),
    difference: bootstrapMean(
      both.map(({ was, is }) => is - was),
      { key },
    ),
  };
}

/** A search that was opened before, as its activities know it. */
async function reopened(place: EvaluationPlace): Promise<{ handle: PromptSearchHandle; stored: StoredPromptSearch }> {
  const store = storeOf(place);
  const key = searchKeys.search(place);
  const bytes = await store.read(key);
  if (!bytes)
    throw new RatchetError(
      'CheckpointDamaged',
      `${store.uri}${key} is missing: the branch that found the prompt cannot be told from it.`,
    );
  const stored = decodeStored<StoredPromptSearch>(bytes, key);
  return { stored, handle: { ...handleOf(place, { key, bytes, stored }), numTest: stored.test.length } };
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
