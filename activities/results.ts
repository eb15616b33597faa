import { layout, roundOf } from '../core/layout.ts';
import { resultRow, resultsMetadata, type ResultsOf } from '../core/rl/results.ts';
import { withSystemPrompt } from '../core/rl/system-prompt.ts';
import type { Rollout, RolloutRow, ScoredGroup, ScoredRollout } from '../core/rl/rollout.ts';
import type { ObjectRef, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import type { EnvironmentSpec, JsonValue, RunSpec, SamplingSpec } from '../core/spec/run-spec.ts';
import type { Environment } from '../backends/environments/types.ts';
import { encodeJson, encodeRows } from '../backends/store/objects.ts';
import type { Store } from '../backends/store/index.ts';
import { storeOf } from './run-access.ts';

/** Rollouts as verifiers writes them, beside what training reads: for people and viewers, never read by a run. */

/** What an environment's results say about it, wherever they are written. */
export function resultsOf(
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

/** A rollout as training keeps it: the environment's own row lies in the results, and in the chunk it was played in. */
export function withoutRecord(rollout: ScoredRollout): ScoredRollout {
  const { record: _, judged: __, ...kept } = rollout;
  return kept;
}

/**
 * Writes what a scored round was in one environment. From stored objects alone, so twice is once; metadata.json, which comes
 * last, says that it is whole.
 */
export async function storeRoundResults(
  run: RunHandle,
  spec: RunSpec,
  of: {
    readonly round: SamplingRound;
    readonly entry: EnvironmentSpec;
    readonly environment: Environment;
    /** Of this environment, as they lie in the store. */
    readonly groups: readonly ScoredGroup[];
    /** The round's rollouts before they were scored. */
    readonly played: ReadonlyMap<number, readonly Rollout[]>;
    readonly seconds: number;
    /** In place of the environment's own. */
    readonly systemPrompt: string | undefined;
  },
): Promise<void> {
  const { round, entry, environment, groups, played, seconds, systemPrompt } = of;
  const store = storeOf(run);
  const prefix = layout.resultsOfRound(run.lineage, round, entry.name, run.name);
  if ((await store.list(prefix)).includes(`${prefix}metadata.json`)) return;
  const rows = groups.flatMap((group) => {
    const example = withSystemPrompt(environment.dataset.at(group.exampleId), systemPrompt);
    const records = new Map((played.get(group.ordinal) ?? []).map(({ index, record }) => [index, record]));
    const prompt = group.prompt === undefined ? {} : { prompt: group.prompt };
    const place = { step: round.step, group: group.ordinal, policy_version: group.policyStep, ...prompt };
    return group.rollouts.map((rollout) => {
      return resultRow(rollout, { example, record: records.get(rollout.index), tools: environment.tools, place });
    });
  });
  const { rolloutsPerExample, sampling } = spec;
  const about = resultsOf(spec, entry, environment, { sampling, rolloutsPerExample, seconds });
  await storeResults(
    store,
    prefix,
    encodeRows(rows),
    resultsMetadata(
      groups.map(({ rollouts }) => rollouts),
      about,
    ),
  );
}

/** Writes those rows of the rounds' results that became a batch: which of what was sampled was trained. */
export async function storeBatchResults(
  run: RunHandle,
  step: number,
  digest: string,
  sources: readonly {
    readonly scored: ObjectRef;
    readonly groups: readonly ScoredGroup[];
    readonly ordinals: ReadonlySet<number>;
  }[],
): Promise<void> {
  const store = storeOf(run);
  const names = new Set(sources.flatMap(({ groups }) => groups.map(({ environment }) => environment)));
  for (const name of names) {
    const parts: Uint8Array[] = [];
    const trained: ScoredGroup[] = [];
    let about: RolloutRow | null = null;
    for (const { scored, groups, ordinals } of sources) {
      const own = groups.filter(({ environment }) => environment === name);
      const chosen = own.filter(({ ordinal }) => ordinals.has(ordinal));
      const round = roundOf(scored.key);
      if (chosen.length === 0 || round === null) continue;
      const prefix = layout.resultsOfRound(round.lineage, round, name, run.name);
      const [rows, metadata] = await Promise.all([
        store.read(`${prefix}results.jsonl`),
        store.read(`${prefix}metadata.json`),
      ]);
      if (!rows || !metadata) continue; // of a run that an older version of Ratchet sampled
      about = JSON.parse(Buffer.from(metadata).toString('utf8')) as RolloutRow;
      parts.push(
        linesOf(
          rows,
          own.map(({ ordinal, rollouts }) => [rollouts.length, ordinals.has(ordinal)]),
        ),
      );
      trained.push(...chosen);
    }
    if (about === null) continue;
    const whole = trained.map(({ rollouts }) => rollouts);
    const { tools = [], time = 0 } = about;
    const metadata = { ...resultsMetadata(whole, resultsAgain(about)), tools, time };
    await storeResults(
      store,
      layout.resultsOfBatch(run.lineage, step, digest, name, run.name),
      Buffer.concat(parts),
      metadata,
    );
  }
}

/** As the round's metadata.json says. */
function resultsAgain(about: RolloutRow): ResultsOf {
  const versions = about['version_info'] as { readonly vf_version: string; readonly env_version: string | null };
  return {
    environment: about['env_id'] as string,
    args: about['env_args'] as Record<string, JsonValue>,
    model: about['model'] as string,
    baseUrl: about['base_url'] as string,
    rolloutsPerExample: about['rollouts_per_example'] as number,
    sampling: about['sampling_args'] as Record<string, JsonValue>,
    versions: { verifiers: versions.vf_version, environment: versions.env_version },
  };
}

/** The lines of those blocks that are wanted; every block is so many lines. */
function linesOf(bytes: Uint8Array, blocks: readonly (readonly [lines: number, isWanted: boolean])[]): Uint8Array {
  const parts: Uint8Array[] = [];
  let at = 0;
  for (const [lines, isWanted] of blocks) {
    const start = at;
    for (let i = 0; i < lines; i++) at = bytes.indexOf(0x0a, at) + 1;
    if (isWanted) parts.push(bytes.subarray(start, at));
  }
  return Buffer.concat(parts);
}

async function storeResults(store: Store, prefix: string, rows: Uint8Array, metadata: RolloutRow): Promise<void> {
  await store.putIfAbsent(`${prefix}results.jsonl`, rows);
  await store.putIfAbsent(`${prefix}metadata.json`, encodeJson(metadata));
}
