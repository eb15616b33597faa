import { setTimeout as delay } from 'node:timers/promises';
import { judgeAttemptsMax, judgeRetryMs, programOutputBytesMax } from '../../../core/limits.ts';
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
  for (const { path, bytes, mode } of [...scoreFiles, ...task.scoreFiles] as SandboxFile[])
    await sandbox.write(path, bytes, mode);
  const row = { ...task.row, exit_code: ended.exitCode, outcome: ended.outcome };
  await sandbox.write('.ratchet/scored-task.json', taskJson(id, row));
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
