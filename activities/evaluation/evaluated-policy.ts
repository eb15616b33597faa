import type { EvaluationHandle, EvaluationInput } from '../../core/eval/evaluation.ts';
import type { Rollout } from '../../core/rl/rollout.ts';
import { type Endpoint, type EndpointServer, sharedEndpoint } from '../../backends/inference/index.ts';
import { chatPolicy } from '../chat-policy.ts';
import type { GenerateDependencies } from '../generate-rollouts.ts';
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
