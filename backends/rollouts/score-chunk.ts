import PQueue from 'p-queue';
import { layout } from '../../runs/layout.ts';
import { groupsJudgedAtOnce } from '../../core/limits.ts';
import { chunkName, groupsOfChunk, type RoundChunk } from '../../core/rl/chunks.ts';
import type { GroupLease, Rollout, ScoredGroup } from '../../core/rl/rollout.ts';
import { needsVocabulary, settleRollout } from '../../core/rl/settle-rollout.ts';
import type { ObjectRef, RunHandle, SamplingRound } from '../../core/rl/run-state.ts';
import { withSystemPrompt } from '../../core/rl/system-prompt.ts';
import { textsOfPrompts } from '../../runs/prompts-in-use.ts';
import { storeChunkResults, withoutRecord } from '../../runs/results.ts';
import { readRows, specOf, storeOf } from '../../runs/run-access.ts';
import { scoredWithRound, storeScored } from '../../runs/scored-groups.ts';
import { vocabularySizeOf } from '../../runs/vocabulary.ts';
import type { Environments } from '../environments/index.ts';
import { environmentsOfRun } from './environment-users.ts';
import { scoreGroup } from '../environments/score-group.ts';
import { demonstrationOf } from '../environments/what-is-lacking.ts';
import { readLeases } from '../../runs/leases.ts';

export interface ScoredChunk {
  /** → {@link ScoredGroup} */
  readonly scored: ObjectRef;
  readonly groups: readonly ScoredGroup[];
  readonly seconds: number;
}

export interface OfChunk {
  readonly run: RunHandle;
  readonly round: SamplingRound;
  readonly chunk: RoundChunk;
}

/** Rollouts by group, as they were played. */
export type PlayedGroups = ReadonlyMap<number, readonly Rollout[]>;

/** The rubric of a chunk's environment, and filters of single rollouts. */
export interface ChunkScorer {
  /** Of the chunk. */
  readonly leases: readonly GroupLease[];
  score(lease: GroupLease, members: readonly Rollout[]): Promise<ScoredGroup>;
  /**
   * Stores scored groups under a name, and what they were for people. Whoever stores first decides: what lies there is given. A name of which
   * nothing lies there needs `groups`, and gives null without.
   */
  store(name: string, groups: readonly ScoredGroup[] | null, played: PlayedGroups): Promise<ScoredChunk | null>;
}

/** It needs nothing of the process that generates the rollouts. All groups of a chunk are of one environment. */
export async function openScorer(
  { environments }: { readonly environments?: Environments },
  { run, round, chunk }: OfChunk,
  signal: AbortSignal,
): Promise<ChunkScorer> {
  const startedAt = performance.now();
  const store = storeOf(run);
  const spec = await specOf(run);
  const { leases: ofRound, policy, prompts } = await readLeases(run, round.leases);
  const leases = groupsOfChunk(ofRound, chunk);
  const systemPrompts = await textsOfPrompts(run, prompts);
  const name = leases[0]!.environment;
  const entry = spec.environments.find((one) => one.name === name)!;
  const environment = await environmentsOfRun(environments, run).open(entry);
  const timeoutMs = spec.generationTimeoutS * 1000;
  const vocabulary = once(() => (needsVocabulary(spec) ? vocabularySizeOf(run, policy) : Promise.resolve(0)));
  // A judge may be slow.
  const queue = new PQueue({ concurrency: environment.judge ? groupsJudgedAtOnce : 1 });
  const scoreNow = async (lease: GroupLease, members: readonly Rollout[]): Promise<ScoredGroup> => {
    const example = withSystemPrompt(environment.dataset.at(lease.exampleId), systemPrompts.get(name));
    const vocabularySize = await vocabulary();
    const scored = await scoreGroup(environment, example, members, { timeoutMs, dataset: 'dataset', signal });
    const settled = scored.map((rollout) => settleRollout(withoutRecord(rollout), spec, vocabularySize));
    const hasRecords = members.length > 0 && members.every(({ record }) => record !== undefined);
    const demonstration = demonstrationOf(spec, { ...lease, example, rollouts: scored });
    return {
      ...lease,
      rollouts: settled,
      ...(demonstration === undefined ? {} : { demonstration }),
      ...(hasRecords ? {} : { example }),
    };
  };
  return {
    leases,
    score: (lease, members) =>
      queue.add(() =>
        scoreNow(
          lease,
          members.toSorted((a, b) => a.index - b.index),
        ),
      ),
    async store(part, groups, played) {
      const key = layout.scored(run.lineage, round, part);
      const proposed = groups?.toSorted((a, b) => a.ordinal - b.ordinal);
      const found = await storeScored(store, key, proposed ?? null);
      if (found === null) return null;
      const seconds = (performance.now() - startedAt) / 1000;
      const about = { round, name: part, entry, environment, groups: found.groups, played, seconds };
      await storeChunkResults(run, spec, about);
      return { ...found, seconds };
    },
  };
}

/** All groups of a chunk, from its stored rollouts. A retry returns what is stored. */
export async function scoreChunk(
  dependencies: { readonly environments?: Environments },
  of: OfChunk,
  { finished, signal }: { readonly finished: ObjectRef; readonly signal: AbortSignal },
): Promise<ScoredChunk> {
  const name = chunkName(of.chunk);
  const played = await playedGroups(of.run, finished);
  const scorer = await openScorer(dependencies, of, signal);
  const known = await scorer.store(name, null, played);
  if (known) return known;
  const ordinals = scorer.leases.map(({ ordinal }) => ordinal);
  const groups =
    (await scoredWithRound(storeOf(of.run), of.run.lineage, of.round, ordinals)) ??
    (await Promise.all(scorer.leases.map((lease) => scorer.score(lease, played.get(lease.ordinal) ?? []))));
  return (await scorer.store(name, groups, played))!;
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

function once<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | undefined;
  return () => (made ??= make());
}
