import { RatchetError } from '../../../core/errors.ts';
import { lazily } from '../../../core/lazily.ts';
import { present } from '../../../core/present.ts';
import type { Example, Judgement, Rollout } from '../../../core/rl/rollout/rollout.ts';
import type { AgentProgram, CopiedFiles, ProgramJudge, TaskSource } from '../../../core/settings/programs.ts';
import { trustedData } from '../../../host/trusted-files.ts';
import { sharedEndpoint } from '../../inference/index.ts';
import type { SandboxFile } from '../../sandboxes/types.ts';
import { listDataset } from '../datasets.ts';
import { type Judge, openJudge } from '../judge.ts';
import { lastNumber } from '../parsers.ts';
import { tracebackOf } from '../score.ts';
import type { Dataset, Environment, Policy, RolloutPlace, RolloutRecord } from '../types.ts';
import type { OtherModel } from './capture/types.ts';
import { readCopiedFiles, Uncopied } from './copied-files.ts';
import { playProgram } from './play-program.ts';
import { sandboxesHere } from './sandboxes-here.ts';
import { callScoreFunction, scoredRun, type ScoredRun } from './score-function.ts';
import { heldOutOf, readTasks, rowOfTask, type Task, type Tasks, UnsuitableTasks } from './tasks.ts';

interface AgentEntry {
  readonly id: string;
  readonly program: AgentProgram;
  /** Values of the variables that the entry lists. */
  readonly given: Readonly<Record<string, string>>;
}

/** The environment of an agent. Reads its tasks and files, which have to be those that were there when the config was read; runs nothing. */
export async function openAgent({ id, program, given }: AgentEntry): Promise<Environment> {
  const { score, sandbox } = program;
  const [train, held] = await splitTasks(program);
  const files = filesOf(sandbox.files, 'Files of its sandboxes');
  const scoreFiles = filesOf(score.files, 'Files of its score');
  const others = Object.fromEntries(program.models.map((model) => [model.name, otherModel(model)]));
  const judge = score.judge && lazily(() => openJudgeOf(score.judge!));
  const partOf = (dataset: RolloutPlace['dataset']): Part => (dataset === 'dataset' ? train : held);
  return {
    name: id,
    dataset: train.dataset,
    evalDataset: held.dataset,
    rubric: { functions: [{ name: 'reward', weight: 1, score: () => Promise.reject(new Error(neverAlone)) }] },
    isDeterministic: program.isDeterministic,
    saysState: program.resume !== null,
    scoring: score.command === null ? 'stored' : 'in_place',
    async rollout(example: Example, policy: Policy, place?: RolloutPlace): Promise<RolloutRecord> {
      const where: Pick<RolloutPlace, 'dataset' | 'signal' | 'sandboxes'> = place ?? {
        dataset: 'dataset',
        signal: new AbortController().signal,
      };
      const sandboxes = where.sandboxes ?? (await sandboxesHere(program.sandbox));
      return playProgram({
        program,
        id: example.id,
        task: partOf(where.dataset).task(example.id),
        files,
        scoreFiles,
        others,
        variables: given,
        sandboxes,
        policy,
        place: where,
      });
    },
    async judge(example, rollouts, { signal }): Promise<readonly Judgement[]> {
      return Promise.all(
        rollouts.map(async (rollout): Promise<Judgement> => {
          if (score.command !== null) return { error: sandboxIsGone };
          try {
            return await judged({ program, judge, variables: Object.keys(given), signal }, example, rollout);
          } catch (error) {
            return { error: tracebackOf(error) };
          }
        }),
      );
    },
  };
}

const neverAlone = 'an agent is scored as its run file says, never by this function';
const sandboxIsGone =
  'its score is a command in its sandbox, which ended with the rollout before it was scored; what is unfinished when its time is over can be scored from what is stored alone (score.function, score.judge)';

interface Part {
  readonly dataset: Dataset;
  task(index: number): Task;
}

/** Tasks to train on, and those that are held out. */
async function splitTasks(program: AgentProgram): Promise<[Part, Part]> {
  const { tasks: source, evalTasks, sandbox } = program;
  const tasks = await tasksOf(source, sandbox);
  if (evalTasks !== null) return [partOf(tasks, 0, tasks.length), partOfAll(await tasksOf(evalTasks, sandbox))];
  const from = tasks.length - heldOutOf(tasks.length, program);
  return [partOf(tasks, 0, from), partOf(tasks, from, tasks.length)];
}

function partOfAll(tasks: Tasks): Part {
  return partOf(tasks, 0, tasks.length);
}

function partOf(tasks: Tasks, from: number, to: number): Part {
  const task = (index: number): Task => {
    if (Number.isInteger(index) && index >= 0 && index < to - from) return tasks.at(from + index);
    throw new RangeError(`Example ${index} of a dataset of ${to - from}.`);
  };
  const dataset: Dataset = {
    length: to - from,
    at: (index) => ({ ...listDataset([rowOfTask(task(index))]).at(0), id: index }),
    unlikeText: () => listDataset(to > from ? [rowOfTask(task(0))] : []).unlikeText?.() ?? null,
  };
  return { dataset, task };
}

