import path from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { openRunStore, requireOwnFolder } from '../store/index.ts';
import { RatchetError } from '../core/errors.ts';
import { modelName } from '../core/names.ts';
import { codeOfAdvantage } from '../core/rl/learning/advantage.ts';
import type { LiveSetting } from '../core/rl/live-settings.ts';
import { requireFreeName } from './free-name.ts';
import { layout } from './layout.ts';
import type { EnvironmentSpec, RunSpec } from '../config/run-spec.ts';
import { runRecordIn } from './forms/record-shapes.ts';
import { refuseUnfinished } from './archive/unfinished-import.ts';

/** A setting that differs between two specs of a run. */
export interface Difference {
  /** Path in the spec: `sampling.temperature`. */
  readonly at: string;
  /** Name in a run file: `[sampling] temperature`. */
  readonly name: string;
  readonly was: unknown;
  readonly now: unknown;
  /** Another value would make it another run. */
  readonly staysForLife: boolean;
  /** Name for `ratchet set` if the setting may change while the run is under way. */
  readonly live: LiveSetting | null;
  /** Concerns only the processes that work on the run, or their paths. It does not change the run. */
  readonly isOfProcesses: boolean;
  /** Content of a code file, which the run file only names. */
  readonly isOfCode: boolean;
}

type KeyPath = readonly string[];

/**
 * Names of spec parts in a run file, and which parts must stay the same when a run continues. Nested keys are appended to the name. Parts
 * that are not listed have the name of their table.
 */
const parts: readonly { readonly path: string; readonly name: string; readonly stays?: true }[] = [
  { path: 'model', name: 'model', stays: true },
  { path: 'seed', name: 'seed', stays: true },
  { path: 'batchSize', name: 'batch_size', stays: true },
  { path: 'rolloutsPerExample', name: 'rollouts_per_example', stays: true },
  { path: 'environments', name: '[[env]]', stays: true },
  { path: 'sft', name: '[sft]', stays: true },
  { path: 'data', name: '[data]', stays: true },
  { path: 'sampling', name: '[sampling]', stays: true },
  { path: 'temperatureSchedule', name: '[sampling.temp_scheduler]', stays: true },
  { path: 'chatTemplate', name: '[tokenizer] chat_template', stays: true },
  { path: 'advantage', name: '[trainer] advantage', stays: true },
  { path: 'turnCredit', name: '[trainer.advantage] turns', stays: true },
  { path: 'lora', name: '[lora]', stays: true },
  { path: 'optimizer.type', name: '[trainer] optimizer', stays: true },
  { path: 'loss.import', name: "[trainer] loss, by its file's content", stays: true },
  { path: 'optimizer', name: '[trainer]' },
  { path: 'schedule', name: '[trainer]' },
  { path: 'loss', name: '[trainer.loss]' },
  { path: 'lengthPenalty', name: '[trainer.length_penalty]' },
  { path: 'overlongPenalty', name: '[trainer.overlong_penalty]' },
  { path: 'eval.environments', name: '[[eval.env]]' },
];

/** Paths of settings that may change while the run is under way. */
const liveAt: Readonly<Record<string, LiveSetting>> = {
  learningRate: 'learning_rate',
  maxSteps: 'max_steps',
  'optimizer.maxGradNorm': 'max_grad_norm',
  maxMismatchKl: 'max_mismatch_kl',
  'eval.interval': 'eval.interval',
  'checkpoints.interval': 'checkpoints.interval',
  'queue.priority': 'queue.priority',
};

/** Parts of an environment that may change when a run continues: its code may be fixed, and pools may be drawn differently from then on. */
const changeableInEnvironment = ['sha256', 'python', 'variables', 'limits', 'agent', 'episode', 'pools'];

const ofProcesses = [
  'trainer.threads',
  'trainer.gpuIds',
  'trainer.program',
  'trainer.ranks',
  'trainer.nodes',
  'trainer.launcher',
  'trainer.rankTimeoutS',
  'trainer.ep',
  'trainer.cp',
  'trainer.maxSteps',
  'trainer.checkpointInterval',
  'inference.vllm.program',
  'inference.vllm.port',
  'inference.vllm.gpuIds',
  'queue',
];

/** Not compared: the run's name, and keys that nothing reads yet. */
const notCompared: readonly string[] = ['schemaVersion', 'name', 'later'];

/** Returns the differences between two specs of a run, in the order of the spec. A missing value equals null. */
export function differencesBetween(now: RunSpec, then: RunSpec): Difference[] {
  const [after, before] = [comparable(now), comparable(then)];
  const found = leaves([], before, after).filter((leaf) => !isOnlyResolved(leaf));
  return found.map(({ keys, before: was, after: is }) => {
    const at = keys.join('.');
    const staysForLife =
      keys[0] === 'environments'
        ? !changeableInEnvironment.includes(keys[2] ?? '')
        : parts.some(({ path: part, stays }) => stays && isWithin(at, part));
    return {
      at,
      name: nameOf(keys),
      was,
      now: is,
      staysForLife,
      live: liveAt[at] ?? null,
      isOfProcesses: ofProcesses.some((part) => isWithin(at, part)),
      isOfCode: at === 'loss.import' || keys.includes('python') || keys.at(-1) === 'sha256',
    };
  });
}

