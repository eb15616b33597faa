import type { EvaluatedModel } from '../../core/eval/evaluation.ts';
import type { Turn } from '../../core/rl/rollout/rollout.ts';
import { keepsTurns } from '../after-death.ts';
import { type AskDependencies, askEndpoint, type OpenPolicy, openVersion } from './asked-model.ts';
import { versionHeldS } from '../../core/limits.ts';
import { servedPolicy, specOf } from '../../runs/run-access.ts';
import { samplePlace, samplePolicy, turnSeed } from './sample-policy.ts';

/** Who asks a model: an evaluation, or a search for the prompts of an environment. */
interface Asking {
  readonly kind: 'eval' | 'gepa';
  /** Settings of the evaluation or the search. */
  readonly name: string;
  readonly model: EvaluatedModel;
  readonly environment: { readonly name: string };
  /** Keys the random numbers of a version's sampling. An API draws as it likes. */
  readonly seed: number;
  readonly signal: AbortSignal;
}

/** A rollout that is about to be generated. */
interface AskedRollout {
  /** Tells it from others of its environment, for servers that keep a session in one place. */
  readonly session: string | number;
  readonly index: number;
  readonly exampleId: number;
  /** Turns that it finished before it was broken off. */
  readonly recorded: () => readonly Turn[];
  /** Told of each turn that it finishes; `onRecord`: its environment does the same again with the same turns. A call waits for it. */
  readonly onTurn: (turn: Turn, position: number, onRecord: boolean) => void | Promise<void>;
}

/** How each rollout of an evaluation or a search gets the model that is asked. */
export async function openModel(
  dependencies: AskDependencies,
  { kind, name, model, environment, seed, signal }: Asking,
): Promise<(rollout: AskedRollout) => OpenPolicy> {
  if (model.kind === 'endpoint') {
    const ask = askEndpoint(dependencies, model, signal);
    return ({ session, index, recorded, onTurn }) =>
      ask([name, environment.name, session], index, {
        recorded,
        onTurn: (turn, position) => onTurn(turn, position, false),
      });
  }
  const version = await openVersion(dependencies, model);
  return ({ session, index, exampleId, recorded, onTurn }) => ({
    openPolicy(played, _until, budget) {
      const place = samplePlace([version.served.name, kind, environment.name, session], index);
      const onRecord = keepsTurns(played);
      const record = {
        recorded: played.isSingleTurn === true ? [] : recorded(),
        onTurn: (turn: Turn, position: number) => onTurn(turn, position, onRecord),
      };
      // Keyed by the example and not by the step or the prompt: what is compared is compared on the same draws.
      return samplePolicy({ ...version, signal, place, budget, ...record }, (turn) =>
        turnSeed(kind, seed, environment.name, exampleId, index, turn),
      );
    },
  });
}

/** Between asking servers to keep a version for longer. */
const keepAgainMs = (versionHeldS * 1000) / 5;

/**
 * Has the servers hold the evaluated version until it is released; models elsewhere have none. `before`: an earlier
 * holder, released together with this one.
 */
export async function keepVersion(
  { inference }: Pick<AskDependencies, 'inference'>,
  holder: string,
  { model }: { readonly model: EvaluatedModel },
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
