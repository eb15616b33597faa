import { ApplicationFailure, workflowInfo } from '@temporalio/workflow';
import type { TrainRunInput } from '../activities/index.ts';
import type { ScheduleChange } from '../activities/record-change.ts';
import type { EvaluationFileInput, EvaluationInput, EvaluationsInput } from '../core/eval/evaluation.ts';
import type { RescoreInput } from '../core/eval/rescore.ts';
import type { SweepInput } from '../core/sweep/sweep.ts';
import type { CarriedSweep } from '../core/sweep/sweep-state.ts';
import type { PromptFileInput, PromptSearchInput } from '../core/gepa/prompt-search.ts';
import { scheduleChanges } from '../core/rl/changes.ts';
import { memoKeys, poolNamePattern, runNamePattern, taskQueues, workflowIdPattern } from '../core/names.ts';
import {
  anything,
  asTyped,
  eitherBy,
  fieldsOf,
  flag,
  isPlainObject,
  lineOfText,
  listOf,
  number,
  oneOf,
  onlyFieldsOf,
  optional,
  orNull,
  received,
  recordOf,
  type Shape,
  text,
  textLike,
  tomlValue,
  unnamed,
  whole,
  wholeOrAll,
} from '../core/shape.ts';
import type { EvaluateNewestInput } from './evaluate-newest.ts';
import { objectRef, policyVersion, regressionActions, runHandle } from './control/message-shapes.ts';
import type { CarriedPromptSearch } from './optimize-prompt.ts';
import type { PoolInput } from './pool.ts';
import type { PlayRoundsInput } from './play-rounds.ts';
import type { ContinuedRun } from './run-start.ts';
import type { SweepSandboxesInput } from './sweep-sandboxes.ts';

/*
 * Validates the inputs of workflows. Any client of Temporal can start a workflow with any input, and a TypeError over
 * an input would make Temporal retry the workflow task for ever. So each workflow reads its input here first, and an
 * invalid one fails at once: the error has the field, what was expected, what came, and an example to type.
 */

const pathCharsMax = 4096;
const path = (what: string): Shape => lineOfText(`the path of ${what}`, pathCharsMax);
const runName = textLike(
  "a run's name (a-z, 0-9 and . _ -, beginning with a letter or digit, at most 64)",
  runNamePattern,
);
const settings = recordOf(
  tomlValue,
  'settings as on the command line, an object such as {"max_steps": 3, "sampling.temperature": 0.7}',
);
const texts = recordOf(text, 'texts by name');

const overFiles = listOf(
  onlyFieldsOf({ file: path('a run file'), section: optional(text) }),
  'a list of files that are laid over it, such as [{"file": "mine.toml"}]',
);
const takesOver = fieldsOf({
  handle: orNull(runHandle),
  asked: orNull(fieldsOf({ overrides: recordOf(number, 'settings that were changed') })),
  request: text,
});
/**
 * The input of a run that was already opened. Other fields that an older version accepted are ignored, because the file is not read again.
 */
const openedRun = fieldsOf({ config: path('a run file'), takesOver });
const trainRunFields = onlyFieldsOf({
  config: path('a run file'),
  run: optional(runName),
  overrides: optional(settings),
  over: optional(overFiles),
  dialect: optional(text),
  rewind: optional(whole),
  stopAfter: optional(whole),
  sent: unnamed(optional(fieldsOf({ texts, beside: texts }))),
  takesOver: unnamed(optional(takesOver)),
});

