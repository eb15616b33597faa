import { isDeepStrictEqual } from 'node:util';
import { openRunStore } from '../backends/store/index.ts';
import { RatchetError } from '../core/errors.ts';
import { modelName } from '../core/names.ts';
import { present } from '../core/present.ts';
import { codeOfAdvantage } from '../core/rl/advantage.ts';
import { layout } from './layout.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { runRecordIn } from './record-shapes.ts';
import { refuseUnfinishedFork } from './unfinished-fork.ts';

/** What must stay as it was when a run goes on, as a run file calls it: another value would make it another run. */
const identity = {
  model: 'model',
  seed: 'seed',
  batchSize: 'batch_size',
  rolloutsPerExample: 'rollouts_per_example',
  environments: '[[env]]',
  sft: '[sft]',
  data: '[data]',
  sampling: '[sampling]',
  temperatureSchedule: '[sampling.temp_scheduler]',
  chatTemplate: '[tokenizer] chat_template',
  advantage: '[trainer] advantage',
  turnCredit: '[trainer.advantage] turns',
  lora: '[lora]',
  optimizerType: '[trainer] optimizer',
  lossCode: "[trainer] loss, by its file's content",
} as const satisfies Partial<Record<keyof RunSpec | 'lossCode' | 'optimizerType', string>>;

type Identity = Record<keyof typeof identity, unknown>;

/**
 * Code counts by what it is, not by where it lies. An environment's own file may be mended while its run goes on, see
 * `changedEnvironments`, and pools may be drawn in another way from here on.
 */
function identityOf(spec: RunSpec): Identity {
  const code = codeOfAdvantage(spec.advantage);
  const advantage = code === null ? spec.advantage : { import: { ...code, path: '' } };
  const data = spec.sft?.data && { ...spec.sft.data, path: '' };
  const sft = spec.sft && { ...spec.sft, data: data ?? null };
  const environments = spec.environments.map((entry) => {
    const { id, sha256, name, args, weight } = entry;
    const { rolloutsPerExample, sampling, advantage, objective, echo } = entry;
    const own = present({ rolloutsPerExample, sampling, advantage, objective, echo });
    return { id: sha256 === undefined ? id : '', name, args, weight, ...own };
  });
  const chatTemplate = spec.chatTemplate && { ...spec.chatTemplate, path: null };
  // A cache may lie elsewhere on another machine.
  const model = modelName(spec.model);
  const { loss, temperatureSchedule = null, turnCredit = null } = spec;
  const rows = spec.data ? { ...spec.data, rows: { ...spec.data.rows, path: '' } } : null;
  const lossCode = loss.import?.sha256 ?? null;
  const optimizerType = spec.optimizer.type ?? 'adamw';
  const derived = { lossCode, optimizerType };
  const learned = { sft, data: rows };
  return {
    ...spec,
    model,
    environments,
    temperatureSchedule,
    advantage,
    turnCredit,
    ...learned,
    chatTemplate,
    ...derived,
  };
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
  const lines = differences(identityOf(spec), identityOf(first)).map((line) => `  ${line}`);
  if (lines.length === 0) return;
  throw new RatchetError(
    'ConfigInvalid',
    `${uri} holds a run named ${spec.name} that was begun with other settings:\n${lines.join('\n')}\nA run continues with the settings it began with. Start another with --name NAME, or with --fresh.`,
  );
}

function differences(now: Identity, then: Identity): string[] {
  return (Object.keys(identity) as (keyof Identity)[]).flatMap((key) => between(identity[key], then[key], now[key]));
}

/** Of two tables only the settings that differ. */
function between(name: string, then: unknown, now: unknown): string[] {
  if (isDeepStrictEqual(then, now)) return [];
  if (!isTable(then) || !isTable(now)) return [`${name}: was ${show(then)}, now ${show(now)}`];
  const keys = [...new Set([...Object.keys(then), ...Object.keys(now)])];
  return keys.flatMap((key) => between(`${name} ${inSnakeCase(key)}`, then[key], now[key]));
}

function isTable(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function inSnakeCase(key: string): string {
  return key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

function show(value: unknown): string {
  return value === null || value === undefined ? 'nothing' : JSON.stringify(value);
}
