import { present } from '../core/present.ts';
import { layout } from '../runs/layout.ts';
import { chunksOfRound, groupsOfChunk, type LeasedChunk } from '../core/rl/sampling/chunks.ts';
import { hasExamples, leaseGroups, type CurriculumState } from '../core/rl/sampling/curriculum.ts';
import { encodeRanges } from '../core/rl/ledger.ts';
import { chancesOf } from '../core/rl/sampling/pools.ts';
import { temperatureAt } from '../core/rl/sampling/schedule.ts';
import type { GroupLease } from '../core/rl/rollout/rollout.ts';
import type { LeasedGroups, PolicyVersion, Prompts, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import { failpoint } from '../store/failpoints.ts';
import { sha256 } from '../store/file-store.ts';
import { curriculumUnder, poolsOf } from '../runs/rollouts/pools.ts';
import { leasesIn } from '../runs/rollouts/leases.ts';
import { encodeStored } from '../runs/forms/stored-forms.ts';
import { specOf, storeOf } from '../runs/run-access.ts';

export interface LeaseInput {
  readonly run: RunHandle;
  readonly step: number;
  readonly count: number;
  /** Most groups in a chunk; absent: one chunk for each environment. */
  readonly groupsPerChunk?: number;
  readonly curriculum: CurriculumState;
  readonly datasets: readonly { readonly name: string; readonly weight: number; readonly datasetLength: number }[];
  readonly policy: PolicyVersion;
  /** Prompts in use; absent while every environment has its own. */
  readonly prompts?: Prompts;
}

export interface LeasedRound {
  /** null: every example lies in a pool that is never drawn. */
  readonly round: SamplingRound | null;
  readonly curriculum: CurriculumState;
  readonly chunks: readonly LeasedChunk[];
  /** Rollout workers that poll; absent when unknown. */
  readonly workers?: number;
  /** The run's share of its pool's rollout workers, relative to other runs; absent for a run of no pool, and when unknown. */
  readonly share?: number;
  /** One line, with advice, for each worker of a different version; absent if there are none or the server does not list workers. */
  readonly otherVersions?: readonly string[];
}

export interface LeaseDependencies {
  readonly countRolloutWorkers: (pool?: string) => Promise<number>;
  /** A team's run's share of the rollout workers of a pool, as the pool said lately; undefined before. */
  readonly shareInPool: (pool: string, team: string) => number | undefined;
  /** One line for each worker of a different version. */
  readonly otherVersions: () => Promise<readonly string[]>;
}

/** Result of an activity that may lease as well. */
export interface MayLease {
  /** The round that was asked for with it; absent: none was, or none may begin. */
  readonly leased?: LeasedRound;
}

export type LeaseGroups = (input: LeaseInput) => Promise<LeasedRound>;

export const createLeaseGroups =
  ({ countRolloutWorkers, shareInPool, otherVersions: ask }: LeaseDependencies): LeaseGroups =>
  /**
   * Leases the next groups. Deterministic for a curriculum; if it leased them before (a resumed run), the stored lease
   * is returned, with the version those groups started from, so that stored work is adopted.
   */
  async (input: LeaseInput): Promise<LeasedRound> => {
    const { queue } = await specOf(input.run);
    const share = queue && shareInPool(queue.pool, queue.team);
    // One that is not counted now is at the next lease.
    const counted = countRolloutWorkers(queue?.pool).catch(() => undefined);
    const [leased, workers, others] = await Promise.all([leaseRound(input, counted), counted, ask()]);
    return { ...leased, ...present({ workers, share, otherVersions: others.length === 0 ? undefined : others }) };
  };

/** Leases for an activity that does something else as well. */
export const leaseBeside =
  (work: 'broadcast' | 'pack', leaseGroups: LeaseGroups): LeaseGroups =>
  async (input) => {
    const leased = await leaseGroups(input);
    await failpoint(`${work}.leased`);
    return leased;
  };

async function leaseRound(input: LeaseInput, counted: Promise<number | undefined>): Promise<LeasedRound> {
  const { run, step, count, datasets, policy, prompts } = input;
  const curriculum = await curriculumUnder(run, input.curriculum, prompts ?? {});
  const spec = await specOf(run);
  const pools = await poolsOf(run, curriculum);
  const environments = datasets.map((dataset) => {
    const entry = spec.environments.find(({ name }) => name === dataset.name);
    return { ...dataset, chances: chancesOf(pools, { ...dataset, pools: entry?.pools ?? null }) };
  });
  if (!environments.some(hasExamples)) return { round: null, curriculum, chunks: [] };
  const { seed } = spec;
  const { state, leases: drawn } = leaseGroups(curriculum, { count, environments, seed, policyStep: policy.step });
  const temperature = temperatureAt(policy.step, spec);
  const leases = drawn.map((lease): GroupLease => {
    const prompt = prompts?.[lease.environment]?.ref.sha256;
    return { ...lease, ...present({ prompt, temperature }) };
  });
  const first = curriculum.nextOrdinal;
  const last = state.nextOrdinal - 1;
  const key = layout.leases(run.lineage, { step, first, last });
  // A run learns the number of workers from a lease: its first round would be one worker's.
  const share = Math.ceil(count / Math.max(1, (await counted) ?? 1));
  const groupsPerChunk = Math.min(input.groupsPerChunk ?? count, share);
  const ofEach = datasets.length > 1 ? groupsByEnvironment(leases) : undefined;
  const chunks = chunksOfRound(count, groupsPerChunk, ofEach).map((chunk): LeasedChunk => {
    const own = groupsOfChunk(leases, chunk);
    return { ...chunk, groups: own.length, ordinals: encodeRanges(own.map(({ ordinal }) => ordinal)) };
  });
  const proposal: LeasedGroups = { policy, leases, chunks, ...(prompts ? { prompts } : {}), curriculum: state };
  const { bytes } = await storeOf(run).putIfAbsent(key, encodeStored(key, proposal));
  await failpoint('lease.stored');
  const stored = leasesIn(bytes, storeOf(run).uri + key);
  return {
    round: {
      step,
      first,
      last,
      policyStep: stored.policy.step,
      leases: { key, sha256: sha256(bytes), bytes: bytes.byteLength, count },
    },
    curriculum: stored.curriculum,
    chunks: stored.chunks,
  };
}

/** How many of the groups are of each environment. */
function groupsByEnvironment(leases: readonly GroupLease[]): Record<string, number> {
  const groups: Record<string, number> = {};
  for (const { environment } of leases) groups[environment] = (groups[environment] ?? 0) + 1;
  return groups;
}