const evaluationFile = onlyFieldsOf({
  config: path('a file of evaluations'),
  over: optional(recordOf(anything, 'settings in the words of the file, an object such as {"num_examples": 20}')),
  goOn: optional(oneOf('interrupted', 'unfinished', 'never')),
});
const server = fieldsOf({ model: text, baseUrl: text, apiKeyVar: orNull(text), headers: texts });
const fields = recordOf(anything, 'fields by name');
const endpointModel = fieldsOf({ model: text, servers: listOf(server), sampling: fields });
const versionModel = fieldsOf({ model: text, run: runHandle, policy: policyVersion, sampling: fields });
const unknownModel = fieldsOf({ kind: oneOf('endpoint', 'version') });
const model = eitherBy(
  ({ kind }) => (kind === 'endpoint' ? endpointModel : kind === 'version' ? versionModel : unknownModel),
  'the model that answers, an object with kind "endpoint" or "version"',
);
const environment = fieldsOf({ id: text, name: text, args: fields });
const place = fieldsOf({ store: text, name: text, prefix: text });
const notify = fieldsOf({ workflowId: text, signal: text });
const evaluationFields = {
  environment,
  model,
  numExamples: wholeOrAll,
  skipExamples: optional(whole),
  rolloutsPerExample: whole,
  seed: number,
  shuffleSeed: orNull(number),
  maxConcurrent: wholeOrAll,
  independentScoring: flag,
  maxRetries: whole,
  standstillS: number,
  systemPrompt: optional(objectRef),
  results: place,
  about: optional(fields),
  prices: optional(fieldsOf({ input: number, output: number })),
  budget: optional(fields),
  notify: optional(notify),
};
const severalEvaluations = (one: Shape): Shape =>
  onlyFieldsOf({
    inputs: listOf(one, 'a list of evaluations'),
    title: text,
    names: optional(listOf(text)),
    atOnce: optional(whole),
  });

const newest = onlyFieldsOf({
  config: orNull(path('a file of evaluations')),
  run: orNull(onlyFieldsOf({ name: runName, store: text })),
  onRegression: oneOf(...regressionActions),
});

const promptFile = onlyFieldsOf({
  config: path('a file of prompt optimization'),
  overrides: optional(settings),
  yes: optional(flag),
});
const searchFields = {
  environments: listOf(environment, 'a list of environments'),
  model,
  reflection: fieldsOf({ model: text, servers: listOf(server), fields }),
  maxCalls: whole,
  maxReflections: optional(whole),
  minibatchSize: whole,
  perfectScore: orNull(number),
  stateColumns: listOf(text),
  numTrain: wholeOrAll,
  numVal: wholeOrAll,
  numTest: whole,
  maxConcurrent: wholeOrAll,
  seed: number,
  isClassic: flag,
  initialPrompt: orNull(text),
  components: optional(listOf(anything)),
  merges: optional(flag),
  tuning: optional(fields),
  results: place,
  savesResults: flag,
  isSmallBudgetMeant: flag,
  isBranch: optional(flag),
  startPrompt: optional(objectRef),
  budget: optional(fields),
  notify: optional(notify),
};
const subject = eitherBy(
  ({ kind }) =>
    kind === 'evaluation'
      ? fieldsOf({ place })
      : fieldsOf({ kind: oneOf('run', 'evaluation'), name: text, store: text, steps: fieldsOf({ first: whole, last: whole }) }),
  'whose rollouts are rescored, an object with kind "run" or "evaluation"',
); // prettier-ignore
const rescoreFields = {
  subject,
  environments: listOf(environment, 'a list of environments'),
  rubric: orNull(environment),
  failedOnly: flag,
  limit: optional(fieldsOf({ calls: optional(whole), tokens: optional(whole) })),
  results: place,
};
const roundsFields = fieldsOf({ run: runHandle, spec: fieldsOf({ heartbeatTimeoutS: number }), tells: text });

const sweepRun = onlyFieldsOf({
  name: runName,
  row: whole,
  seed: orNull(whole),
  overrides: recordOf(text, 'settings as on the command line, an object such as {"learning_rate": "0.001"}'),
});
const sweepFields = onlyFieldsOf({
  name: runName,
  store: path('the folder of its runs'),
  config: path('a run file'),
  over: optional(overFiles),
  dialect: optional(text),
  sent: unnamed(optional(fieldsOf({ texts, beside: texts }))),
  rows: listOf(recordOf(anything, 'settings by name'), 'a list of rows of settings'),
  runs: listOf(sweepRun, 'a list of runs'),
  metric: onlyFieldsOf({ name: text, goal: oneOf('max', 'min'), lastSteps: whole }),
  maxSteps: whole,
  halving: orNull(onlyFieldsOf({ eta: number, rungs: orNull(whole), minSteps: orNull(whole) })),
  atOnce: whole,
});

