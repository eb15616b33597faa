import path from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { openRunStore } from '../backends/store/index.ts';
import { RatchetError } from '../core/errors.ts';
import { modelName } from '../core/names.ts';
import { codeOfAdvantage } from '../core/rl/advantage.ts';
import type { LiveSetting } from '../core/rl/live-settings.ts';
import { layout } from './layout.ts';
import type { EnvironmentSpec, RunSpec } from '../config/run-spec.ts';
import { runRecordIn } from './record-shapes.ts';
import { refuseUnfinishedFork } from './unfinished-fork.ts';

/** A setting that two specs of a run have otherwise. */
export interface Difference {
  /** Where the spec has it: `sampling.temperature`. */
  readonly at: string;
  /** As a run file calls it: `[sampling] temperature`. */
  readonly name: string;
  readonly was: unknown;
  readonly now: unknown;
  /** With another value it would be another run. */
  readonly staysForLife: boolean;
  /** May be changed while the run goes on: what `ratchet set` calls it. */
  readonly live: LiveSetting | null;
  /** Of the processes that work on the run, or of the paths they use: it changes nothing of what the run is. */
  readonly isOfProcesses: boolean;
  /** The content of code, which is not in the run file itself. */
  readonly isOfCode: boolean;
}

type KeyPath = readonly string[];

/**
 * What a run file calls a part of a spec, and what must stay as it was when a run goes on. Further keys of a part are named behind it.
 * What is not here has the name of its table.
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

/** Where the spec has what may be changed in a running run. */
const liveAt: Readonly<Record<string, LiveSetting>> = {
  learningRate: 'learning_rate',
  maxSteps: 'max_steps',
  'optimizer.maxGradNorm': 'max_grad_norm',
  maxMismatchKl: 'max_mismatch_kl',
  'eval.interval': 'eval.interval',
  'checkpoints.interval': 'checkpoints.interval',
};

/** May change in an environment of a run that goes on: its code may be mended, and pools may be drawn in another way from here on. */
const changeableInEnvironment = ['sha256', 'python', 'variables', 'limits', 'agent', 'episode', 'pools'];

const ofProcesses = [
  'trainer.threads',
  'trainer.gpuIds',
  'inference.vllm.program',
  'inference.vllm.port',
  'inference.vllm.gpuIds',
];

/** No difference between two specs of a run: what it is called, and what nothing reads yet. */
const notCompared: readonly string[] = ['schemaVersion', 'name', 'later'];

/** Where two specs of a run differ, in the order of a spec. Nothing said and null are the same. */
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

/**
 * A spec without where its files are, which is another place on another machine: code and data count by what they are. Environments
 * are there by their names.
 */
function comparable(spec: RunSpec): Record<string, unknown> {
  const { advantage, sft, data, chatTemplate, loss, optimizer, trainer, inference } = spec;
  const code = codeOfAdvantage(advantage);
  return {
    ...Object.fromEntries(Object.entries(spec).filter(([key]) => !notCompared.includes(key))),
    model: modelName(spec.model), // a cache may be elsewhere
    environments: byName(spec.environments),
    eval: spec.eval && { ...spec.eval, environments: byName(spec.eval.environments) },
    advantage: code === null ? advantage : { import: pathless(code) },
    sft: sft && { ...sft, data: sft.data && pathless(sft.data) },
    data: data && { ...data, rows: pathless(data.rows) },
    chatTemplate: chatTemplate && pathless(chatTemplate),
    loss: { ...loss, import: loss.import?.sha256 ?? null },
    optimizer: { ...optimizer, type: optimizer.type ?? 'adamw' },
    trainer: trainer.kind === 'module' ? { ...trainer, import: pathless(trainer.import) } : trainer,
    inference: inference.kind === 'module' ? { ...inference, import: pathless(inference.import) } : inference,
  };
}

/** No environment is called so. */
const inOrder = 'in this order';

type Environment = Pick<EnvironmentSpec, 'id' | 'name' | 'sha256' | 'python' | 'variables'>;

function byName(environments: readonly Environment[]): Record<string, unknown> {
  const entries = environments.map((entry) => {
    const { id, sha256, python, variables } = entry;
    const { folder: _, source: __, ...packaged } = python ?? {};
    const own = {
      ...entry,
      id: sha256 === undefined ? id : '',
      python: python && packaged,
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

/** Of two tables only the settings that differ. */
function leaves(at: KeyPath, before: unknown, after: unknown): Leaf[] {
  if (isDeepStrictEqual(before ?? null, after ?? null)) return [];
  if (!isTable(before) || !isTable(after)) return [{ keys: at, before: before ?? null, after: after ?? null }];
  const keys = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  const found = keys.flatMap((key) => leaves([...at, key], before[key], after[key]));
  const isOwn = (leaf: Leaf): boolean => leaf.keys.length === at.length + 1;
  const isOrder = (leaf: Leaf): boolean => isOwn(leaf) && leaf.keys.at(-1) === inOrder;
  // An environment that came or went has changed their order as well.
  return found.some((leaf) => isOwn(leaf) && !isOrder(leaf)) ? found.filter((leaf) => !isOrder(leaf)) : found;
}

/** A model of the Hub that was not on the machine when one of the two was read: it has no commit there. */
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

/** Refuses settings with which a run that is there cannot go on, before anything is started for them. */
export async function refuseOtherRun(spec: RunSpec): Promise<void> {
  const store = openRunStore(spec.store.uri, spec.name);
  const there = await store.read(layout.run());
  if (there === null) return;
  await refuseUnfinishedFork({ name: spec.name, store: spec.store.uri });
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
