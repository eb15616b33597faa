import type { RoleOptions } from '../../workers/roles.ts';
import type { Role } from '../../workers/supervisor.ts';
import type { StartedVllm } from '../../workers/vllm-role.ts';
import type { StandInProcess } from '../stand-ins/tinker/process.ts';
import type { EngineName } from './columns.ts';
import { withBreakableEnvironment } from './breakable-environment.ts';
import { fakeRun, type RunOptions } from './fake-run.ts';
import { realRun } from './real-run.ts';
import { surroundWithMounts, withOwnMounts } from './hidden-store.ts';
import { makeSmallDisk, type SmallDisk } from './small-disk.ts';
import { makeS3, type StagedS3 } from './staged-s3.ts';
import { StageUnavailable } from './stage-unavailable.ts';
import { startTinkerServer, tinkerRun } from './tinker-run.ts';
import { otherOrder, type OtherVersion, previousCommit, shortPauses } from './upgrade.ts';
import { vllmAdapters, vllmFullWeights } from './vllm-run.ts';

/** What a stage has besides the stack, made before it starts. */
export interface Surroundings {
  /** For all processes of the stack, on top of the test's own. */
  readonly environment?: Readonly<Record<string, string>>;
  /** What all its runs have otherwise, as `--key value` on the command line. */
  readonly overrides?: Readonly<Record<string, string>>;
  /** Where the test itself finds the runs, absolute; `outputs` in the stage's folder when missing. */
  readonly storeUri?: string;
  readonly s3?: StagedS3;
  readonly disk?: SmallDisk;
  readonly tinker?: StandInProcess;
  /** What the supervisor starts beside the workers, whenever the stack starts: it has a port of its own each time. */
  readonly vllm?: () => Promise<StartedVllm | null>;
  /** Where what samples notes the answers of all runs, where that is no fake of a run's own. */
  readonly sampledLog?: string;
  /** Whose code its workers run until they are upgraded; this one's if not said. */
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
  /** What they train or sample on; a fake or the embedded engine if not said. */
  readonly engine?: EngineName;
  /** Processes of a role; one where not said. */
  readonly count?: RoleOptions['count'];
  /** What becomes of the processes that every stage has. */
  readonly changeRole?: (role: Role) => Role;
  /** Makes what its runs need, in the stage's folder. */
  readonly surround?: (folder: string) => Promise<Surroundings>;
}

export const stageKinds = {
  fake: { run: fakeRun },
  s3: { run: fakeRun, surround: makeS3 },
  'small disk': { run: fakeRun, surround: makeSmallDisk },
  environment: { run: fakeRun, changeRole: withBreakableEnvironment },
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

export function kindOf(name: StageKindName): StageKind {
  return stageKinds[name];
}