/** Reads the input of `trainRun`, typed in any of its forms or carried over from an earlier execution. */
export function readTrainRunInput(given: readonly unknown[]): Exclude<TrainRunInput, string> | ContinuedRun {
  const door = new Door('trainRun', given, {
    what: 'the path of a run file, or an object',
    examples: [{ config: 'words.toml', run: 'words-b', overrides: { max_steps: 6 } }],
  });
  const input = door.one();
  if (isPlainObject(input) && 'continued' in input) return door.carried<ContinuedRun>(input);
  const read = withoutNulls(fromPath(input));
  const isOpen = isPlainObject(read) && isPlainObject(read['takesOver']) && isPlainObject(read['takesOver']['handle']);
  const { overrides } = door.checked<Record<string, unknown>>(read, isOpen ? openedRun : trainRunFields);
  if (!isPlainObject(overrides)) return read as Exclude<TrainRunInput, string>;
  const typed = Object.fromEntries(Object.entries(overrides).map(([name, value]) => [name, asTyped(value)]));
  return { ...(read as Exclude<TrainRunInput, string>), overrides: typed };
}

/** Reads the input of `evaluate`: a file of evaluations, a list of planned ones, or one. */
export function readEvaluateInput(given: readonly unknown[]): EvaluationFileInput | EvaluationsInput | EvaluationInput {
  const door = new Door('evaluate', given, {
    what: 'the path of a file of evaluations, or an object',
    examples: [{ config: 'evals.toml', over: { num_examples: 20 } }],
  });
  const input = withoutNulls(fromPath(door.one()), Object.keys(evaluationFields));
  const one = madeByRatchet(evaluationFields);
  if (isAnyOf(input, 'inputs')) return door.checked(input, severalEvaluations(one));
  return door.checked(input, isAnyOf(input, 'environment', 'model', 'results') ? one : evaluationFile);
}

/** Reads the input of `evaluateNewest`, which a schedule of `ratchet eval schedule` starts. */
export function readEvaluateNewestInput(given: readonly unknown[]): EvaluateNewestInput {
  const door = new Door('evaluateNewest', given, {
    what: 'an object with a file of evaluations, a run, or both',
    examples: [
      { config: 'evals.toml', run: null, onRegression: 'flag' },
      { config: null, run: { name: 'words', store: 'file:outputs' }, onRegression: 'pause' },
    ],
  });
  const input = door.checked<EvaluateNewestInput>(door.one(), newest);
  if (input.config === null && input.run === null)
    throw door.refusal(['config and run are both null: one of them says what is evaluated']);
  return input;
}

const sweepExample: SweepInput = {
  name: 'lr',
  store: 'file:outputs',
  config: 'words.toml',
  rows: [{ learning_rate: 0.001 }],
  runs: [{ name: 'lr-01', row: 0, seed: null, overrides: { learning_rate: '0.001' } }],
  metric: { name: 'train/reward', goal: 'max', lastSteps: 1 },
  maxSteps: 100,
  halving: null,
  atOnce: 1,
};

