import type { EvaluationHandle, EvaluationInput } from '../../core/eval/evaluation.ts';
import type { Rollout } from '../../core/rl/rollout.ts';
import { type AskDependencies, askEndpoint, type OpenPolicy, openVersion } from './asked-model.ts';
import { versionHeldS } from '../../core/limits.ts';
import type { RolloutJournal } from '../../runs/rollout-journal.ts';
import { servedPolicy, specOf } from '../../runs/run-access.ts';
import { samplePlace, samplePolicy, turnSeed } from './sample-policy.ts';

type Place = Pick<Rollout, 'group' | 'index' | 'exampleId'>;
type Player = (place: Place) => OpenPolicy;

/** How each rollout of an evaluation gets the model that is evaluated. */
export async function openPlayer(
  dependencies: AskDependencies,
  { place: at }: EvaluationHandle,
  { model, environment, seed }: EvaluationInput,
  { journal, signal }: { readonly journal: RolloutJournal; readonly signal: AbortSignal },
): Promise<Player> {
  if (model.kind === 'endpoint') {
    const ask = askEndpoint(dependencies, model, signal);
    return ({ exampleId, index }) => ask([at.name, environment.name, exampleId], index);
  }
  const version = await openVersion(dependencies, model);
  return (place) => ({
    openPolicy({ isDeterministic, isSingleTurn = false }) {
      const onRecord = isDeterministic && !isSingleTurn;
      const { group, index, exampleId } = place;
      return samplePolicy(
        {
          ...version,
          signal,
          place: samplePlace([version.served.name, 'eval', environment.name, exampleId], index),
          ...(onRecord ? { recorded: journal.turnsOf(place) } : {}),
          onTurn(turn, position) {
            if (onRecord && !signal.aborted) journal.addTurn({ group, index, turn: position, ...turn });
          },
        },
        // Not keyed by the step: the same random numbers at every evaluation make the curve smoother.
        (turn) => turnSeed('eval', seed, environment.name, exampleId, index, turn),
      );
    },
  });
}

/** Between asking servers to keep a version for longer. */
const keepAgainMs = (versionHeldS * 1000) / 5;

/**
 * Keeps the version that is evaluated at its servers until it is released; what runs elsewhere has none. `before`: who kept it until then, and
 * is released with it.
 */
export async function keepVersion(
  { inference }: Pick<AskDependencies, 'inference'>,
  holder: string,
  { model }: Pick<EvaluationInput, 'model'>,
  before?: string,
): Promise<{ release(): Promise<void> }> {
  if (model.kind === 'endpoint') return { release: () => Promise.resolve() };
  const servers = inference(await specOf(model.run));
  const served = await servedPolicy(model.run, model.policy);
  // A server that cannot, or is away, is brought to the version when a turn asks for it.
  const keep = async (): Promise<unknown> => servers.hold?.(served, holder, versionHeldS).catch(() => undefined);
  await keep();
  const again = setInterval(() => void keep(), keepAgainMs);
  return {
    async release() {
      clearInterval(again);
      for (const one of before === undefined ? [holder] : [holder, before])
        await servers.release?.(served, one).catch(() => undefined);
    },
  };
}
