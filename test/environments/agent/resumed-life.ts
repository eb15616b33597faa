/** Attempts at one rollout of a program that goes on in snapshots, each a process of its own (`resume-child.ts`) that may be killed. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import type { RolloutRecord } from '../../../backends/environments/types.ts';
import type { AgentProgram } from '../../../core/settings/programs.ts';

export interface ResumedLife {
  readonly program: AgentProgram;
  /** Address of the store that all attempts share. */
  readonly store: string;
  /** The turn that is never answered, counted from 1. */
  readonly hangsAt?: number;
  /** Folders of this machine that its sandboxes show. */
  readonly folders?: readonly string[];
  /** What the policy says, by turn, and at the end the last again; otherwise "Step N.". */
  readonly answers?: readonly string[];
}

export interface Life {
  /** Lines of the process: `samples TURN`, `sampled ID`, `noted KIND KEY`. */
  readonly said: readonly string[];
  /** null = it was killed. */
  readonly record: RolloutRecord | null;
}

/** Plays the rollout to its end, or until the process has said all of `until`: then it is killed. */
export async function live(life: ResumedLife, until: readonly string[] = []): Promise<Life> {
  const child = fileURLToPath(new URL('./resume-child.ts', import.meta.url));
  const args = ['--import', 'tsx', child, JSON.stringify(life)];
  const attempt = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  const said: string[] = [];
  const ended = once(attempt, 'exit');
  for await (const line of createInterface({ input: attempt.stdout })) {
    said.push(line);
    if (until.length > 0 && until.every((one) => said.includes(one))) attempt.kill('SIGKILL');
  }
  await ended;
  const record = said.find((line) => line.startsWith('record '));
  return { said, record: record ? (JSON.parse(record.slice('record '.length)) as RolloutRecord) : null };
}
