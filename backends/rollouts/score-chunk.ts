import PQueue from 'p-queue';
import { layout } from '../../runs/layout.ts';
import { groupsJudgedAtOnce } from '../../core/limits.ts';
import { chunkName, groupsOfChunk, type RoundChunk } from '../../core/rl/chunks.ts';
import type { GroupLease, Rollout, ScoredGroup } from '../../core/rl/rollout.ts';
import { needsVocabulary, settleRollout } from '../../core/rl/settle-rollout.ts';
import type { LeasedGroups, ObjectRef, RunHandle, SamplingRound } from '../../core/rl/run-state.ts';
import { withSystemPrompt } from '../../core/rl/system-prompt.ts';
import { textsOfPrompts } from '../../runs/prompts-in-use.ts';
import { storeChunkResults, withoutRecord } from '../../runs/results.ts';
import { readJson, readRows, specOf, storeOf } from '../../runs/run-access.ts';
import { vocabularySizeOf } from '../../runs/vocabulary.ts';
import { environments as allEnvironments, type Environments } from '../environments/index.ts';
import { scoreGroup } from '../environments/score-group.ts';
import { sha256 } from '../store/file-store.ts';
import { decodeRows, packRows } from '../store/objects.ts';

export interface ScoredChunk {
  /** → {@link ScoredGroup} */
  readonly scored: ObjectRef;
  readonly groups: readonly ScoredGroup[];
  readonly seconds: number;
}

/**
 * The rubric over the stored rollouts of a chunk, and filters of single ones: it needs nothing of the process that generated them. Whoever
 * scores first decides: a retry returns what is stored.
 */
export async function scoreChunk(
  { environments = allEnvironments }: { readonly environments?: Environments },
  { run, round, chunk }: { readonly run: RunHandle; readonly round: SamplingRound; readonly chunk: RoundChunk },
  { finished, signal }: { readonly finished: ObjectRef; readonly signal: AbortSignal },
): Promise<ScoredChunk> {
  const startedAt = performance.now();
  const seconds = () => (performance.now() - startedAt) / 1000;
  const key = layout.scored(run.lineage, round, chunkName(chunk));
  const store = storeOf(run);
  const spec = await specOf(run);
  const { leases: ofRound, policy, prompts } = await readJson<LeasedGroups>(run, round.leases);
  const leases = groupsOfChunk(ofRound, chunk);
  const systemPrompts = await textsOfPrompts(run, prompts);
  const played = await playedGroups(run, finished);
  const entries = new Map(spec.environments.map((entry) => [entry.name, entry]));
  const names = [...new Set(leases.map(({ environment }) => environment))];
  const opened = new Map(
    await Promise.all(names.map(async (name) => [name, await environments.open(entries.get(name)!)] as const)),
  );
  const keepResults = async (groups: readonly ScoredGroup[], took: number): Promise<void> => {
    for (const [name, environment] of opened) {
      const own = groups.filter((group) => group.environment === name);
      const of = { round, chunk, entry: entries.get(name)!, environment, groups: own, played, seconds: took };
      await storeChunkResults(run, spec, of);
    }
  };

  const known = await store.read(key);
  if (known) {
    const groups = decodeRows<ScoredGroup>(known, key);
    await keepResults(groups, seconds());
    return { scored: refTo(key, known, groups.length), groups, seconds: seconds() };
  }
  const vocabularySize = needsVocabulary(spec) ? await vocabularySizeOf(run, policy) : 0;
  const timeoutMs = spec.generationTimeoutS * 1000;
  const score = async (lease: GroupLease): Promise<ScoredGroup> => {
    const environment = opened.get(lease.environment)!;
    const systemPrompt = systemPrompts.get(lease.environment);
    const example = withSystemPrompt(environment.dataset.at(lease.exampleId), systemPrompt);
    const members = (played.get(lease.ordinal) ?? []).toSorted((a, b) => a.index - b.index);
    const scored = await scoreGroup(environment, example, members, { timeoutMs, dataset: 'dataset', signal });
    const settled = scored.map((rollout) => settleRollout(withoutRecord(rollout), spec, vocabularySize));
    const hasRecords = members.length > 0 && members.every(({ record }) => record !== undefined);
    return { ...lease, rollouts: settled, ...(hasRecords ? {} : { example }) };
  };
  /** Those of one environment side by side with the others': a judge may be slow. */
  const scored = await Promise.all(
    [...opened].map(([name, environment]) => {
      const queue = new PQueue({ concurrency: environment.judge ? groupsJudgedAtOnce : 1 });
      const own = leases.filter(({ environment }) => environment === name);
      return queue.addAll(own.map((lease) => () => score(lease)));
    }),
  );
  const inOrder = scored.flat().sort((a, b) => a.ordinal - b.ordinal);
  const { stored, bytes } = await store.putIfAbsent(key, await packRows(inOrder));
  const groups = stored ? inOrder : decodeRows<ScoredGroup>(bytes, key);
  await keepResults(groups, seconds());
  return { scored: refTo(key, bytes, groups.length), groups, seconds: seconds() };
}

/** What generation left, by group. */
async function playedGroups(run: RunHandle, finished: ObjectRef): Promise<Map<number, Rollout[]>> {
  const played = new Map<number, Rollout[]>();
  for (const rollout of await readRows<Rollout>(run, finished)) {
    const group = played.get(rollout.group);
    if (group) group.push(rollout);
    else played.set(rollout.group, [rollout]);
  }
  return played;
}

function refTo(key: string, bytes: Uint8Array, count: number): ObjectRef {
  return { key, sha256: sha256(bytes), bytes: bytes.byteLength, count };
}
