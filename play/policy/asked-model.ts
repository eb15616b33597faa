import { speechSettingsOf } from '../../config/models/speech-settings.ts';
import type { EvaluatedModel } from '../../core/eval/evaluation.ts';
import type { Turn } from '../../core/rl/rollout/rollout.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { Environments } from '../../backends/environments/index.ts';
import { type Endpoint, type EndpointServer, type Inference, sharedEndpoint } from '../../backends/inference/index.ts';
import { chatPolicy } from './chat-policy.ts';
import type { PlayOptions } from '../play-rollout.ts';
import { servedPolicy, specOf } from '../../runs/run-access.ts';
import { type OnTurn, samplePlace, type SamplePolicyOptions } from './sample-policy.ts';
import { type OpenTokenizer, policyTokenizer } from './policy-tokenizer.ts';
import type { TeacherDependencies } from '../teacher/teacher.ts';

/** Dependencies for sampling a run's own versions. */
export interface GenerateDependencies extends Pick<TeacherDependencies, 'teacher'> {
  readonly inference: (spec: RunSpec) => Inference;
  readonly tokenizer: OpenTokenizer;
  readonly environments?: Environments;
  /** Seconds from which a chunk stores and reports its groups in parts; missing = those of core/rl/sampling/window.ts. */
  readonly slowPlayS?: number;
}

/** Dependencies for evaluations and searches, which may ask any model. */
export interface AskDependencies extends GenerateDependencies {
  /** One for each set of servers; missing = those of this process. */
  readonly endpoint?: (
    servers: readonly EndpointServer[],
  ) => Pick<Endpoint, 'chat'> & Partial<Pick<Endpoint, 'silence'>>;
}

/** The way in which a rollout gets its model. */
export type OpenPolicy = Pick<PlayOptions, 'openPolicy' | 'sampling'>;

/** Calls of a rollout that its earlier attempts stored, and storing further ones. */
interface StoredCalls {
  readonly recorded: () => readonly Turn[];
  readonly onTurn: OnTurn;
}

/** A model that is asked by messages; `path` and `index` name the rollout. */
export function askEndpoint(
  { endpoint: open = sharedEndpoint }: Pick<AskDependencies, 'endpoint'>,
  { servers, sampling }: Extract<EvaluatedModel, { kind: 'endpoint' }>,
  signal: AbortSignal,
): (path: readonly (string | number)[], index: number, calls?: StoredCalls) => OpenPolicy {
  const endpoint = open(servers);
  return (path, index, calls) => ({
    sampling,
    openPolicy: ({ sampling: own = {} }, _until, budget) =>
      chatPolicy({
        ...(calls && {
          recorded: calls.recorded(),
          onTurn: (turn, i) => (turn.call ? calls.onTurn(turn, i) : undefined),
        }),
        endpoint,
        fields: { ...own, ...sampling },
        signal,
        place: samplePlace(path, index),
        budget,
      }),
  });
}

/** Why none of a model's servers answers at the moment; null while one does, or when it is unknown. */
export function silentServers(
  { endpoint: open = sharedEndpoint }: Pick<AskDependencies, 'endpoint'>,
  model: EvaluatedModel,
): string | null {
  return model.kind === 'endpoint' ? (open(model.servers).silence?.() ?? null) : null;
}

/** A version of a run, ready to be sampled from token by token. */
export async function openVersion(
  dependencies: GenerateDependencies,
  { run, policy, sampling }: Extract<EvaluatedModel, { kind: 'version' }>,
): Promise<Pick<SamplePolicyOptions, 'inference' | 'tokenizer' | 'served' | 'sampling' | 'parsers'>> {
  const spec = await specOf(run);
  const served = await servedPolicy(run, policy);
  const inference = dependencies.inference(spec);
  const tokenizer = await policyTokenizer(run, spec, {
    folder: served.folder,
    open: dependencies.tokenizer,
  });
  return {
    inference,
    tokenizer,
    served,
    sampling,
    parsers: speechSettingsOf(spec),
  };
}
