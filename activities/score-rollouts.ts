import { layout } from '../core/layout.ts';
import { groupsJudgedAtOnce } from '../core/limits.ts';
import type { LostWork } from '../core/rl/lost-work.ts';
import type { Rollout, ScoredGroup } from '../core/rl/rollout.ts';
import type { LeasedGroups, ObjectRef, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import { environments as allEnvironments, type Environments } from '../backends/environments/index.ts';
import { scoreGroup } from '../backends/environments/score-group.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { countRows, encodeRows } from '../backends/store/objects.ts';
import { lastProgress, withHeartbeat } from './heartbeat.ts';
import { mapAtOnce } from './map-at-once.ts';
import { readJson, readRows, specOf, storeOf } from './run-access.ts';
import { lostIn, type WorkProgress, WorkUnderWay } from './work-under-way.ts';

export interface ScoreInput {
  readonly run: RunHandle;
  readonly round: SamplingRound;
  readonly finished: readonly ObjectRef[];
}

/**
 * The rubric over stored rollouts: it needs nothing of the processes that generated them. Whoever scores first decides: a
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
      const { leases } = await readJson<LeasedGroups>(run, round.leases);
      const rollouts = new Map<number, Rollout[]>();
      for (const ref of finished) {
        for (const rollout of await readRows<Rollout>(run, ref)) {
          const group = rollouts.get(rollout.group);
          if (group) group.push(rollout);
          else rollouts.set(rollout.group, [rollout]);
        }
      }
      const scoreAll = async (name: string): Promise<ScoredGroup[]> => {
        const environment = await environments.open(entries.get(name)!);
        const atOnce = environment.judge ? groupsJudgedAtOnce : 1;
        const onScored = ({ group, index }: Rollout) => work.finish(`${group}/${index}`);
        const own = leases.filter((one) => one.environment === name);
        return mapAtOnce(own, atOnce, async (lease): Promise<ScoredGroup> => {
          const example = environment.dataset.at(lease.exampleId);
          const members = (rollouts.get(lease.ordinal) ?? []).toSorted((a, b) => a.index - b.index);
          const scored = await scoreGroup(environment, example, members, { timeoutMs, dataset: 'dataset', onScored });
          return { ...lease, rollouts: scored };
        });
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
