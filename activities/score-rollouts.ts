import PQueue from 'p-queue';
import { layout } from '../runs/layout.ts';
import { groupsJudgedAtOnce } from '../core/limits.ts';
import type { LostWork } from '../core/rl/lost-work.ts';
import type { GroupLease, Rollout, ScoredGroup } from '../core/rl/rollout.ts';
import { withSystemPrompt } from '../core/rl/system-prompt.ts';
import { needsVocabulary, settleRollout } from '../core/rl/settle-rollout.ts';
import type { LeasedGroups, ObjectRef, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import { environments as allEnvironments, type Environments } from '../backends/environments/index.ts';
import { scoreGroup } from '../backends/environments/score-group.ts';
import type { Environment } from '../backends/environments/types.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { decodeRows, packRows } from '../backends/store/objects.ts';
import { lastProgress, withHeartbeat } from './around/heartbeat.ts';
import { textsOfPrompts } from '../runs/prompts-in-use.ts';
import { storeRoundResults, withoutRecord } from '../runs/results.ts';
import { readJson, readRows, specOf, storeOf } from '../runs/run-access.ts';
import { vocabularySizeOf } from '../runs/vocabulary.ts';
import { lostIn, type WorkProgress, WorkUnderWay } from './around/work-under-way.ts';

interface ScoreInput {
  readonly run: RunHandle;
  readonly round: SamplingRound;
  readonly finished: readonly ObjectRef[];
}

/**
 * The rubric over stored rollouts, and filters of single ones: it needs nothing of the processes that generated them. Whoever scores first decides: a
 * retry returns what is stored.
 */
export const createScoreRollouts =
  ({ environments = allEnvironments }: { readonly environments?: Environments }) =>
  async (input: ScoreInput): Promise<{ scored: ObjectRef; seconds: number; lost?: LostWork }> => {
    const work = new WorkUnderWay(lastProgress<WorkProgress>());
    const score = async (signal: AbortSignal) => {
      const { run, round, finished } = input;
      work.goOnFrom(null);
      const startedAt = performance.now();
      const seconds = () => (performance.now() - startedAt) / 1000;
      const key = layout.scored(run.lineage, round);
      const store = storeOf(run);
      const spec = await specOf(run);
      const { leases, policy, prompts } = await readJson<LeasedGroups>(run, round.leases);
      const systemPrompts = await textsOfPrompts(run, prompts);
      const played = await playedGroups(run, finished);
      const names = [...new Set(leases.map(({ environment }) => environment))];
      const entries = new Map(spec.environments.map((entry) => [entry.name, entry]));
      /** Those of one environment side by side with the others': a judge may be slow. */
      const forEach = <T>(visit: (name: string, environment: Environment) => Promise<T>) =>
        Promise.all(names.map(async (name) => visit(name, await environments.open(entries.get(name)!))));
      const keepResults = (groups: readonly ScoredGroup[], took: number) =>
        forEach(async (name, environment) => {
          const own = groups.filter((group) => group.environment === name);
          const of = {
            round,
            entry: entries.get(name)!,
            environment,
            groups: own,
            played,
            seconds: took,
          };
          await storeRoundResults(run, spec, of);
        });

      const known = await store.read(key);
      if (known) {
        const groups = decodeRows<ScoredGroup>(known, key);
        await keepResults(groups, seconds());
        return { scored: refTo(key, known, groups.length), seconds: seconds(), ...lostIn(work.lost) };
      }
      work.begin('all of it');
      const timeoutMs = spec.generationTimeoutS * 1000;
      const vocabularySize = needsVocabulary(spec) ? await vocabularySizeOf(run, policy) : 0;
      const groups = await forEach((name, environment) => {
        const queue = new PQueue({ concurrency: environment.judge ? groupsJudgedAtOnce : 1 });
        const onScored = ({ group, index }: Rollout) => work.finish(`${group}/${index}`);
        const own = leases.filter((one) => one.environment === name);
        const score = async (lease: GroupLease): Promise<ScoredGroup> => {
          const example = withSystemPrompt(environment.dataset.at(lease.exampleId), systemPrompts.get(name));
          const members = (played.get(lease.ordinal) ?? []).toSorted((a, b) => a.index - b.index);
          const around = { timeoutMs, dataset: 'dataset', onScored, signal } as const;
          const scored = await scoreGroup(environment, example, members, around);
          const settled = scored.map((rollout) => settleRollout(withoutRecord(rollout), spec, vocabularySize));
          const hasRecords = members.length > 0 && members.every(({ record }) => record !== undefined);
          return { ...lease, rollouts: settled, ...(hasRecords ? {} : { example }) };
        };
        return queue.addAll(own.map((lease) => () => score(lease)));
      });
      const inOrder = groups.flat().sort((a, b) => a.ordinal - b.ordinal);
      const { stored, bytes } = await store.putIfAbsent(key, await packRows(inOrder));
      await keepResults(stored ? inOrder : decodeRows<ScoredGroup>(bytes, key), seconds());
      return { scored: refTo(key, bytes, inOrder.length), seconds: seconds(), ...lostIn(work.lost) };
    };
    return withHeartbeat(
      (signal) => score(signal).finally(() => work.end()),
      () => work.progress(),
    );
  };

/** What generation left, by group. */
async function playedGroups(run: RunHandle, finished: readonly ObjectRef[]): Promise<Map<number, Rollout[]>> {
  const played = new Map<number, Rollout[]>();
  for (const rollout of (await Promise.all(finished.map((ref) => readRows<Rollout>(run, ref)))).flat()) {
    const group = played.get(rollout.group);
    if (group) group.push(rollout);
    else played.set(rollout.group, [rollout]);
  }
  return played;
}

function refTo(key: string, bytes: Uint8Array, count: number): ObjectRef {
  return { key, sha256: sha256(bytes), bytes: bytes.byteLength, count };
}