/** Reads the input of `sweep`, which `ratchet sweep` makes, or state from an earlier execution. */
export function readSweepInput(given: readonly unknown[]): SweepInput | CarriedSweep {
  const door = new Door('sweep', given, {
    what: 'an object with the runs of a sweep; npx ratchet-rl sweep FILE makes it',
    examples: [sweepExample],
  });
  const input = door.one();
  if (isPlainObject(input) && 'continued' in input) return door.carried<CarriedSweep>(input);
  const read = door.checked<SweepInput>(input, sweepFields);
  const { rows, runs, halving, maxSteps, atOnce, metric } = read;
  const { eta = 2, rungs = null, minSteps = null } = halving ?? {};
  const names = runs.map(({ name }) => name);
  const twice = names.find((name, i) => names.indexOf(name) < i);
  const outside = runs.find(({ row }) => row >= rows.length);
  const counts = {
    maxSteps,
    atOnce,
    'metric.lastSteps': metric.lastSteps,
    'halving.rungs': rungs ?? 1,
    'halving.minSteps': minSteps ?? 1,
  };
  const wrong = [
    ...(runs.length === 0 ? ['runs: expected at least one, received a list of 0'] : []),
    ...(outside ? [`runs: expected rows from 0 to ${rows.length - 1}, as in rows, received ${outside.row}`] : []),
    ...(twice === undefined ? [] : [`runs: expected names that differ, received ${twice} twice`]),
    ...(eta < 2 ? [`halving.eta: expected a number from 2, received ${eta}`] : []),
    ...Object.entries(counts).flatMap(([name, count]) =>
      count < 1 ? [`${name}: expected a whole number from 1, received ${count}`] : [],
    ),
  ];
  if (wrong.length > 0) throw door.refusal(wrong);
  return read;
}

export function readSweepSandboxesInput(given: readonly unknown[]): SweepSandboxesInput {
  const door = new Door('sweepSandboxes', given, {
    what: 'an object with the place of runs whose sandboxes are swept',
    examples: [{ store: 'file:outputs' }],
  });
  return door.checked<SweepSandboxesInput>(door.one(), onlyFieldsOf({ store: path('a place of runs') }));
}

/** Reads the input of `recordScheduleChange`, which the commands that change schedules start. */
export function readScheduleChangeInput(given: readonly unknown[]): ScheduleChange {
  const door = new Door('recordScheduleChange', given, {
    what: 'an object with a schedule and what was changed; npx ratchet-rl eval schedule makes it',
    examples: [],
  });
  const shape = onlyFieldsOf({
    schedule: textLike('the id of a schedule (letters, digits and . _ : + @ -)', workflowIdPattern),
    store: path('the folder of runs'),
    run: orNull(runName),
    what: oneOf(...scheduleChanges),
    asked: text,
  });
  return door.checked<ScheduleChange>(door.one(), shape);
}

/** Reads the input of `optimizePrompt`: a file, a planned search, or state from an earlier execution. */
export function readOptimizePromptInput(
  given: readonly unknown[],
): PromptFileInput | PromptSearchInput | CarriedPromptSearch {
  const door = new Door('optimizePrompt', given, {
    what: 'the path of a file of prompt optimization, or an object',
    examples: [{ config: 'gepa.toml', overrides: { max_calls: 200 } }],
  });
  const first = door.one();
  if (isPlainObject(first) && 'state' in first && 'handle' in first) return door.carried<CarriedPromptSearch>(first);
  const input = fromPath(first);
  if (isAnyOf(input, 'environments', 'model', 'results', 'reflection'))
    return door.checked(input, madeByRatchet(searchFields));
  const read = withoutNulls(input);
  const { overrides, ...rest } = door.checked<Record<string, unknown>>(read, promptFile);
  if (!isPlainObject(overrides)) return rest as unknown as PromptFileInput;
  const typed = Object.fromEntries(Object.entries(overrides).map(([name, value]) => [name, asTyped(value)]));
  return { ...(rest as unknown as PromptFileInput), overrides: typed };
}

/** Reads the input of `rescore`, which `ratchet rescore` makes. */
export function readRescoreInput(given: readonly unknown[]): RescoreInput {
  const door = new Door('rescore', given, {
    what: 'an object that says whose rollouts are rescored; npx ratchet-rl rescore RUN makes it',
    examples: [],
  });
  return door.checked(door.one(), madeByRatchet(rescoreFields));
}

/** Reads the input of `playRounds`, which only a run starts. */
export function readPlayRoundsInput(given: readonly unknown[]): PlayRoundsInput {
  const door = new Door('playRounds', given, {
    what: 'the state that a run hands over; only a run starts this workflow',
    examples: [],
  });
  return door.checked(door.one(), roundsFields);
}

