import { environmentTraits } from '../../core/kinds/environments.ts';
import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import { learnsFromTeacher } from '../../core/rl/learning/batch.ts';
import type { Example, ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { EnvironmentSpec, JsonValue, RunSpec } from '../../config/run-spec.ts';
import { whyNoDemonstrations } from './demonstrations.ts';
import type { Environment } from './types.ts';
import { unlikeText, whatIsShown } from './unlike-text.ts';

type Asked = Pick<RunSpec, 'environments' | 'sft' | 'teacher' | 'distillation' | 'turnCredit' | 'lengthPenalty'>;
interface Opened {
  readonly entry: Pick<EnvironmentSpec, 'name' | 'python'>;
  readonly environment: Pick<Environment, 'name' | 'demonstrate' | 'dataset' | 'isSingleTurn'>;
}

/** A missing ability, by the setting that needs it. */
interface Lack {
  readonly at: readonly string[];
  readonly expected: string;
  readonly received: string;
}

/** Requirements that the opened environments do not meet. */
export function whatIsLacking(
  spec: Asked,
  opened: readonly Opened[],
): { readonly problems: readonly Lack[]; readonly warnings: readonly string[] } {
  const isWhole = opened.length === spec.environments.length;
  const noWarmUp = isWhole
    ? whyNoDemonstrations(
        spec,
        opened.map(({ environment }) => environment),
      )
    : null;
  const untold = opened.map((one) => whyUntold(spec, one)).find((lack) => lack !== null);
  const shown = opened.map(whatItShows).find((lack) => lack !== null);
  return {
    problems: [
      ...(noWarmUp ? [{ at: ['sft'], ...noWarmUp }] : []),
      ...(untold ? [untold] : []),
      ...(shown ? [shown] : []),
    ],
    warnings: turnWarnings(spec, opened),
  };
}

/** A policy is trained on tokens of text. */
function whatItShows({ entry, environment: { dataset } }: Opened): Lack | null {
  const found = dataset.length === 0 ? null : unlikeText(dataset);
  if (found === null) return null;
  return { at: ['env'], expected: 'environments whose prompts are text', received: whatIsShown(entry.name, found) };
}

/** Judges by the first example; an environment in a process of its own may only say it in its rollouts. */
function whyUntold(spec: Asked, { entry, environment }: Opened): Lack | null {
  const key = demonstrationKey(spec, entry.name);
  const { dataset } = environment;
  if (key === undefined || environmentTraits(entry).process === 'child' || dataset.length === 0) return null;
  const told = { example: dataset.at(0), record: undefined };
  if (demonstrationIn(told, key) !== undefined) return null;
  return {
    at: ['teacher', 'demonstration'],
    expected: `the name of a text of an example: those of ${entry.name} have ${textsOf(told)}`,
    received: JSON.stringify(key),
  };
}

function turnWarnings({ turnCredit, lengthPenalty }: Asked, opened: readonly Opened[]): string[] {
  const settings = [
    ...(turnCredit ? ['trainer.advantage.turns'] : []),
    ...(lengthPenalty?.turns ? ['trainer.length_penalty.turns'] : []),
  ];
  const whole = turnCredit
    ? opened.filter(({ entry }) => entry.python?.api === 'v1').map(({ entry }) => entry.name)
    : [];
  const single = opened.flatMap(({ entry, environment }) => (environment.isSingleTurn === true ? [entry.name] : []));
  return [
    ...settings
      .filter(() => single.length > 0)
      .map((setting) => `${setting} has no effect on ${single.join(', ')}: a rollout there has one turn.`),
    ...(whole.length === 0
      ? []
      : [
          `trainer.advantage.turns: the v1 API of verifiers rewards whole rollouts, so the last turn of each has all of its reward (${whole.join(', ')}).`,
        ]),
  ];
}

/** An example, with a rollout of it if its environment leaves a record. */
interface Told {
  readonly example: Example | undefined;
  readonly record: Readonly<Record<string, JsonValue>> | undefined;
}

/** The demonstration of an example under this name; undefined if there is none. */
function demonstrationIn({ example, record }: Told, key: string): string | undefined {
  const [said, shown] = [tableOf(record?.['info']), tableOf(example?.info)];
  const found =
    shown[key] ??
    (key === 'answer' ? example?.answer : undefined) ??
    tableOf(shown['task'])[key] ??
    said[key] ??
    tableOf(said['task'])[key] ??
    record?.[key];
  return typeof found === 'string' && found !== '' ? found : undefined;
}

/**
 * The demonstration for a policy that is its own teacher. A missing one is reported with the first group, before a
 * batch is made of it.
 */
export function demonstrationOf(
  spec: Pick<RunSpec, 'teacher' | 'environments' | 'distillation'>,
  { exampleId, environment, example, rollouts }: Omit<ScoredGroup, 'demonstration'>,
): string | undefined {
  const key = demonstrationKey(spec, environment);
  if (key === undefined) return undefined;
  const told = { example, record: rollouts.find(({ record }) => record !== undefined)?.record };
  const found = demonstrationIn(told, key);
  if (found !== undefined || rollouts.every(({ reward }) => reward === null)) return found;
  throw new RatchetError(
    'Unsupported',
    `Example ${exampleId} of ${environment} has no text called ${JSON.stringify(key)}, which [teacher] demonstration names; it has ${textsOf(told)}.`,
  );
}

/** The key of demonstrations if the policy is its own teacher in that environment. */
function demonstrationKey(
  spec: Pick<RunSpec, 'teacher' | 'environments' | 'distillation'>,
  environment: string,
): string | undefined {
  const entry = spec.environments.find(({ name }) => name === environment) ?? {};
  return learnsFromTeacher(spec, entry) ? spec.teacher?.demonstration?.key : undefined;
}

/** Names of an example's texts, for people. */
function textsOf({ example, record }: Told): string {
  const tables = [record, tableOf(record?.['info']), tableOf(example?.info)];
  const tasks = tables.map((table) => tableOf(table?.['task']));
  const texts = Object.assign({}, ...tasks, ...tables, present({ answer: example?.answer })) as object;
  const names = Object.entries(texts).flatMap(([name, value]) => (typeof value === 'string' ? [name] : []));
  return names.length === 0 ? 'none' : names.join(', ');
}

function tableOf(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? { ...value } : {};
}
