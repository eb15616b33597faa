import { programOutputBytesMax, programSecondsMax } from '../../../core/limits.ts';
import { RatchetError } from '../../../core/errors.ts';
import { onAbort } from '../../../core/on-abort.ts';
import { present } from '../../../core/present.ts';
import type { ProgramRun, ProgramStop } from '../../../core/rl/rollout/program-run.ts';
import type { AgentProgram } from '../../../core/settings/programs.ts';
import { secretValues, withoutSecrets } from '../../../config/toml/secrets.ts';
import type { CommandResult, RunningCommand, Sandbox, SandboxFile } from '../../sandboxes/types.ts';
import { tookLonger } from '../score.ts';
import type { Policy, RolloutPlace, RolloutRecord, RolloutSandboxes } from '../types.ts';
import { secretsHere } from '../variables.ts';
import { openCapture } from './capture/capture.ts';
import type { Capture, OtherModel } from './capture/types.ts';
import { collectFiles } from './collected-files.ts';
import { howItFailed, SetupFailed, takeProgramSandbox } from './program-sandbox.ts';
import { scoreInSandbox } from './score-in-sandbox.ts';
import { type Task, taskJson } from './tasks.ts';
import { type CallsOver, WatchedPolicy } from './watched-policy.ts';

/** One rollout: a sandbox, the address of the policy, the program until it ends, and its score where that needs the sandbox. */

/** Name of the policy's model. Programs may ask for any other one: it is the policy unless the run file names it. */
const policyModel = 'policy';
/** Folder of our own below the work folder. */
const ownFolder = '.ratchet';

export interface PlayedProgram {
  readonly program: AgentProgram;
  /** Position of the task, and the task. */
  readonly id: number;
  readonly task: Task;
  readonly files: readonly SandboxFile[];
  readonly scoreFiles: readonly SandboxFile[];
  readonly others: Readonly<Record<string, OtherModel>>;
  /** Variables that the run file lists; the program sees them. */
  readonly variables: Readonly<Record<string, string>>;
  readonly sandboxes: RolloutSandboxes;
  readonly policy: Policy;
  readonly place: Pick<RolloutPlace, 'signal' | 'timeLimit' | 'systemPrompt' | 'notes' | 'budget'>;
}

/** Failures of the program or its sandbox are the record's outcome; those of the policy, and refusals, are thrown. */
export async function playProgram(played: PlayedProgram): Promise<RolloutRecord> {
  const { program, policy, place, others, variables } = played;
  const watched = new WatchedPolicy(policy, program);
  const capture = await openCapture({
    policy: watched,
    model: policyModel,
    aliases: ['*'],
    others,
    signal: place.signal,
    secrets: secretValues(variables),
    ...present({ notes: place.notes }),
    ...(place.budget && { beside: { budget: () => ({ ...place.budget!.left() }) } }),
  });
  try {
    return await inSandbox(played, capture, watched);
  } finally {
    watched.end();
    await capture.close();
  }
}

async function inSandbox(played: PlayedProgram, capture: Capture, watched: WatchedPolicy): Promise<RolloutRecord> {
  const { program, task, files, place, sandboxes } = played;
  const startedAt = performance.now();
  const seconds = place.timeLimit?.seconds ?? null;
  try {
    const wanted = { program, task, files, socket: capture.socket, seconds, signal: place.signal };
    const taken = await takeProgramSandbox(sandboxes, wanted);
    try {
      return await runProgram({ ...played, sandbox: taken.sandbox, startedAt }, capture, watched);
    } finally {
      await taken.end();
    }
  } catch (error) {
    place.signal.throwIfAborted();
    const why = whyOfSandbox(error);
    if (why === null) throw error;
    return { turns: capture.turns, outcome: 'infra_failure', error: why };
  }
}

/** A failure of this sandbox alone: a fresh one may do better. A refusal holds for each, and is thrown. */
function whyOfSandbox(error: unknown): string | null {
  if (error instanceof SetupFailed) return `${error.name}: ${error.message}`;
  if (error instanceof RatchetError && /^Sandbox(?:Unavailable|Unanswered)$/.test(error.code))
    return `${error.code}: ${error.message}`;
  return null;
}