/** Reads the input of `pool`: its name, and what an execution before it knew. */
export function readPoolInput(given: readonly unknown[]): PoolInput {
  const door = new Door('pool', given, {
    what: 'an object with the name of a pool; a run or a GPU worker that names it starts it',
    examples: [{ name: 'gpus' }],
  });
  const input = door.one();
  if (isPlainObject(input) && ('state' in input || 'settings' in input)) return door.carried<PoolInput>(input);
  const name = textLike('the name of a pool (letters, digits and . _ -, at most 64)', poolNamePattern);
  return door.checked<PoolInput>(input, onlyFieldsOf({ name }));
}

interface Wanted {
  /** Describes the input in messages. */
  readonly what: string;
  readonly examples: readonly object[];
}

/** Checks the input of one workflow. */
class Door {
  readonly #type: string;
  readonly #given: readonly unknown[];
  readonly #wanted: Wanted;

  constructor(type: string, given: readonly unknown[], wanted: Wanted) {
    this.#type = type;
    this.#given = given;
    this.#wanted = wanted;
  }

  one(): unknown {
    const [first, ...more] = this.#given;
    if (more.length === 0) return first;
    throw this.refusal([
      `expected one input, received ${this.#given.length}: put what belongs together into one object`,
    ]);
  }

  checked<T>(input: unknown, shape: Shape): T {
    if (!isPlainObject(input)) throw this.refusal([`expected ${this.#wanted.what}, received ${received(input)}`]);
    const problems = shape.problems(input, '');
    if (problems.length > 0) throw this.refusal(problems);
    return input as T;
  }

  /**
   * Accepts state from an earlier execution only if Temporal, or an upgrade, says that there was one. Clients cannot start a workflow with
   * it.
   */
  carried<T>(input: unknown): T {
    if (workflowInfo().continuedFromExecutionRunId !== undefined || isTakenOver()) return input as T;
    throw this.refusal([
      'this is what one execution of the workflow handed to the next, and cannot begin another. Start it with its file: it continues from what is stored',
    ]);
  }

  refusal(problems: readonly string[]): ApplicationFailure {
    const { what, examples } = this.#wanted;
    const shown = problems.slice(0, problemsShown);
    const more = problems.length > shown.length ? [`and ${problems.length - shown.length} more`] : [];
    const id = workflowIdPattern.test(workflowInfo().workflowId) ? workflowInfo().workflowId : 'words';
    return ApplicationFailure.nonRetryable(
      [
        `The input of ${this.#type} is wrong; nothing was started:`,
        ...[...shown, ...more].map((line) => `- ${line}.`),
        `Its input is ${what}.${examples.length === 0 ? '' : ' For example:'}`,
        ...examples.flatMap((example) => [
          JSON.stringify(example),
          `npx ratchet-rl temporal workflow start --type ${this.#type} --task-queue ${taskQueues.orchestrator} --workflow-id ${id} --input '${JSON.stringify(example)}'`,
        ]),
      ].join('\n'),
      'InputInvalid',
    );
  }
}

const problemsShown = 8;

/** A text is short for an object with a path. */
function fromPath(input: unknown): unknown {
  return typeof input === 'string' ? { config: input } : input;
}

/** Some clients send null for optional fields that are left out. */
function withoutNulls(input: unknown, meant: readonly string[] = []): unknown {
  if (!isPlainObject(input) || meant.some((name) => name in input)) return input;
  return Object.fromEntries(Object.entries(input).filter(([name, value]) => name === 'config' || value !== null));
}

/**
 * Shape of inputs that Ratchet's own commands and runs create. Inputs of children and upgraded workflows may come from another version, so
 * they may have more fields.
 */
function madeByRatchet(shapes: Readonly<Record<string, Shape>>): Shape {
  return workflowInfo().parent === undefined && !isTakenOver() ? onlyFieldsOf(shapes) : fieldsOf(shapes);
}

function isTakenOver(): boolean {
  return workflowInfo().memo?.[memoKeys.takenOverFrom] !== undefined;
}

function isAnyOf(input: unknown, ...names: readonly string[]): boolean {
  return isPlainObject(input) && names.some((name) => name in input);
}
