import type { RoleOptions } from '../../workers/stack/roles.ts';
import type { Role } from '../../workers/stack/supervisor.ts';
import type { StartedVllm } from '../../workers/stack/vllm-role.ts';
import type { StandInProcess } from '../stand-ins/tinker/process.ts';
import type { EngineName, SamplingName } from './columns.ts';
import { agentsInSandboxes } from './agent-run.ts';
import type { TestCluster } from '../cluster/test-cluster.ts';
import { withBreakableEnvironment } from './breakable-environment.ts';
import { startCluster } from './cluster-run.ts';
import { fakeRun, type RunOptions } from './fake-run.ts';
import { realRun } from './real-run.ts';
import { surroundWithMounts, withOwnMounts } from './hidden-store.ts';
import { makeSmallDisk, type SmallDisk } from './small-disk.ts';
import { makeS3, type StagedS3 } from './staged-s3.ts';
import { StageUnavailable } from './stage-unavailable.ts';
import { startOneModelServer, startTinkerServer, tinkerRun } from './tinker-run.ts';
import { otherOrder, type OtherVersion, previousCommit, shortPauses } from './upgrade.ts';
import { primeRlOnTwoRanks } from './prime-rl-run.ts';
import { torchOnTwoRanks } from './torch-run.ts';
import { vllmAdapters, vllmFullWeights } from './vllm-run.ts';

/** Surroundings of a stage besides the stack, made before it starts. */
export interface Surroundings {
  /** Variables for all processes of the stack, in addition to the test's own. */
  readonly environment?: Readonly<Record<string, string>>;
  /** Different settings of all its runs, as `--key value` on the command line. */
  readonly overrides?: Readonly<Record<string, string>>;
  /** Absolute URI of the runs for the test itself; `outputs` in the stage's folder when missing. */
  readonly storeUri?: string;
  readonly s3?: StagedS3;
  /** Temporal cluster that its runs are on; missing = a server of the stack's own. */
  readonly cluster?: TestCluster;
  readonly disk?: SmallDisk;
  readonly tinker?: StandInProcess;
  /** Starts a vLLM beside the workers whenever the stack starts: its port differs each time. */
  readonly vllm?: () => Promise<StartedVllm | null>;
  /** Log of the sampler's answers for all runs, if the sampler is not a fake for each run. */
  readonly sampledLog?: string;
  /** Code that its workers run until they are upgraded; by default this version's. */
  readonly version?: OtherVersion;
  /** Version that the second worker of each role runs; missing = this one. */
  readonly beside?: OtherVersion;
  /** After the stack has ended. */
  readonly close?: () => Promise<void>;
}

/** A kind of stage: what its runs are made of. */
export interface StageKind {
  /** Text of a run's file. */
  readonly run: (options: RunOptions) => string;
  /** Trainer or sampler; by default a fake or the embedded engine. */
  readonly engine?: EngineName;
  /** Processes of a role; one by default. */
  readonly count?: RoleOptions['count'];
  /** Changes the processes that every stage has. */
  readonly changeRole?: (role: Role) => Role;
  /** Makes what its runs need, in the stage's folder. */
  readonly surround?: (folder: string) => Promise<Surroundings>;
}

export const stageKinds = {
  fake: { run: fakeRun },
  s3: { run: fakeRun, surround: makeS3 },
  cluster: { run: fakeRun, surround: startCluster },
  'small disk': { run: fakeRun, surround: makeSmallDisk },
  environment: { run: fakeRun, changeRole: withBreakableEnvironment },
  'level 1': { run: besideTrainingRun, engine: 'level 1' },
  'level 2': { run: continuousRun, engine: 'level 2' },
  'level 2, two rollout workers': { run: continuousRun, engine: 'level 2', count: { rollout: 2 } },
  'two GPU workers': { run: fakeRun, count: { train: 2 } },
  'two rollout workers, mounts apart': {
    run: fakeRun,
    count: { rollout: 2 },
    changeRole: withOwnMounts,
    surround: surroundWithMounts,
  },
  'two GPU workers, mounts apart': {
    run: fakeRun,
    count: { train: 2 },
    changeRole: withOwnMounts,
    surround: surroundWithMounts,
  },
  real: { run: realRun },
  'real, two GPU workers': { run: realRun, count: { train: 2 } },
  tinker: { run: tinkerRun, engine: 'tinker', surround: startTinkerServer },
  'tinker, two GPU workers': { run: tinkerRun, engine: 'tinker', count: { train: 2 }, surround: startTinkerServer },
  'tinker, one model': { run: tinkerRun, engine: 'tinker', surround: startOneModelServer },
  'tinker, one model, two GPU workers': {
    run: tinkerRun,
    engine: 'tinker',
    count: { train: 2 },
    surround: startOneModelServer,
  },
  torch: torchOnTwoRanks,
  'prime-rl': primeRlOnTwoRanks,
  agents: agentsInSandboxes,
  vllm: vllmAdapters,
  'vllm, full weights': vllmFullWeights,
  'of another order': { run: fakeRun, surround: async (folder) => ({ version: await otherOrder(folder) }) },
  'of short pauses': { run: fakeRun, surround: async (folder) => ({ version: await shortPauses(folder) }) },
  'of the previous commit': { run: fakeRun, surround: async (folder) => ({ version: await versionBefore(folder) }) },
  'beside the previous commit': {
    run: fakeRun,
    count: { rollout: 2, train: 2 },
    surround: async (folder) => ({ beside: await versionBefore(folder) }),
  },
} satisfies Record<string, StageKind>;
export type StageKindName = keyof typeof stageKinds;

async function versionBefore(folder: string): Promise<OtherVersion> {
  const version = await previousCommit(folder);
  if (typeof version === 'string') throw new StageUnavailable(version);
  return version;
}

/** Rollouts take longer than a step, and a third of what is in the window is in flight at a time. */
function continuousRun(options: RunOptions): string {
  return fakeRun({ sampleMs: 600, ...options, asyncLevel: 2, maxConcurrent: 32 });
}

/** Rollouts are over before the step that trains meanwhile. So that step's broadcast leases the round after theirs. */
function besideTrainingRun(options: RunOptions): string {
  return fakeRun({ ...options, asyncLevel: 1, stepMs: 1_000 });
}

/** Whether groups are in play while steps train, so that chance decides which come for which step. */
export function isContinuous(engine: EngineName | undefined): engine is SamplingName {
  return engine === 'level 1' || engine === 'level 2';
}

export function kindOf(name: StageKindName): StageKind {
  return stageKinds[name];
}
