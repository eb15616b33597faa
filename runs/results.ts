import { layout, recordsName } from './layout.ts';
import { type RecordRow, resultsMetadata, type ResultsOf } from '../core/rl/results.ts';
import type { Rollout, ScoredGroup, ScoredRollout } from '../core/rl/rollout.ts';
import { groupSizeOf } from '../core/rl/selection.ts';
import type { RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import type { EnvironmentSpec, JsonValue, RunSpec, SamplingSpec } from '../config/run-spec.ts';
import type { Environment } from '../backends/environments/types.ts';
import { encodeJson, packRows } from '../backends/store/objects.ts';
import { storeOf } from './run-access.ts';

/** Rollouts as verifiers writes them, beside what training reads: for people and viewers, never read by a run. */

/** What an environment's results say about it, wherever they are written. */
function resultsOf(
  spec: Pick<RunSpec, 'name' | 'inference'>,
  { id, args, python }: Pick<EnvironmentSpec, 'id' | 'args' | 'python'>,
  { tools }: Pick<Environment, 'tools'>,
  more: { readonly sampling: SamplingSpec; readonly rolloutsPerExample: number; readonly seconds?: number },
): ResultsOf {
  const { sampling, ...rest } = more;
  const { inference } = spec;
  return {
    environment: id,
    args,
    model: spec.name,
    baseUrl: 'url' in inference ? [inference.url ?? ''].flat().join(' ') : '',
    sampling: samplingArgs(sampling),
    tools,
    ...(python ? { versions: { verifiers: python.verifiers, environment: python.version } } : {}),
    ...rest,
  };
}

function samplingArgs({
  maxTokens,
  temperature,
  topP,
  topK,
  minP,
  seed,
  stop,
}: SamplingSpec): Record<string, JsonValue> {
  const extra = { ...(topK === null ? {} : { top_k: topK }), ...(minP === 0 ? {} : { min_p: minP }) };
  return {
    max_tokens: maxTokens,
    temperature,
    top_p: topP,
    ...(seed == null ? {} : { seed }),
    ...(stop.length === 0 ? {} : { stop: [...stop] }),
    n: 1,
    extra_body: extra,
  };
}

/** A rollout as training keeps it: the environment's own row lies beside the results. */
export function withoutRecord(rollout: ScoredRollout): ScoredRollout {
  const { record: _, judged: __, ...kept } = rollout;
  return kept;
}

/**
 * Writes what scored groups of a chunk were in its environment: its metadata.json, and the rows of those of its rollouts that the environment wrote
 * itself. All else lies in the scored object. From stored objects alone, so twice is once; metadata.json, which comes last, says that it is whole.
 */
export async function storeChunkResults(
  run: RunHandle,
  spec: RunSpec,
  of: {
    readonly round: SamplingRound;
    /** Of the scored object: that of the chunk, or of a part of it. */
    readonly name: string;
    readonly entry: EnvironmentSpec;
    readonly environment: Environment;
    /** As they lie in the store. */
    readonly groups: readonly ScoredGroup[];
    /** Their rollouts before they were scored. */
    readonly played: ReadonlyMap<number, readonly Rollout[]>;
    readonly seconds: number;
  },
): Promise<void> {
  const { round, name, entry, environment, groups, played, seconds } = of;
  const store = storeOf(run);
  const whose = { environment: entry.name, run: run.name, chunk: name };
  const prefix = layout.resultsOfChunk(run.lineage, round, whose);
  if ((await store.list(prefix)).includes(`${prefix}metadata.json`)) return;
  const records = groups.flatMap(({ ordinal }): RecordRow[] =>
    (played.get(ordinal) ?? []).flatMap(({ index, record }) => (record ? [{ group: ordinal, index, record }] : [])),
  );
  if (records.length > 0) await store.putIfAbsent(`${prefix}${recordsName}`, await packRows(records));
  const { sampling } = spec;
  const rolloutsPerExample = groupSizeOf(spec, entry.name);
  const about = resultsOf(spec, entry, environment, { sampling, rolloutsPerExample, seconds });
  const rollouts = groups.map((group) => group.rollouts);
  await store.putIfAbsent(`${prefix}metadata.json`, encodeJson(resultsMetadata(rollouts, about)));
}