/** Returns a spec without file paths, which differ between machines. Code and data are compared by content, environments by name. */
function comparable(spec: RunSpec): Record<string, unknown> {
  const { advantage, sft, data, chatTemplate, loss, optimizer, trainer, inference } = spec;
  const code = codeOfAdvantage(advantage);
  return {
    ...Object.fromEntries(Object.entries(spec).filter(([key]) => !notCompared.includes(key))),
    model: modelName(spec.model), // paths of caches differ between machines
    environments: byName(spec.environments),
    eval: spec.eval && { ...spec.eval, environments: byName(spec.eval.environments) },
    advantage: code === null ? advantage : { import: pathless(code) },
    sft: sft && { ...sft, data: sft.data && pathless(sft.data) },
    data: data && { ...data, rows: pathless(data.rows) },
    chatTemplate: chatTemplate && pathless(chatTemplate),
    loss: { ...loss, import: loss.import?.sha256 ?? null },
    optimizer: { ...optimizer, type: optimizer.type ?? 'adamw' },
    trainer: 'import' in trainer ? { ...trainer, import: pathless(trainer.import) } : trainer,
    inference: 'import' in inference ? { ...inference, import: pathless(inference.import) } : inference,
  };
}

/** Stands for the order of environments; no environment can have this name. */
const inOrder = 'in this order';

type Environment = Pick<EnvironmentSpec, 'id' | 'name' | 'sha256' | 'python' | 'variables' | 'program'>;

function byName(environments: readonly Environment[]): Record<string, unknown> {
  const entries = environments.map((entry) => {
    const { id, sha256, python, variables, program } = entry;
    const { folder: _, source: __, ...packaged } = python ?? {};
    const own = {
      ...entry,
      id: sha256 === undefined ? id : '',
      python: python && packaged,
      program: program && {
        ...program,
        tasks: pathless(program.tasks),
        evalTasks: program.evalTasks && pathless(program.evalTasks),
        sandbox: { ...program.sandbox, files: program.sandbox.files && pathless(program.sandbox.files) },
        score: {
          ...program.score,
          files: program.score.files && pathless(program.score.files),
          function: program.score.function && pathless(program.score.function),
        },
      },
      variables: variables && { ...variables, files: variables.files.map((file) => path.basename(file)) },
    };
    return [entry.name, own] as const;
  });
  return { ...Object.fromEntries(entries), [inOrder]: environments.map(({ name }) => name) };
}

function pathless<T extends { readonly path: string | null }>(ref: T): Omit<T, 'path'> {
  const { path: _, ...rest } = ref;
  return rest;
}

interface Leaf {
  readonly keys: KeyPath;
  readonly before: unknown;
  readonly after: unknown;
}

/** Settings that differ between two tables. */
function leaves(at: KeyPath, before: unknown, after: unknown): Leaf[] {
  if (isDeepStrictEqual(before ?? null, after ?? null)) return [];
  if (!isTable(before) || !isTable(after)) return [{ keys: at, before: before ?? null, after: after ?? null }];
  const keys = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  const found = keys.flatMap((key) => leaves([...at, key], before[key], after[key]));
  const isOwn = (leaf: Leaf): boolean => leaf.keys.length === at.length + 1;
  const isOrder = (leaf: Leaf): boolean => isOwn(leaf) && leaf.keys.at(-1) === inOrder;
  // Adding or removing an environment also changes the order, which is then not reported.
  return found.some((leaf) => isOwn(leaf) && !isOrder(leaf)) ? found.filter((leaf) => !isOrder(leaf)) : found;
}

/** A model of the Hub has no commit in a spec that was read before the model was downloaded. */
function isOnlyResolved({ keys, before, after }: Leaf): boolean {
  if (keys.join('.') !== 'model') return false;
  const [shorter, longer] = [String(before), String(after)].toSorted((a, b) => a.length - b.length);
  return longer!.startsWith(`${shorter}@`);
}

function isTable(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isWithin(at: string, part: string): boolean {
  return at === part || at.startsWith(`${part}.`);
}

function nameOf(at: KeyPath): string {
  const [first = '', ...rest] = at;
  const joined = at.join('.');
  const part = parts.find((each) => isWithin(joined, each.path));
  const named = part && [part.name, ...at.slice(part.path.split('.').length)];
  const words = named ?? (rest.length === 0 ? [first] : [`[${inSnakeCase(first)}]`, ...rest]);
  return words.map((word, i) => (i === 0 && named ? word : inSnakeCase(word))).join(' ');
}

function inSnakeCase(key: string): string {
  return key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

export function showSetting(value: unknown): string {
  if (typeof value === 'string' && /^[0-9a-f]{64}$/.test(value)) return `${value.slice(0, 12)}…`;
  return value === null || value === undefined ? 'nothing' : JSON.stringify(value);
}

/** Refuses settings that an existing run cannot continue with, before any process is started. */
export async function refuseOtherRun(spec: RunSpec): Promise<void> {
  const store = openRunStore(spec.store.uri, spec.name);
  await refuseUnfinished({ name: spec.name, store: spec.store.uri });
  const there = await store.read(layout.run());
  if (there === null) {
    requireFreeName(spec.name);
    return requireOwnFolder({ name: spec.name, store: spec.store.uri });
  }
  refuseOtherIdentity(spec, runRecordIn(there, store.uri + layout.run()), store.uri);
}

export function refuseOtherIdentity(spec: RunSpec, first: RunSpec, uri: string): void {
  const others = differencesBetween(spec, first).filter(({ staysForLife }) => staysForLife);
  if (others.length === 0) return;
  const lines = others.map(({ name, was, now }) => `  ${name}: was ${showSetting(was)}, now ${showSetting(now)}`);
  throw new RatchetError(
    'ConfigInvalid',
    `${uri} holds a run named ${spec.name} that was begun with other settings:\n${lines.join('\n')}\nA run continues with the settings it began with. Start another with --name NAME, or with --fresh.`,
  );
}
