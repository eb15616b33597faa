import { programOutputBytesMax, programSecondsMax } from '../../../core/limits.ts';
import { RatchetError } from '../../../core/errors.ts';
import { encodeRanges } from '../../../core/rl/ledger.ts';
import { onAbort } from '../../../core/on-abort.ts';
import { present } from '../../../core/present.ts';
import type { ProgramRun, ProgramStop } from '../../../core/rl/rollout/program-run.ts';
import type { Turn } from '../../../core/rl/rollout/rollout.ts';
import type { AgentProgram } from '../../../core/settings/programs.ts';
import { secretValues, withoutSecrets } from '../../../config/toml/secrets.ts';
import type { CommandResult, LeaseBill, RunningCommand, Sandbox, SandboxFile } from '../../sandboxes/types.ts';
import { tookLonger } from '../score.ts';
import type { Policy, RolloutPlace, RolloutRecord, RolloutSandboxes } from '../types.ts';
import { secretsHere } from '../variables.ts';
import { openCapture } from './capture/capture.ts';
import type { CallTime, Capture, OtherModel } from './capture/types.ts';
import { collectFiles } from './collected-files.ts';
import { howItFailed, type ProgramSandbox, SetupFailed, takeProgramSandbox } from './program-sandbox.ts';
import { ProgramSnapshots } from './program-snapshots.ts';
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
  const snapshots = await openSnapshots(played);
  const watched = new WatchedPolicy(policy, program, snapshots ? () => snapshots.beside() : undefined);
  const times = new Map<Turn, CallTime>();
  const capture = await openCapture({
    policy: watched,
    model: policyModel,
    aliases: ['*'],
    others,
    signal: place.signal,
    secrets: secretValues(variables),
    onTurn: (turn, time) => void times.set(turn, time),
    ...present({ notes: place.notes, budget: place.budget, resumed: snapshots?.resumed ?? undefined }),
    ...(place.budget && { beside: { budget: () => ({ ...place.budget!.left() }) } }),
  });
  try {
    return withTimes(await inSandbox({ ...played, snapshots }, capture, watched), times);
  } finally {
    watched.end();
    await capture.close();
  }
}

/** null where the program cannot go on in one, or nothing of the rollout outlives this process. */
async function openSnapshots({ program, policy, place, sandboxes }: PlayedProgram): Promise<ProgramSnapshots | null> {
  const { resume } = program;
  if (resume === null || place.notes === undefined || policy.keep === undefined) return null;
  const earlier = new Set((policy.earlier ?? []).flatMap(({ call }) => call?.id ?? []));
  return ProgramSnapshots.open({
    program: { ...program, resume },
    notes: place.notes,
    sandboxes,
    earlier,
    signal: place.signal,
  });
}

/** How long each turn took is stored beside them: the turns themselves are the same in every attempt. */
function withTimes(record: RolloutRecord, times: ReadonlyMap<Turn, CallTime>): RolloutRecord {
  const { turns, program } = record;
  if (program === undefined) return record;
  const seconds = turns.map((turn) => rounded(times.get(turn)?.seconds ?? 0));
  const recalled = encodeRanges(turns.flatMap((turn, i) => (times.get(turn)?.isRecalled === true ? [i] : [])));
  return { ...record, program: { ...program, turns: { seconds, recalled } } };
}

interface Saved extends PlayedProgram {
  readonly snapshots: ProgramSnapshots | null;
}

async function inSandbox(played: Saved, capture: Capture, watched: WatchedPolicy): Promise<RolloutRecord> {
  const { program, task, files, place, sandboxes, snapshots } = played;
  const startedAt = performance.now();
  const seconds = place.timeLimit?.seconds ?? null;
  try {
    const { budget, signal } = place;
    const snapshot = snapshots?.resumed?.snapshot;
    const wanted = { program, task, files, socket: capture.socket, seconds, budget, signal, snapshot };
    const taken = await takeProgramSandbox(sandboxes, wanted);
    const { sandbox, takenAt, cut } = taken;
    const timeLimit = firstOf(sinceTaken(place.timeLimit, (takenAt - startedAt) / 1000), cut);
    const playing = runProgram({ ...played, sandbox, startedAt, takenAt, timeLimit }, capture, watched);
    const bill = await playing.catch(() => undefined).then(() => taken.end()); // its failure is thrown below
    return withSandbox(await playing, played, taken.lease.name, bill);
  } catch (error) {
    place.signal.throwIfAborted();
    const isSpoiled = snapshots?.resumed != null && isOfSnapshot(error);
    if (isSpoiled) await snapshots.giveUp(error.message);
    const why = isSpoiled ? `${error.code}: ${error.message}` : whyOfSandbox(error);
    if (why === null) throw error;
    return { turns: capture.turns, outcome: 'infra_failure', error: why };
  }
}

function withSandbox(
  record: RolloutRecord,
  { program: { sandbox }, place }: PlayedProgram,
  name: string,
  { seconds }: LeaseBill,
): RolloutRecord {
  if (record.program === undefined) return record;
  const used = place.budget?.used();
  const of = { provider: sandbox.pool.provider.kind, name, seconds: rounded(seconds) };
  return { ...record, program: { ...record.program, sandbox: of, ...present({ used }) } };
}

