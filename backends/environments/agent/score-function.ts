import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { present } from '../../../core/present.ts';
import type { ProgramRun } from '../../../core/rl/rollout/program-run.ts';
import type { ChatMessage, Example, Rollout, Turn } from '../../../core/rl/rollout/rollout.ts';
import { contentOf } from '../../../core/rl/rollout/rollout.ts';
import type { ProgramScore } from '../../../core/settings/programs.ts';
import { importChecked } from '../../../engine/train/user-code.ts';
import { trustedFile, trustedInterpreter } from '../../../host/trusted-files.ts';
import { registerKit } from '../load.ts';
import { childEnvironment } from '../verifiers/child-environment.ts';
import { judgementOf } from './score-output.ts';

/** What a function in TypeScript scores: all of it is stored, so it may be called again at any time. */
export interface ScoredRun {
  readonly example: Example;
  /** Every call of the policy, in the order in which they finished; `call.after` says which one each continues. */
  readonly turns: readonly Turn[];
  /** The conversation that ends with the last turn. */
  readonly messages: readonly ChatMessage[];
  /** The last turn without thoughts and calls; empty without turns. */
  readonly completion: string;
  /** Collected files by path. */
  readonly files: Readonly<Record<string, string>>;
  /** Of the program: its exit code, the ends of its output, its seconds. */
  readonly program: ProgramRun | undefined;
  readonly outcome: Rollout['outcome'];
}

export function scoredRun(example: Example, { turns, program, outcome }: Rollout): ScoredRun {
  const last = turns.at(-1);
  return {
    example,
    turns,
    messages: conversationTo(turns, last),
    completion: last ? contentOf(last) : '',
    files: program?.files ?? {},
    program,
    outcome,
  };
}

/** Messages of the branch that ends with a turn, both sides in order. */
export function conversationTo(turns: readonly Turn[], last: Turn | undefined): ChatMessage[] {
  const byId = new Map(turns.flatMap((turn) => (turn.call ? [[turn.call.id, turn] as const] : [])));
  const branch: Turn[] = [];
  for (let turn = last; turn !== undefined; turn = turn.call?.after ? byId.get(turn.call.after) : undefined)
    branch.unshift(turn);
  return branch.flatMap((turn) => [...(turn.heard ?? []), messageOf(turn)]);
}

function messageOf(turn: Turn): ChatMessage {
  const calls = turn.toolCalls?.map((call, i) => ({ id: `call_${i}`, type: 'function' as const, function: call }));
  return { role: 'assistant', content: contentOf(turn), ...present({ tool_calls: calls }) };
}

type Scored = Exclude<ReturnType<typeof judgementOf>, null>;

/** Calls the user's function. Throws what it throws, or if it gives neither a number nor {reward, metrics}. */
export async function callScoreFunction(
  of: NonNullable<ProgramScore['function']>,
  run: ScoredRun,
  { timeoutS, signal, variables }: { readonly timeoutS: number; readonly signal?: AbortSignal | undefined; readonly variables: readonly string[] }, // prettier-ignore
): Promise<Scored> {
  const value = of.path.endsWith('.py')
    ? await callPython(of, run, { timeoutS, signal, variables })
    : await callTypeScript(of, run);
  const judgement = judgementOf(value);
  if (judgement !== null) return judgement;
  const given = (JSON.stringify(value) ?? 'nothing').slice(0, 200);
  throw new TypeError(`${of.path}: expected a finite number, or {"reward": …, "metrics": {…}}; ${of.name} gave ${given}`); // prettier-ignore
}

async function callTypeScript(of: NonNullable<ProgramScore['function']>, run: ScoredRun): Promise<unknown> {
  await registerKit();
  const { call } = await importChecked(of, 'score', of.name);
  return (call as (run: ScoredRun) => unknown)(run);
}

const runner = fileURLToPath(new URL('../../../python/ratchet_score.py', import.meta.url));
const outputBytesMax = 1024 * 1024;

async function callPython(
  of: NonNullable<ProgramScore['function']>,
  run: ScoredRun,
  { timeoutS, signal, variables }: Parameters<typeof callScoreFunction>[2],
): Promise<unknown> {
  const file = trustedFile(of.path, 'The custom score');
  const python = trustedInterpreter(process.env['RATCHET_PYTHON'] ?? 'python3', 'The interpreter');
  const { stdout } = await new Promise<{ readonly stdout: string }>((resolve, reject) => {
    const options = {
      env: childEnvironment({ variables }),
      timeout: timeoutS * 1000,
      killSignal: 'SIGKILL' as const,
      maxBuffer: outputBytesMax,
      ...(signal && { signal }),
    };
    const child = execFile(python, [runner, file, of.name], options, (error, output, errors) => {
      if (error === null) return resolve({ stdout: output });
      const said = errors.trimEnd().split('\n').slice(-20).join('\n');
      const why = error.killed ? `was stopped after ${timeoutS} s` : (said || error.message); // prettier-ignore
      reject(new Error(`${file}: ${of.name}: ${why}`));
    });
    child.stdin?.on('error', () => undefined); // its end is told above
    child.stdin?.end(JSON.stringify(forPython(run)));
  });
  return (JSON.parse(stdout) as { readonly value: unknown }).value;
}

/** The same in Python's words. */
function forPython({ example, turns, messages, completion, files, program, outcome }: ScoredRun): object {
  const { prompt, answer, info = {} } = example;
  return {
    prompt,
    answer,
    info,
    messages,
    completion,
    files,
    outcome,
    exit_code: program?.exitCode ?? null,
    stdout: program?.stdout ?? '',
    stderr: program?.stderr ?? '',
    turns: turns.map((turn) => ({
      heard: turn.heard ?? [],
      content: contentOf(turn),
      reasoning: turn.reasoning ?? '',
      tool_calls: turn.toolCalls ?? [],
      tokens: turn.tokenIds.length,
    })),
  };
}
