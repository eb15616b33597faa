import { z } from 'zod';
import { formatPath, type KeyPath } from '../positions.ts';
import { serverUrls } from '../model-access.ts';
import { isTable, type Table, valueAt } from '../tables.ts';
import { atLeastZero, choice, text, whole } from '../values.ts';
import { becomes, type Dialect, type Field, type Own, together } from './dialect.ts';
import { aliasesOf } from './renames.ts';

/** What prime-rl's dialects have in common: null as a text, tables that turn something on, and values said in several places. */

/** `"None"` is prime-rl's null. */
const none = 'None';

/** Of a field that may be null, which is what it is where nothing is written. */
export function nullable(fields: Readonly<Record<string, Field>>): Record<string, Field> {
  return Object.fromEntries(Object.entries(fields).map(([path, field]) => [path, { ...field, isNullable: true }]));
}

/** Of [trainer], in every era. */
export const scheduler: Readonly<Record<string, Field>> = {
  'scheduler.type': together('`trainer.schedule`', choice('constant', 'linear', 'cosine')),
  'scheduler.warmup_steps': together('`trainer.warmup_steps`', whole(0), { usual: '10' }),
  'scheduler.decay_steps': together('`trainer.decay_steps`', whole(0), { usual: '10' }),
  'scheduler.min_lr': together('`trainer.min_lr_ratio`', atLeastZero(), { usual: '0' }),
};

/** The fields of a table, with its path before each. */
export function under(table: string, fields: Readonly<Record<string, Field>>): Record<string, Field> {
  return Object.fromEntries(Object.entries(fields).map(([key, field]) => [`${table}.${key}`, field]));
}

/**
 * A file without its nulls: `"None"` takes a field, or a table that may be missing, back to what it is where nothing is
 * written. In tables of free keys null is null. Anywhere else the text stays, and is refused for what it is.
 */
export function withoutNulls(dialect: () => Dialect, optionalTables: readonly string[]): (table: Table) => Table {
  return (table) => {
    const { fields } = dialect();
    const aliases = aliasesOf(dialect());
    const isOptional = (path: string): boolean =>
      optionalTables.includes(path) || (fields[path] ?? fields[aliases.get(path)?.path ?? ''])?.isNullable === true;
    const isFree = (path: string): boolean =>
      (fields[path] ?? fields[aliases.get(path)?.path ?? ''])?.schema instanceof z.ZodRecord;
    return cleaned(table, '', isOptional, isFree);
  };
}

function cleaned(
  table: Table,
  path: string,
  isOptional: (path: string) => boolean,
  isFree: (path: string) => boolean,
): Table {
  const entries = Object.entries(table).flatMap(([key, value]): [string, unknown][] => {
    const at = path === '' ? key : `${path}.${key}`;
    if (value === none && isOptional(at)) return [];
    if (isFree(at)) return [[key, withNulls(value)]];
    if (isTable(value)) return [[key, cleaned(value, at, isOptional, isFree)]];
    if (!Array.isArray(value)) return [[key, value]];
    return [[key, value.map((item) => (isTable(item) ? cleaned(item, `${at}[]`, isOptional, isFree) : item))]];
  });
  return Object.fromEntries(entries);
}

function withNulls(value: unknown): unknown {
  if (value === none) return null;
  if (Array.isArray(value)) return value.map(withNulls);
  if (!isTable(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, withNulls(item)]));
}

export interface Found {
  readonly value: unknown;
  readonly at: KeyPath;
}

export function found(written: Table, path: string): Found | undefined {
  const at = path.split('.');
  const value = valueAt(written, at);
  return value === undefined ? undefined : { value, at };
}

export function hasTable(written: Table, path: string): boolean {
  return isTable(valueAt(written, path.split('.')));
}

/**
 * One value that may be said in several places: that of the first. Another one elsewhere is refused, or passed over with a
 * warning where prime-rl itself passes over it.
 */
export function agreed(
  written: Table,
  own: Own,
  paths: readonly string[],
  { otherwise }: { readonly otherwise: 'refuse' | 'warn' },
): Found | undefined {
  const [first, ...rest] = paths.flatMap((path) => found(written, path) ?? []);
  if (!first) return undefined;
  for (const other of rest) {
    if (JSON.stringify(other.value) === JSON.stringify(first.value)) continue;
    const [here, there] = [formatPath(first.at), formatPath(other.at)];
    const [value, received] = [JSON.stringify(first.value), JSON.stringify(other.value)];
    if (otherwise === 'warn') own.warn(`${there} = ${received} has no effect: ${here} = ${value} is taken for both.`);
    else {
      const expected = `${value}, as ${here} says, or only one of the two: they are one setting`;
      own.refuse({ paths: [other.at, first.at], expected, received });
    }
  }
  return first;
}

/** Servers that run elsewhere: prime-rl's are vLLM's. */
export const serverBaseUrls: Field = becomes('inference.url', serverUrls());

/** Whoever names servers means these, and not the one that we would start. */
export function setServers(own: Own): void {
  const isSaid = own.get(['inference', 'kind']) !== undefined;
  if (own.get(['inference', 'url']) !== undefined && !isSaid) own.set(['inference', 'kind'], 'openai');
}

/** Settings of prime-rl's own processes and their traffic. */
export const why = {
  teacherServer:
    'a server of the teacher’s own is not started here: start it, and name its client.base_url in orchestrator.teacher_model',
  processes: 'Ratchet starts and places its own processes',
  logs: 'logs are kept by role, see `ratchet logs`',
  broadcast: 'weights reach the sampler through the store, as files that are named by their content',
  transport: 'rollouts reach the trainer through the store',
  checkpoints: 'a commit is the whole state of a run, and all of it comes back when the run goes on',
  wandb: 'Weights & Biases is fed from the committed metrics',
  monitor: 'the run can be looked at with `ratchet status`, `ratchet metrics` and `ratchet attach`',
  heartbeat: 'Temporal hears from every worker, and names those that fell silent',
  profile: 'it measures prime-rl’s own trainer',
  clean: 'a run never deletes what another left; `--fresh` starts over under a new name',
  retry: 'what fails is tried again as the workflow says',
} as const;

export const anyText = (): z.ZodType => z.string().meta({ expected: 'a text' });
export const texts = (): z.ZodType => z.array(text()).meta({ expected: 'a list of texts' });
export const port = (): z.ZodType => whole(1, 65_535);

/** GPU ids, of which only the number matters here. */
export const gpuIds = () => z.array(z.int().min(0)).min(1).meta({ expected: 'a list of GPU ids such as [0, 1]' });