/** A failure of this sandbox alone: a fresh one may do better. A refusal holds for each, and is thrown. */
function whyOfSandbox(error: unknown): string | null {
  if (error instanceof SetupFailed) return `${error.name}: ${error.message}`;
  if (error instanceof RatchetError && /^Sandbox(?:Unavailable|Unanswered)$/.test(error.code))
    return `${error.code}: ${error.message}`;
  return null;
}

type TimeLimit = NonNullable<RolloutPlace['timeLimit']>;

/** The limit counted from the moment on at which the sandbox was there: a rollout that waits for one is not played. */
function sinceTaken(limit: TimeLimit | undefined, waitedS: number): TimeLimit | null {
  if (limit === undefined) return null;
  return limit.countsWaiting === true ? { ...limit, seconds: limit.seconds - waitedS } : limit;
}

/** The limit of the rollout's time, or that of its sandbox's where it passes first. */
function firstOf(own: TimeLimit | null, cut: ProgramSandbox['cut']): TimeLimit | null {
  if (cut === null || (own !== null && own.seconds <= cut.programS)) return own;
  return { seconds: cut.programS, fate: 'truncate', overBudget: cut.by };
}

/** The snapshot is gone, or is not what was saved: the next try begins at the start. */
function isOfSnapshot(error: unknown): error is RatchetError {
  return error instanceof RatchetError && /^(?:CheckpointDamaged|SandboxRefused)$/.test(error.code);
}

interface Running extends Saved {
  readonly sandbox: Sandbox;
  readonly startedAt: number;
  /** When its sandbox was there: the limit counts from then on. */
  readonly takenAt: number;
  readonly timeLimit: TimeLimit | null;
}

async function runProgram(running: Running, capture: Capture, watched: WatchedPolicy): Promise<RolloutRecord> {
  const { program, sandbox, place, id, task, startedAt, takenAt, timeLimit, snapshots } = running;
  const told = { ...task.told, ...present({ system_prompt: place.systemPrompt }) };
  await sandbox.write(`${ownFolder}/task.json`, taskJson(id, told));
  snapshots?.begin({ sandbox, capture });
  const begunAt = performance.now();
  const leftS = timeLimit ? timeLimit.seconds - (begunAt - takenAt) / 1000 : null;
  const command = await sandbox.start(
    {
      argv: (snapshots?.resumed ? program.resume! : program).command as [string, ...string[]],
      env: environmentOf(running, capture),
      timeoutS: Math.max(0, Math.ceil(leftS ?? programSecondsMax)) + 1,
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
  const run = { ...programRun(result, { capture, stopped, begunAt, startedAt }), ...snapshots?.report() };
  const ended = outcomeOf(run, { running, capture, watched });
  if (ended.outcome === 'infra_failure')
    await snapshots?.programFailed(ended.error, { isKilled: run.signal !== undefined && run.stopped === undefined });
  if ('error' in ended) return { turns: capture.turns, program: run, ...ended };
  const secrets = [capture.key, ...secretValues(running.variables)];
  const collected = await collectFiles(sandbox, program.score.collect, secrets);
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
  const { sampled, recalled, others, kept } = capture.calls;
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
    calls: { sampled, recalled, others, ...(kept > 0 ? { kept } : {}) },
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
  | ({ readonly outcome: 'ok' | 'truncated' } & Pick<RolloutRecord, 'isTimedOut' | 'overBudget'>)
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
  const { program, timeLimit } = running;
  const { refusal } = capture;
  const isTooLong = (error: unknown): boolean => error instanceof RatchetError && error.code === 'PromptTooLong';
  if (capture.failure !== undefined && !isTooLong(capture.failure)) throw capture.failure;
  const said = outputOf(run);
  if (run.stopped === 'time') {
    const { seconds, fate, overBudget } = timeLimit!;
    return fate === 'truncate'
      ? { outcome: 'truncated', ...(overBudget ? { overBudget } : { isTimedOut: true }) }
      : { outcome: 'timeout', error: `${tookLonger(seconds)}${said}` };
  }
  if (run.stopped === 'turn')
    return { outcome: 'timeout', error: `TurnTimeout: a call of the policy was not answered within turn_timeout = ${program.turnTimeoutS} s.` }; // prettier-ignore
  if (run.stopped === 'tool')
    return { outcome: 'infra_failure', error: `ToolTimeout: the program made no call for tool_timeout = ${program.toolTimeoutS} s.${said}` }; // prettier-ignore
  if (watched.calls === 0) {
    const how = howItFailed({ code: run.exitCode, signal: run.signal ?? null }) ?? 'ended with exit code 0';
    return { outcome: 'infra_failure', error: `NeverCalled: the program made no call of the policy, which it finds at OPENAI_BASE_URL or ANTHROPIC_BASE_URL; it ${how}.${said}` }; // prettier-ignore
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
