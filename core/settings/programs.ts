import { programSecondsMax, sandboxEndS } from '../limits.ts';
import type { CodeRef } from './code.ts';
import type { SandboxPoolSpec } from './sandboxes.ts';

/** How an agent's program is run and scored. The schemas in config/settings/agents.ts make it. */

/** Source of the tasks: a file, or a part of a dataset of the Hub. */
export interface TaskSource {
  /** Absolute path of a `.jsonl` or `.parquet` file, or OWNER/NAME of a dataset. */
  readonly path: string;
  /** Digest over the rows when the config was read, hex; null until then. */
  readonly sha256: string | null;
  readonly hub?: { readonly subset: string | null; readonly split: string } | undefined;
}

/** A file or folder that is copied into sandboxes. */
export interface CopiedFiles {
  /** Absolute. */
  readonly path: string;
  /** Digest over names and contents when the config was read, hex; null until then. */
  readonly sha256: string | null;
}

/** What the file says of the sandbox of each rollout. */
export interface ProgramSandbox {
  /** Where it comes from. */
  readonly pool: SandboxPoolSpec;
  readonly image: string | null;
  readonly files: CopiedFiles | null;
  /** Run once before the program; null = nothing is. */
  readonly setup: readonly string[] | null;
  readonly setupTimeoutS: number;
  /** `route`: nothing is reachable but the address of the rollout. */
  readonly network: 'route' | 'open';
  /** Keep the sandbox as it is after `setup`, where the provider can. */
  readonly snapshot: boolean;
  readonly memoryMb: number;
  readonly diskMb: number;
  readonly cpus: number | null;
}

/** An endpoint that answers calls for another model than the policy; nothing of it is trained. */
export interface OtherModel {
  /** As the program asks for it. */
  readonly name: string;
  readonly baseUrl: string;
  /** As the endpoint calls it. */
  readonly model: string;
  readonly apiKeyVar: string | null;
  /** Most tokens of an answer; null = what the program asks for. */
  readonly maxTokens?: number | null;
}

export interface ProgramJudge {
  readonly baseUrl: string;
  readonly model: string;
  readonly apiKeyVar: string | null;
  /** What a good result is; the judge answers with a number. */
  readonly prompt: string;
  readonly maxTokens: number;
}

/** How finished rollouts are scored: one of command, function and judge. */
export interface ProgramScore {
  /** Run in the sandbox after the program has ended. */
  readonly command: readonly string[] | null;
  /** What of `command` is the reward. */
  readonly reads: 'output' | 'exit_code';
  /** A function in TypeScript or Python over what is stored of the rollout. */
  readonly function: (CodeRef & { readonly name: string }) | null;
  readonly judge: ProgramJudge | null;
  /** Copied into the sandbox when the program has ended: hidden tests. */
  readonly files: CopiedFiles | null;
  /** Files of the sandbox that are stored with the rollout. */
  readonly collect: readonly string[];
  readonly timeoutS: number;
}

export interface ProgramResume {
  /** Run in the snapshot in place of `command`. */
  readonly command: readonly string[];
  /** Turns between two snapshots. */
  readonly every: number;
  /** Seconds from a call to its snapshot. */
  readonly delayS: number;
}

/** A program that owns its loop: an environment of kind `agent`. */
export interface AgentProgram {
  readonly command: readonly string[];
  readonly tasks: TaskSource;
  /** Held-out tasks; null = `evalShare` of `tasks`. */
  readonly evalTasks: TaskSource | null;
  /** Share of `tasks` that is held out, its last rows. */
  readonly evalShare: number;
  /** True if equal answers always lead to the same calls and the same score. */
  readonly isDeterministic: boolean;
  /** Most seconds of one call of the policy, and between two calls; null = only the rollout's own limit. */
  readonly turnTimeoutS: number | null;
  readonly toolTimeoutS: number | null;
  /** Exit codes after which the rollout is scored. */
  readonly exitCodes: readonly number[];
  /** How it goes on in a snapshot of its sandbox after a death; null = it starts again. */
  readonly resume: ProgramResume | null;
  readonly sandbox: ProgramSandbox;
  readonly score: ProgramScore;
  readonly models: readonly OtherModel[];
}

/** Most seconds that the sandbox of a rollout is there. `seconds`: of the rollout; null = it has no limit of its own. */
export function sandboxLifeS(
  seconds: number | null,
  { setupS, scoreS }: { readonly setupS: number; readonly scoreS: number },
): number {
  return Math.ceil((seconds ?? programSecondsMax) + setupS + scoreS + sandboxEndS);
}