interface Running extends PlayedProgram {
  readonly sandbox: Sandbox;
  readonly startedAt: number;
}

async function runProgram(running: Running, capture: Capture, watched: WatchedPolicy): Promise<RolloutRecord> {
  const { program, sandbox, place, id, task, startedAt } = running;
  const told = { ...task.told, ...present({ system_prompt: place.systemPrompt }) };
  await sandbox.write(`${ownFolder}/task.json`, taskJson(id, told));
  const begunAt = performance.now();
  const leftS = place.timeLimit ? place.timeLimit.seconds - (begunAt - startedAt) / 1000 : null;
  const command = await sandbox.start(
    {
      argv: program.command as [string, ...string[]],
      env: environmentOf(running, capture),
      timeoutS: Math.ceil(leftS ?? programSecondsMax) + 1,
      outputBytesMax: programOutputBytesMax,
    },
    place.signal,
  );
  watched.begin();
  const stopped = await untilStopped(command, { capture, watched, leftS, signal: place.signal });
  watched.end();
  if (stopped !== null) await command.kill();
  place.signal.throwIfAborted();
  const result = await command.wait();
  await capture.close();
  const run = programRun(result, { capture, stopped, begunAt, startedAt });
  const ended = outcomeOf(run, { running, capture, watched });
  if ('error' in ended) return { turns: capture.turns, program: run, ...ended };
  const collected = await collectFiles(sandbox, program.score.collect);
  const whole = { ...run, ...(program.score.collect.length === 0 ? {} : { files: collected }) };
  const judged = program.score.command === null ? undefined : await scoreInSandbox(running, { exitCode: run.exitCode, outcome: ended.outcome }); // prettier-ignore
  return { turns: capture.turns, program: whole, ...ended, ...present({ judged }) };
}

/** Variables of the program. The key is of this rollout alone, and ends with it. */
function environmentOf({ sandbox, variables }: Running, { key }: Capture): Record<string, string> {
  const origin = `http://127.0.0.1:${sandbox.routePort}`;
  return {
    ...variables,
    OPENAI_BASE_URL: `${origin}/v1`,
    OPENAI_API_BASE: `${origin}/v1`,
    OPENAI_API_KEY: key,
    OPENAI_MODEL: policyModel,
    ANTHROPIC_BASE_URL: origin,
    ANTHROPIC_API_KEY: key,
    ANTHROPIC_MODEL: policyModel,
    RATCHET_URL: origin,
    RATCHET_TASK: `${sandbox.folder}/${ownFolder}/task.json`,
  };
}

/** Why the program has to be stopped; null = it has ended. */
async function untilStopped(
  command: RunningCommand,
  {
    capture,
    watched,
    leftS,
    signal,
  }: {
    readonly capture: Capture;
    readonly watched: WatchedPolicy;
    readonly leftS: number | null;
    readonly signal: AbortSignal;
  },
): Promise<ProgramStop | 'given_up' | null> {
  const forgets: (() => void)[] = [];
  let timer: NodeJS.Timeout | undefined;
  try {
    return await new Promise((resolve, reject) => {
      const on = (raised: AbortSignal, why: () => ProgramStop | 'given_up'): void => {
        if (raised.aborted) resolve(why());
        forgets.push(onAbort(raised, () => resolve(why())));
      };
      on(signal, () => 'given_up');
      on(capture.ended, () => 'limit');
      on(watched.over, () => watched.over.reason as CallsOver);
      if (leftS !== null) timer = setTimeout(() => resolve('time'), Math.max(0, leftS) * 1000);
      command.wait().then(() => resolve(null), reject);
    });
  } finally {
    clearTimeout(timer);
    for (const forget of forgets) forget();
  }
}

