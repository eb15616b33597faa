import type { RoleOptions } from '../../workers/roles.ts';
import { fakeRun, type RunOptions } from './fake-run.ts';

/** What a stage has besides the stack, made before it starts. */
export interface Surroundings {
  /** For all processes of the stack, on top of the test's own. */
  readonly environment?: Readonly<Record<string, string>>;
  /** `[store] uri` of its runs, absolute; `outputs` in the stage's folder when missing. */
  readonly storeUri?: string;
  /** After the stack has ended. */
  readonly close?: () => Promise<void>;
}

/** A kind of stage: what its runs are made of. */
export interface StageKind {
  /** Text of a run's file. */
  readonly run: (options: RunOptions) => string;
  /** Processes of a role; one where not said. */
  readonly count?: RoleOptions['count'];
  /** Makes what its runs need, in the stage's folder. */
  readonly surround?: (folder: string) => Promise<Surroundings>;
}

export const stageKinds = {
  fake: { run: fakeRun },
} satisfies Record<string, StageKind>;
export type StageKindName = keyof typeof stageKinds;

export function kindOf(name: StageKindName): StageKind {
  return stageKinds[name];
}
