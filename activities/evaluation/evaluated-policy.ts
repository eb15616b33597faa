import type { EvaluationHandle, EvaluationInput } from '../../core/eval/evaluation.ts';
import type { Rollout } from '../../core/rl/rollout.ts';
import { type Endpoint, type EndpointServer, sharedEndpoint } from '../../backends/inference/index.ts';
import { chatPolicy } from '../chat-policy.ts';
import type { GenerateDependencies } from '../generate-rollouts.ts';
import { versionHeldS } from '../hold-version.ts';
import type { PlayOptions } from '../play-rollout.ts';
import type { RolloutJournal } from '../rollout-journal.ts';
import { servedPolicy, specOf } from '../run-access.ts';
import { samplePlace, samplePolicy, turnSeed } from '../sample-policy.ts';
import { policyTokenizer } from '../stored-template.ts';

export interface EvaluateDependencies extends GenerateDependencies {
  /** One for each set of servers; missing = those of this process. */
  readonly endpoint?: (servers: readonly EndpointServer[]) => Pick<Endpoint, 'chat'>;
}

type Place = Pick<Rollout, 'group' | 'index' | 'exampleId'>;
type Player = (place: Place) => Pick<PlayOptions, 'openPolicy' | 'sampling'>;

/** How each rollout of an evaluation gets the model that is evaluated. */
export async function openPlayer(
  dependencies: EvaluateDependencies,
  { place: at }: EvaluationHandle,
  { model, environment, seed }: EvaluationInput,
  { journal, signal }: { readonly journal: RolloutJournal; readonly signal: AbortSignal },
): Promise<Player> {
  if (model.kind === 'endpoint') {
    const { endpoint: open = sharedEndpoint } = dependencies;
    const endpoint = open(model.servers);
    const { sampling } = model;
    return ({ exampleId, index }) => ({
      sampling,
      openPolicy: ({ sampling: own = {} }) =>
        chatPolicy({
          endpoint,
          fields: { ...own, ...sampling },
          signal,
          place: samplePlace([at.name, environment.name, exampleId], index),
        }),
    });
  }
  const { run, policy, sampling } = model;
  const spec = await specOf(run);
  const served = await servedPolicy(run, policy);
  const inference = dependencies.inference(spec);
  const tokenizer = await policyTokenizer(run, spec, { folder: served.folder, open: dependencies.tokenizer });
  return (place) => ({
    openPolicy({ isDeterministic, isSingleTurn = false }) {
      const onRecord = isDeterministic && !isSingleTurn;
      const { group, index, exampleId } = place;
      return samplePolicy(
        {
          inference,
          tokenizer,
          served,
          sampling,
          signal,
          place: samplePlace([served.name, 'eval', environment.name, exampleId], index),
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

/** Keeps the version that is evaluated at its servers until it is released; what runs elsewhere has none. */
export async function keepVersion(
  { inference }: Pick<EvaluateDependencies, 'inference'>,
  holder: string,
  { model }: Pick<EvaluationInput, 'model'>,
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
      await servers.release?.(served, holder).catch(() => undefined);
    },
  };
}
