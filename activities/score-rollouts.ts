import { layout } from '../core/layout.ts';
import type { LostWork } from '../core/rl/lost-work.ts';
import type { Rollout, ScoredGroup } from '../core/rl/rollout.ts';
import { needsVocabulary, settleRollout } from '../core/rl/settle-rollout.ts';
import type { LeasedGroups, ObjectRef, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import { environments as allEnvironments, type Environments } from '../backends/environments/index.ts';
import { scoreRollout } from '../backends/environments/score.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { countRows, encodeRows } from '../backends/store/objects.ts';
import { lastProgress, withHeartbeat } from './heartbeat.ts';
import { readJson, readRows, specOf, storeOf } from './run-access.ts';
import { vocabularySizeOf } from './vocabulary.ts';
import { lostIn, type WorkProgress, WorkUnderWay } from './work-under-way.ts';

export interface ScoreInput {
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
    const score = async () => {
      const { run, round, finished } = input;
      work.goOnFrom(null);
      const startedAt = performance.now();
      const seconds = () => (performance.now() - startedAt) / 1000;
      const key = `${layout.round(run.lineage, round.step, round.first, round.last)}scored.jsonl`;
      const store = storeOf(run);
      const known = await store.read(key);
      if (known) return { scored: refTo(key, known), seconds: seconds(), ...lostIn(work.lost) };
      work.begin('all of it');

      const spec = await specOf(run);
      const timeoutMs = spec.generationTimeoutS * 1000;
      const entries = new Map(spec.environments.map((entry) => [entry.name, entry]));
      const { leases, policy } = await readJson<LeasedGroups>(run, round.leases);
      const vocabularySize = needsVocabulary(spec) ? await vocabularySizeOf(run, policy) : 0;
      const rollouts = new Map<number, Rollout[]>();
      for (const ref of finished) {
        for (const rollout of await readRows<Rollout>(run, ref)) {
          const group = rollouts.get(rollout.group);
          if (group) group.push(rollout);
          else rollouts.set(rollout.group, [rollout]);
        }
      }
      const scoreAll = async (name: string): Promise<ScoredGroup[]> => {
        const groups: ScoredGroup[] = [];
        const environment = await environments.open(entries.get(name)!);
        for (const lease of leases.filter((one) => one.environment === name)) {
          const example = environment.dataset.at(lease.exampleId);
          const members = rollouts.get(lease.ordinal) ?? [];
          const scored = await Promise.all(
            members.map(async (rollout) => {
              const judged = await scoreRollout(environment, example, rollout, { timeoutMs });
              work.finish(`${rollout.group}/${rollout.index}`);
              return judged;
            }),
          );
          const settled = scored.map((rollout) => settleRollout(rollout, spec, vocabularySize));
          groups.push({ ...lease, rollouts: settled.sort((a, b) => a.index - b.index) });
        }
        return groups;
      };
      // Side by side: the judge of one environment may be slow.
      const names = [...new Set(leases.map(({ environment }) => environment))];
      const groups = (await Promise.all(names.map(scoreAll))).flat().sort((a, b) => a.ordinal - b.ordinal);
      const { bytes } = await store.putIfAbsent(key, encodeRows(groups));
      return { scored: refTo(key, bytes), seconds: seconds(), ...lostIn(work.lost) };
    };
    return withHeartbeat(
      () => score().finally(() => work.end()),
      () => work.progress(),
    );
  };

function refTo(key: string, bytes: Uint8Array): ObjectRef {
  return { key, sha256: sha256(bytes), bytes: bytes.byteLength, count: countRows(bytes) };
}
