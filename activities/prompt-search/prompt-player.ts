import type { EvaluatedEnvironment } from '../../core/eval/evaluation.ts';
import type { PromptSearchInput } from '../../core/gepa/prompt-search.ts';
import type { Rollout } from '../../core/rl/rollout.ts';
import { sharedEndpoint } from '../../backends/inference/index.ts';
import { chatPolicy } from '../chat-policy.ts';
import type { EvaluateDependencies } from '../evaluation/evaluated-policy.ts';
import type { PlayOptions } from '../play-rollout.ts';
import { servedPolicy, specOf } from '../run-access.ts';
import { samplePlace, samplePolicy, turnSeed } from '../sample-policy.ts';
import { policyTokenizer } from '../stored-template.ts';

type Place = Pick<Rollout, 'group' | 'index' | 'exampleId'>;

/** How a rollout gets the model whose prompt is searched; `session` names the rollout. */
export type OpenPolicy = (place: Place, session: string) => Pick<PlayOptions, 'openPolicy' | 'sampling'>;

/**
 * A version of a run is sampled with random numbers keyed by the example: two prompts are compared on the same draws. An API draws as
 * it likes.
 */
export async function openPromptPlayer(
  dependencies: EvaluateDependencies,
  of: { readonly input: PromptSearchInput; readonly environment: EvaluatedEnvironment; readonly signal: AbortSignal },
): Promise<OpenPolicy> {
  const { input, environment, signal } = of;
  const { model, seed, results } = input;
  if (model.kind === 'endpoint') {
    const { endpoint: open = sharedEndpoint } = dependencies;
    const endpoint = open(model.servers);
    const { sampling } = model;
    return ({ index }, session) => ({
      sampling,
      openPolicy: ({ sampling: own = {} }) =>
        chatPolicy({
          endpoint,
          fields: { ...own, ...sampling },
          signal,
          place: samplePlace([results.name, environment.name, session], index),
        }),
    });
  }
  const { run, policy, sampling } = model;
  const spec = await specOf(run);
  const served = await servedPolicy(run, policy);
  const inference = dependencies.inference(spec);
  const tokenizer = await policyTokenizer(run, spec, { folder: served.folder, open: dependencies.tokenizer });
  return ({ index, exampleId }, session) => ({
    openPolicy: () =>
      samplePolicy(
        { inference, tokenizer, served, sampling, signal, place: samplePlace([served.name, 'gepa', session], index) },
        (turn) => turnSeed('gepa', seed, environment.name, exampleId, index, turn),
      ),
  });
}
