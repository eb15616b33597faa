import { setTimeout as delay } from 'node:timers/promises';
import { judgeAttemptsMax, judgeRetryMs, programOutputBytesMax } from '../../../core/limits.ts';
import { RatchetError } from '../../../core/errors.ts';
import type { Judgement, Outcome } from '../../../core/rl/rollout/rollout.ts';
import type { AgentProgram } from '../../../core/settings/programs.ts';
import { withoutSecrets } from '../../../config/toml/secrets.ts';
import { failpoint } from '../../../store/failpoints.ts';
import type { Sandbox, SandboxFile } from '../../sandboxes/types.ts';
import { secretsHere } from '../variables.ts';
import { judgementOfCommand } from './score-output.ts';
import { type Task, taskJson } from './tasks.ts';

interface ScoredProgram {
  readonly program: AgentProgram;
  readonly sandbox: Sandbox;
  readonly id: number;
  readonly task: Task;
  readonly scoreFiles: readonly SandboxFile[];
  readonly variables: Readonly<Record<string, string>>;
  readonly place: { readonly signal: AbortSignal };
}

/**
 * Runs the scoring command where the program has ended: only now the sandbox gets hidden files and the answer. A command
 * that says nothing is run again a few times.
 */
export async function scoreInSandbox(
  { program, sandbox, id, task, scoreFiles, variables, place }: ScoredProgram,
  ended: { readonly exitCode: number | null; readonly outcome: Outcome },
): Promise<Judgement> {
  const { score } = program;
  await failpoint('agent.scoring');
  const row = { ...task.row, exit_code: ended.exitCode, outcome: ended.outcome };
  const scored = { path: '.ratchet/scored-task.json', bytes: taskJson(id, row) };
  try {
    for (const { path, bytes, mode } of [...scoreFiles, ...task.scoreFiles, scored] as SandboxFile[])
      await sandbox.write(path, bytes, mode);
  } catch (error) {
    // The program decides what is there: a folder in a file's place, a full disk. That is no fault of the run.
    if (!(error instanceof RatchetError) || error.code !== 'SandboxRefused') throw error;
    return { error: `A file of the score could not be written: ${error.message}` };
  }
  for (let attempt = 1; ; attempt++) {
    const result = await sandbox.exec(
      {
        argv: score.command as [string, ...string[]],
        env: { ...variables, RATCHET_TASK: `${sandbox.folder}/.ratchet/scored-task.json` },
        timeoutS: score.timeoutS,
        outputBytesMax: programOutputBytesMax,
      },
      place.signal,
    );
    const judgement = judgementOfCommand(result, score);
    if (!('error' in judgement)) return judgement;
    if (attempt >= judgeAttemptsMax) return { error: withoutSecrets(judgement.error, secretsHere()) };
    await delay(judgeRetryMs * 2 ** (attempt - 1), undefined, { signal: place.signal });
  }
}
