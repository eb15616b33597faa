import { workerSlots } from './slots.ts';
import type { EvaluatedEnvironment } from '../../core/eval/evaluation.ts';
import type { PromptSearchInput } from '../../core/gepa/prompt-search.ts';
import type { Rollout, Turn } from '../../core/rl/rollout.ts';
import { type AskDependencies, askEndpoint, type OpenPolicy, openVersion } from './asked-model.ts';
import { samplePlace, samplePolicy, turnSeed } from './sample-policy.ts';

type Place = Pick<Rollout, 'group' | 'index' | 'exampleId'>;

/** How a rollout gets the model whose prompt is searched; `session` names the rollout. */
export type PromptPlayer = (place: Place, session: string, record: TurnRecord) => OpenPolicy;

/** Turns of a rollout whose environment does the same again: those that it finished before it was broken off, and each that it finishes. */
interface TurnRecord {
  readonly recorded: readonly Turn[];
  readonly onTurn: (turn: Turn, position: number) => void;
}

/**
 * A version of a run is sampled with random numbers keyed by the example: two prompts are compared on the same draws. An API draws as
 * it likes.
 */
export async function openPromptPlayer(
  dependencies: AskDependencies,
  of: { readonly input: PromptSearchInput; readonly environment: EvaluatedEnvironment; readonly signal: AbortSignal },
): Promise<PromptPlayer> {
  const { input, environment, signal } = of;
  const { model, seed, results } = input;
  if (model.kind === 'endpoint') {
    const ask = askEndpoint(dependencies, model, signal);
    return ({ index }, session) => ask([results.name, environment.name, session], index);
  }
  const version = await openVersion(dependencies, model);
  return ({ index, exampleId }, session, record) => ({
    openPolicy({ isDeterministic, isSingleTurn = false }) {
      const place = samplePlace([version.served.name, 'gepa', session], index);
      const onRecord = isDeterministic && !isSingleTurn ? record : {};
      return samplePolicy({ ...version, signal, place, ...onRecord }, (turn) =>
        turnSeed('gepa', seed, environment.name, exampleId, index, turn),
      );
    },
  });
}

/** Plays a rollout of a search when its worker has room for one more. */
export async function whenThereIsRoom<T>(signal: AbortSignal, play: () => Promise<T>): Promise<T> {
  await workerSlots.take(1, signal);
  try {
    return await play();
  } finally {
    workerSlots.give();
  }
}

/** A lease of so many rollouts has come to this worker, until it leaves; `beside`: how many are in play here with them. */
export function enterWorker(rollouts: number): { readonly leave: () => void; readonly beside: () => number } {
  return { leave: workerSlots.enter(rollouts), beside: () => Math.max(rollouts, workerSlots.wanted) };
}