/** Read once per process: a rollout that fails opens its environment anew. */
const known = new Map<string, Promise<Tasks>>();
const knownMax = 16;

async function tasksOf(source: TaskSource, sandbox: AgentProgram['sandbox']): Promise<Tasks> {
  const path = source.hub === undefined ? trustedData(source.path, 'The tasks') : source.path;
  const key = JSON.stringify([{ ...source, path }, sandbox.pool.provider.kind, sandbox.image === null]);
  const reading = known.get(key) ?? readTasks({ ...source, path }, sandbox);
  if (source.sha256 !== null) {
    known.set(key, reading);
    if (known.size > knownMax) known.delete(known.keys().next().value!);
  }
  const tasks = await reading.catch((cause: unknown) => {
    known.delete(key);
    if (!(cause instanceof UnsuitableTasks)) throw cause;
    throw new RatchetError('ConfigInvalid', `The tasks of an agent: ${cause.message}.`, { cause });
  });
  requireUnchanged(`The tasks ${source.path}`, source.sha256, tasks.sha256);
  return tasks;
}

function filesOf(named: CopiedFiles | null, what: string): readonly SandboxFile[] {
  if (named === null) return [];
  try {
    const { files, sha256 } = readCopiedFiles(trustedData(named.path, what));
    requireUnchanged(`${what}, ${named.path},`, named.sha256, sha256);
    return files;
  } catch (cause) {
    if (!(cause instanceof Uncopied)) throw cause;
    throw new RatchetError('ConfigInvalid', `${what}: expected a file or a folder; got ${cause.message}.`, { cause });
  }
}

function requireUnchanged(what: string, expected: string | null, found: string): void {
  if (expected === null || expected === found) return;
  throw new RatchetError(
    'ConfigInvalid',
    `${what} changed in the middle of its run: expected sha256 ${expected.slice(0, 12)}…, found ${found.slice(0, 12)}…. Put the files back, or train the run's file again (ratchet train), which continues with them as they are then.`,
  );
}

function otherModel({ baseUrl, model, apiKeyVar, maxTokens }: AgentProgram['models'][number]): OtherModel {
  const endpoint = sharedEndpoint([{ model, baseUrl, apiKeyVar, headers: {} }]);
  return { chat: (request) => endpoint.chat(request), ...present({ maxTokens: maxTokens ?? undefined }) };
}

function openJudgeOf({ baseUrl, model, apiKeyVar, maxTokens }: ProgramJudge): Judge {
  return openJudge({
    base_url: baseUrl,
    model,
    max_tokens: maxTokens,
    ...(apiKeyVar === null ? {} : { api_key_var: apiKeyVar }),
  });
}

interface Scoring {
  readonly program: AgentProgram;
  readonly judge: (() => Judge) | null;
  readonly variables: readonly string[];
  readonly signal: AbortSignal | undefined;
}

/** Scores from what is stored, by the function or the judge. */
async function judged(
  { program: { score }, judge, variables, signal }: Scoring,
  example: Example,
  rollout: Rollout,
): Promise<Judgement> {
  const run = scoredRun(example, rollout);
  if (score.function !== null)
    return callScoreFunction(score.function, run, { timeoutS: score.timeoutS, signal, variables });
  const answer = await judge!().ask(questionFor(score.judge!.prompt, run));
  const reward = lastNumber(answer);
  if (reward !== undefined) return { reward, metrics: {} };
  return { error: `The judge's answer has no number in it: ${JSON.stringify(answer.slice(0, 200))}` };
}

/** Most characters of the conversation and of each file that a judge sees: their ends say what came of it. */
const judgedCharsMax = 24_000;

function questionFor(prompt: string, { example, messages, files, program }: ScoredRun): string {
  const said = messages.map(({ role, content }) => `[${role}]\n${content}`).join('\n\n');
  const task = example.prompt.map(({ content }) => content).join('\n\n');
  const parts = [
    ['Task', task],
    ...(example.answer === '' ? [] : [['Right answer', example.answer]]),
    ['Conversation', endOf(said)],
    ...Object.entries(files).map(([path, text]) => [`File ${path}`, endOf(text)]),
    ...(program ? [['Exit code of the program', String(program.exitCode)]] : []),
  ];
  const told = parts.map(([title, text]) => `## ${title}\n${text}`).join('\n\n');
  return `${prompt}\n\n${told}\n\nEnd your answer with the score: a number alone in the last line.`;
}

function endOf(text: string): string {
  return text.length <= judgedCharsMax ? text : `…${text.slice(-judgedCharsMax)}`;
}
