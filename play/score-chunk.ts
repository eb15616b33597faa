import PQueue from 'p-queue';
import { layout } from '../runs/layout.ts';
import { groupsJudgedAtOnce } from '../core/limits.ts';
import { groupsOfChunk, type RoundChunk } from '../core/rl/sampling/chunks.ts';
import type { GroupLease, Rollout, ScoredGroup } from '../core/rl/rollout/rollout.ts';
import { needsVocabulary, settleRollout } from '../core/rl/rollout/settle-rollout.ts';
import type { ObjectRef, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import { textsOfPrompts } from '../runs/rollouts/prompts-in-use.ts';
import { storeChunkResults, withoutRecord } from '../runs/rollouts/results.ts';
import { specOf, storeOf } from '../runs/run-access.ts';
import { storeScored } from '../runs/rollouts/scored-groups.ts';
import { vocabularySizeOf } from '../runs/rollouts/vocabulary.ts';
import type { Environments } from '../backends/environments/index.ts';
import { environmentsOfRun } from './environment-users.ts';
import { demonstrationOf } from '../backends/environments/what-is-lacking.ts';
import { scoreExample } from './score-example.ts';
import { readLeases } from '../runs/rollouts/leases.ts';

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

/** Rollouts by group, as generated. */
export type PlayedGroups = ReadonlyMap<number, readonly Rollout[]>;

/** The rubric of a chunk's environment, and filters of single rollouts. */
export interface ChunkScorer {
  /** Leases of the chunk's groups. */
  readonly leases: readonly GroupLease[];
  score(lease: GroupLease, members: readonly Rollout[]): Promise<ScoredGroup>;
  /**
   * Stores scored groups under a name, with readable results. The first writer wins: an existing object is returned.
   * Without `groups`, returns null if nothing is stored under the name.
   */
  store(name: string, groups: readonly ScoredGroup[] | null, played: PlayedGroups): Promise<ScoredChunk | null>;
}

/** Independent of the process that generates the rollouts. All groups of a chunk belong to one environment. */
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
  // More at once with a judge, which may be slow.
  const queue = new PQueue({ concurrency: environment.judge ? groupsJudgedAtOnce : 1 });
  const scoreNow = async (lease: GroupLease, members: readonly Rollout[]): Promise<ScoredGroup> => {
    const vocabularySize = await vocabulary();
    const around = { dataset: 'dataset', systemPrompt: systemPrompts.get(name), timeoutMs, signal } as const;
    const { example, scored } = await scoreExample(environment, members, { ...around, exampleId: lease.exampleId });
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

function once<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | undefined;
  return () => (made ??= make());
}
