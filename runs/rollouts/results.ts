import { present } from '../../core/present.ts';
import { layout, recordsName } from '../layout.ts';
import { type RecordRow, resultsMetadata, type ResultsOf } from '../../core/rl/rollout/results.ts';
import type { Rollout, ScoredGroup, ScoredRollout } from '../../core/rl/rollout/rollout.ts';
import { groupSizeOf } from '../../core/rl/learning/selection.ts';
import type { RunHandle, SamplingRound } from '../../core/rl/run-state.ts';
import type { EnvironmentSpec, JsonValue, RunSpec, SamplingSpec } from '../../config/run-spec.ts';
import { encodeJson, packRows } from '../../store/objects.ts';
import { storeOf } from '../run-access.ts';

/** Rollouts in verifiers' format, besides what training reads: for people and viewers, never read by a run. */

/** Facts about an environment's results that are the same wherever they are written. */
function resultsOf(
  spec: Pick<RunSpec, 'name' | 'inference'>,
  { id, args, python }: Pick<EnvironmentSpec, 'id' | 'args' | 'python'>,
  { tools }: Pick<ResultsOf, 'tools'>,
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
    ...present({ versions: python ? { verifiers: python.verifiers, environment: python.version } : undefined }),
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
  const extra = present({ top_k: topK ?? undefined, min_p: minP === 0 ? undefined : minP });
  return {
    max_tokens: maxTokens,
    temperature,
    top_p: topP,
    ...present({ seed: seed ?? undefined, stop: stop.length === 0 ? undefined : [...stop] }),
    n: 1,
    extra_body: extra,
  };
}

/** A rollout as training stores it, without the environment's own row, which is stored beside the results. */
export function withoutRecord(rollout: ScoredRollout): ScoredRollout {
  const { record: _, judged: __, ...kept } = rollout;
  return kept;
}

/**
 * Writes results of a chunk's scored groups in one environment: its metadata.json, and the rows that the environment
 * wrote itself. All else is in the scored object. Idempotent, since it reads stored objects only; metadata.json comes
 * last and marks them complete.
 */
export async function storeChunkResults(
  run: RunHandle,
  spec: RunSpec,
  of: {
    readonly round: SamplingRound;
    /** Name of the scored object: the chunk's, or that of a part of it. */
    readonly name: string;
    readonly entry: EnvironmentSpec;
    readonly environment: Pick<ResultsOf, 'tools'>;
    /** Rows as stored. */
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