function programRun(
  result: CommandResult,
  {
    capture,
    stopped,
    begunAt,
    startedAt,
  }: {
    readonly capture: Capture;
    readonly stopped: ProgramStop | 'given_up' | null;
    readonly begunAt: number;
    readonly startedAt: number;
  },
): ProgramRun {
  const { sampled, recalled, others } = capture.calls;
  const aside = capture.setAside();
  const mapped = capture.mapped();
  const clean = (text: string): string => withoutSecrets(text, [...secretsHere(), capture.key]);
  return {
    exitCode: stopped === null ? result.code : null,
    ...(result.signal === null ? {} : { signal: result.signal }),
    ...(stopped === null || stopped === 'given_up' ? {} : { stopped }),
    seconds: rounded((performance.now() - begunAt) / 1000),
    setupS: rounded((begunAt - startedAt) / 1000),
    stdout: clean(result.stdout),
    stderr: clean(result.stderr),
    calls: { sampled, recalled, others },
    ...(capture.ignored.length === 0 ? {} : { ignored: capture.ignored }),
    ...(Object.keys(mapped).length === 0 ? {} : { mapped }),
    ...(aside && {
      setAside: {
        turns: aside.turns.length,
        tokens: aside.tokens,
        ...(aside.first && { was: clean(aside.first.was), is: clean(aside.first.is) }),
      },
    }),
  };
}

function rounded(seconds: number): number {
  return Math.round(seconds * 1000) / 1000;
}

type Ended =
  | { readonly outcome: 'ok' | 'truncated'; readonly isTimedOut?: true }
  | { readonly outcome: 'infra_failure' | 'timeout' | 'overlong_prompt'; readonly error: string };

/** What became of the rollout, before it is scored. Throws the policy's own failure. */
function outcomeOf(
  run: ProgramRun,
  {
    running,
    capture,
    watched,
  }: { readonly running: Running; readonly capture: Capture; readonly watched: WatchedPolicy },
): Ended {
  const { program, place } = running;
  const { refusal } = capture;
  const isTooLong = (error: unknown): boolean => error instanceof RatchetError && error.code === 'PromptTooLong';
  if (capture.failure !== undefined && !isTooLong(capture.failure)) throw capture.failure;
  const said = outputOf(run);
  if (run.stopped === 'time') {
    const { seconds, fate } = place.timeLimit!;
    return fate === 'truncate'
      ? { outcome: 'truncated', isTimedOut: true }
      : { outcome: 'timeout', error: `${tookLonger(seconds)}${said}` };
  }
  if (run.stopped === 'turn')
    return { outcome: 'timeout', error: `TurnTimeout: a call of the policy was not answered within turn_timeout = ${program.turnTimeoutS} s.` }; // prettier-ignore
  if (run.stopped === 'tool')
    return { outcome: 'infra_failure', error: `ToolTimeout: the program made no call for tool_timeout = ${program.toolTimeoutS} s.${said}` }; // prettier-ignore
  if (watched.calls === 0) {
    const how = howItFailed({ code: run.exitCode, signal: run.signal ?? null }) ?? 'ended with exit code 0';
    return { outcome: 'infra_failure', error: `NeverCalled: the program ${how} without a call of the policy; it finds it at OPENAI_BASE_URL or ANTHROPIC_BASE_URL.${said}` }; // prettier-ignore
  }
  if (isTooLong(refusal)) {
    if (capture.turns.length === 0) return { outcome: 'overlong_prompt', error: (refusal as Error).message };
    return { outcome: 'truncated' };
  }
  if (run.exitCode === null || !program.exitCodes.includes(run.exitCode)) {
    const how = howItFailed({ code: run.exitCode, signal: run.signal ?? null }) ?? 'ended with exit code 0';
    return { outcome: 'infra_failure', error: `ProgramFailed: the program ${how}; expected exit code ${program.exitCodes.join(' or ')}.${said}` }; // prettier-ignore
  }
  return { outcome: capture.turns.at(-1)?.finishReason === 'length' ? 'truncated' : 'ok' };
}

const shownChars = 800;

/** The end of what a program printed, for people. */
function outputOf({ stdout, stderr }: ProgramRun): string {
  const parts = Object.entries({ stderr, stdout }).filter(([, text]) => text.trim() !== '');
  return parts.map(([name, text]) => `\n${name}: ${text.trimEnd().slice(-shownChars)}`).join('');
}
