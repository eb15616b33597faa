import type { JsonValue } from '../json-value.ts';
import type { AgentProgram } from './programs.ts';
import type { BudgetLimits } from './budgets.ts';

/** How an environment is opened. The schemas in config/settings/environments.ts make it. */

/** A package of verifiers: what an environment's id was resolved to when the config was read. */
export interface PythonEnvironment {
  readonly module: string;
  readonly api: 'v0' | 'v1';
  readonly folder: string;
  readonly verifiers: string;
  readonly version: string;
  readonly source?: string | undefined;
  readonly sha256?: string | undefined;
}

/** Names of environment variables that it sees, and files of such; values are never here. */
export interface EnvironmentVariables {
  readonly names: readonly string[];
  readonly files: readonly string[];
}

/** Fate of a rollout that is not finished in time. */
export const timeoutFates = ['drop', 'truncate'] as const;
export type TimeoutFate = (typeof timeoutFates)[number];

/** How far a rollout may go; null = no bound but the environment's own. */
interface RolloutLimits {
  readonly maxTurns: number | null;
  readonly maxInputTokens: number | null;
  readonly maxOutputTokens: number | null;
  readonly maxTotalTokens: number | null;
  readonly timeoutS: number | null;
  readonly onTimeout: TimeoutFate | null;
  readonly maxRetries: number | null;
}

export interface EnvironmentEntry {
  /** Name of a built-in environment, absolute path of the user's file, or name of a package (`python`) or of an agent (`program`). */
  readonly id: string;
  readonly args: Readonly<Record<string, JsonValue>>;
  /** Hex, of the file that the id names. */
  readonly sha256?: string | undefined;
  readonly python?: PythonEnvironment | undefined;
  readonly variables?: EnvironmentVariables | undefined;
  readonly limits?: RolloutLimits | undefined;
  /** Set for an agent: what is run, on which tasks, and how it is scored. */
  readonly program?: AgentProgram | undefined;
  /** Of each of its rollouts. */
  readonly budget?: BudgetLimits | undefined;
  /** In place of its examples' own. */
  readonly systemPrompt?: string | undefined;
  /** Solver of its tasks in verifiers v1. */
  readonly agent?: Readonly<Record<string, JsonValue>> | undefined;
  /** Parts of a verifiers v1 environment beside a taskset and one agent. */
  readonly episode?: Readonly<Record<string, JsonValue>> | undefined;
  /** Set on a verifiers environment once it is loaded (`set_kwargs`). */
  readonly extra?: Readonly<Record<string, JsonValue>> | undefined;
  /** Columns of its rollouts' state that a verifiers environment (v0) adds to their rows. */
  readonly stateColumns?: readonly string[] | undefined;
}
