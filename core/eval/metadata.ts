import { environmentName, unnumberedName } from '../names.ts';
import { present } from '../present.ts';
import { toolOfMetadata } from '../rl/rollout/results.ts';
import type { RolloutRow, ToolSchema } from '../rl/rollout/rollout.ts';
import type { JsonValue } from '../json-value.ts';
import type { EvaluationInput, EvaluationTally } from './evaluation.ts';
import { passFigures, passThreshold } from './pass-at-k.ts';
import { averageError, averageMetrics, averageReward, averageUsage, costOf } from './tally.ts';

/** Inputs of an evaluation's metadata. */
interface MetadataOf {
  readonly input: Pick<EvaluationInput, 'environment' | 'model' | 'rolloutsPerExample' | 'shuffleSeed' | 'prices'>;
  /** Examples that are to be evaluated, finished or not. */
  readonly examples: number;
  readonly tally: EvaluationTally;
  readonly seconds: number;
  /** Tools of all its rollouts; null if they differ or there are none. */
  readonly tools: readonly ToolSchema[] | null;
  /** The environment's own sampling settings, used where the evaluation has none. */
  readonly environmentSampling?: Readonly<Record<string, JsonValue>> | undefined;
}

/**
 * `metadata.json` in the format of verifiers 0.3.1 (`GenerateOutputsBuilder.build_metadata`, without `date` and
 * `path_to_save`). Rollouts that failed through infrastructure count only in `avg_error`; verifiers counts them as
 * rewards of 0.
 */
export function evaluationMetadata({
  input,
  examples,
  tally,
  seconds,
  tools,
  environmentSampling = {},
}: MetadataOf): RolloutRow {
  const { environment, model, rolloutsPerExample, shuffleSeed } = input;
  const { atK, allK } = passFigures(rolloutsPerExample, tally.examplesByRight);
  const cost = costOf(tally, input.prices);
  const { python } = environment;
  const given = unnumberedName(environment.name, environment.id);
  const isNamed = given !== environmentName(environment.id) && given !== environmentId(environment.id);
  return {
    env_id: python ? environmentId(environment.id) : environmentName(environment.id),
    env_args: environment.args,
    ...present({ system_prompt: environment.systemPrompt }),
    model: model.model,
    base_url: baseUrlOf(input),
    num_examples: examples,
    rollouts_per_example: rolloutsPerExample,
    shuffle: shuffleSeed !== null,
    shuffle_seed: shuffleSeed,
    sampling_args: samplingArgs(input, environmentSampling),
    time: seconds,
    avg_reward: averageReward(tally) ?? 0,
    avg_metrics: averageMetrics(tally),
    avg_error: averageError(tally),
    pass_at_k: atK,
    pass_all_k: allK,
    pass_threshold: passThreshold,
    usage: averageUsage(tally),
    ...(cost === null
      ? {}
      : { cost: { input_usd: cost.input, output_usd: cost.output, total_usd: cost.input + cost.output } }),
    version_info: {
      vf_version: python?.verifiers ?? '',
      vf_commit: null,
      env_version: python?.version ?? null,
      env_commit: null,
    },
    state_columns: [...(environment.stateColumns ?? [])],
    tools: tools === null ? null : tools.map(toolOfMetadata),
    ...present({ name: isNamed ? environment.name : undefined }),
  };
}

/** verifiers' form of the id: without owner and version. */
function environmentId(id: string): string {
  return id.split('/').at(-1)!.split('@', 1)[0]!;
}

function baseUrlOf({ model }: MetadataOf['input']): string {
  return model.kind === 'endpoint' ? model.servers.map(({ baseUrl }) => baseUrl).join(',') : '';
}

/** Requested sampling settings, with verifiers' own additions. */
function samplingArgs(
  { model }: MetadataOf['input'],
  own: Readonly<Record<string, JsonValue>>,
): Record<string, JsonValue> {
  const common = { n: 1, extra_body: {}, ...own, max_tokens: null };
  if (model.kind === 'endpoint') return { ...common, ...model.sampling };
  const { maxTokens, temperature, topP, topK, minP, seed, stop } = model.sampling;
  const extra = present({ top_k: topK ?? undefined, min_p: minP === 0 ? undefined : minP });
  return {
    ...common,
    max_tokens: maxTokens,
    temperature,
    ...(topP === 1 ? {} : { top_p: topP }),
    ...(seed == null ? {} : { seed }),
    ...(stop.length === 0 ? {} : { stop: [...stop] }),
    extra_body: extra,
  };
}
