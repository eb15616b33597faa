import type { LeaseInput } from '../activities/index.ts';
import type { RunSpec } from '../config/run-spec.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import type { RunControl } from './control/run-control.ts';
import type { StepAccount } from './step/step-account.ts';

/** Shared by all parts of a run. */
export interface RunContext {
  readonly run: RunHandle;
  readonly spec: RunSpec;
  readonly datasets: LeaseInput['datasets'];
  readonly control: RunControl;
  readonly account: StepAccount;
}
