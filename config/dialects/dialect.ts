import { z } from 'zod';
import type { TrainerKind } from '../../core/kinds/trainers.ts';
import { settingsByPath } from '../settings/index.ts';
import type { RelationProblem } from '../settings/relations/problem.ts';
import { formatPath, type KeyPath, pathKey } from '../toml/positions.ts';
import { isTable, setAt, type Table, valueAt } from '../toml/tables.ts';
import { placed, placesOf } from './places.ts';
import { fieldsWithOldNames, withNewNames } from './renames.ts';

/**
 * A dialect is a table of its fields: what each accepts, and its translation into our own words (ratchet.ts). It gives
 * the strict schema, the translation, the documentation's tables and the tests that nothing is dropped.
 */
export interface Dialect {
  readonly name: string;
  /** Name for people: `prime-rl 0.4`. */
  readonly title: string;
  /**
   * Keyed by path: `orchestrator.sampling.max_tokens`, `orchestrator.env[].id` in a list of tables. The path of a table
   * of free keys (`env[].args`) has a record as its schema. A path that is the beginning of others (`wandb` beside
   * `wandb.project`) is for the table as a whole, even if empty, or for its short spelling; with a record as its schema
   * the table accepts further keys. Our own dialect has here only what it refuses.
   */
  readonly fields: Readonly<Record<string, Field>>;
  /** Replaces the schema made from the fields: for our own dialect, which needs no translation. */
  readonly schema?: z.ZodObject;
  /** Handling of a second value for one setting: "warn" if the system itself ignores it. Missing = it is refused. */
  readonly otherwise?: 'refuse' | 'warn';
  /** The dialect's defaults that differ from ours, in our own words. */
  readonly defaults: Table;
  /** Expands short spellings and nulls before anything else. Paths of the remaining values stay the same. */
  readonly prepare?: (table: Table) => Table;
  /** Rules over several fields together. Called with the file's table after every field is translated. */
  readonly together?: (written: Table, own: Own) => void;
  /** Evidence that only this dialect can have (a value, not a key); it wins over all keys and is named to the user. */
  readonly proof?: (table: Table) => string | undefined;
  /** Whether a file can have this dialect at all; missing = any can. */
  readonly mayBe?: (table: Table) => boolean;
  /** Other systems' names for a field of this one, for suggestions. */
  readonly synonyms?: Readonly<Record<string, string>>;
  /** Older names, which are read as the newer ones, with one warning each. */
  readonly renames?: readonly Rename[];
  /** Keyed by path without positions: advice for a value that the field does not accept. */
  readonly hints?: Readonly<Record<string, string>>;
}

/** A renamed field or table; written as in a dialect's table of fields, a list with its brackets. */
export interface Rename {
  readonly was: string;
  readonly is: string;
  /** The first version with the newer name. */
  readonly since: string;
}

export interface Field {
  /** Without `optional()` or defaults; includes a description of the expected value. */
  readonly schema: z.ZodType;
  /** Whether the system itself refuses a file without it. */
  readonly isRequired?: boolean;
  /** The system's default, for the documentation. */
  readonly default?: string;
  /** Whether the system's own null resets the field to that default. */
  readonly isNullable?: boolean;
  readonly fate: Fate;
}

export type Fate =
  /**
   * One of our own fields (`sampling.max_tokens`, `env[].id`) with the value unchanged or converted; undefined = left
   * out.
   */
  | {
      readonly kind: 'becomes';
      readonly path: string;
      readonly convert?: (value: never) => unknown;
      /** The setting has several places, which agree; the first counts. */
      readonly isShared?: true;
    }
  /** Handled by `together`; `what` describes the result. */
  | { readonly kind: 'together'; readonly what: string }
  /** Only one value has the meaning of a run here; any other is refused. */
  | { readonly kind: 'only'; readonly value: unknown; readonly because: string }
  /**
   * Accepted with one warning that explains why it has no effect here. `passes`: where one kind of trainer takes it, the setting of ours that it is
   * then.
   */
  | { readonly kind: 'ignored'; readonly why: string; readonly passes?: Passes }
  /** Refused by name: ignoring it would change what is trained. `instead`: advice. */
  | { readonly kind: 'refused'; readonly instead: string };

interface Passes {
  readonly trainer: TrainerKind;
  readonly path: string;
  /** The value that is left out: the trainer’s own choice. */
  readonly unless?: unknown;
}

type More = Omit<Field, 'schema' | 'fate'> & { readonly isShared?: true };

/** One of our settings, with an unchanged value. The default schema is our setting's. */
export function becomes(path: string, more?: More): Field;
export function becomes(path: string, schema: z.ZodType, more?: More): Field;
export function becomes(path: string, taken: z.ZodType | More = {}, further: More = {}): Field {
  const [schema, more] = taken instanceof z.ZodType ? [taken, further] : [typeOf(path), taken];
  return becoming({ kind: 'becomes', path }, schema, more);
}

function typeOf(path: string): z.ZodType {
  const setting = settingsByPath.get(path);
  if (setting === undefined) throw new Error(`no setting is called ${path}`);
  return setting.type;
}

function becoming(fate: Extract<Fate, { readonly kind: 'becomes' }>, schema: z.ZodType, more: More): Field {
  const { isShared, ...field } = more;
  return { schema, fate: isShared ? { ...fate, isShared } : fate, ...field };
}

export const converted = <Schema extends z.ZodType>(
  path: string,
  schema: Schema,
  convert: (value: z.infer<Schema>) => unknown,
  more: More = {},
): Field => becoming({ kind: 'becomes', path, convert }, schema, more);
export const together = (what: string, schema: z.ZodType, more: Omit<Field, 'schema' | 'fate'> = {}): Field => ({
  schema,
  fate: { kind: 'together', what },
  ...more,
});
export const only = (value: string | number | boolean, because: string, schema: z.ZodType): Field => ({
  schema,
  default: String(value),
  fate: { kind: 'only', value, because },
});
export const ignored = (why: string, schema: z.ZodType, more: Omit<Field, 'schema' | 'fate'> = {}): Field => ({
  schema,
  fate: { kind: 'ignored', why },
  ...more,
});
/** Passed on to one kind of trainer, and without effect beside others. */
export const passed = (passes: Passes, why: string, schema: z.ZodType): Field => ({
  schema,
  fate: { kind: 'ignored', why, passes },
});
export const refused = (instead: string): Field => ({
  schema: z.never().meta({ expected: 'nothing here' }),
  fate: { kind: 'refused', instead },
});

/** A value with its path in the file. */
export interface Found {
  readonly value: unknown;
  readonly at: KeyPath;
}

/** A config in our own words under construction; knows the written field behind each part. */
export class Own {
  readonly table: Table = {};
  readonly warnings: string[] = [];
  readonly problems: TranslationProblem[] = [];
  readonly #written = new Map<string, KeyPath>();
  readonly #moved = new Map<string, KeyPath>();
  /** The file with its own names. */
  readonly asWritten: Table;
  readonly #placeOf: (path: KeyPath) => KeyPath;

  /** `placeOf`: the path in the file of a field that was renamed since. */
  constructor(asWritten: Table = {}, placeOf: (path: KeyPath) => KeyPath = (path) => path) {
    this.asWritten = asWritten;
    this.#placeOf = placeOf;
  }

  /** `from`: the written field. A later value replaces an earlier one. */
  set(path: KeyPath, value: unknown, from?: KeyPath): void {
    setAt(this.table, path, value);
    if (from) this.#written.set(pathKey(path), this.#placeOf(this.#beforeMove(from)));
  }

  /** Looks up a written field under another path. */
  moved(from: KeyPath, to: KeyPath): void {
    this.#moved.set(pathKey(to), from);
  }

  #beforeMove(path: KeyPath): KeyPath {
    for (let length = path.length; length > 0; length--) {
      const from = this.#moved.get(pathKey(path.slice(0, length)));
      if (from) return [...from, ...path.slice(length)];
    }
    return path;
  }

  get(path: KeyPath): unknown {
    return valueAt(this.table, path);
  }

  warn(warning: string): void {
    this.warnings.push(warning);
  }

  /** Reports an error in the file; paths are the dialect's own. */
  refuse(problem: TranslationProblem): void {
    this.problems.push({ ...problem, paths: problem.paths.map((path) => this.#placeOf(this.#beforeMove(path))) });
  }

  /** Refuses all values of a field but one. */
  refuseUnless(meant: unknown, { value, at }: Found, because: string): void {
    if (JSON.stringify(value) === JSON.stringify(meant)) return;
    const expected = `${JSON.stringify(meant)}: ${because}`;
    this.refuse({ paths: [at], expected, received: JSON.stringify(value) });
  }

  agree(first: Found, other: Found, otherwise: Dialect['otherwise'] = 'refuse'): void {
    if (JSON.stringify(other.value) === JSON.stringify(first.value)) return;
    const [here, there] = [formatPath(first.at), formatPath(other.at)];
    const [value, received] = [JSON.stringify(first.value), JSON.stringify(other.value)];
    if (otherwise === 'warn') this.warn(`${there} = ${received} has no effect: ${here} = ${value} is taken for both.`);
    else {
      const expected = `${value}, as ${here} says, or only one of the two: they are one setting`;
      this.refuse({ paths: [other.at, first.at], expected, received });
    }
  }

  /** Every written field behind one of ours, or behind something in it. */
  sourcesOf(path: KeyPath): KeyPath[] {
    const start = pathKey(path).slice(0, -1);
    const within = [...this.#written].filter(([key]) => key === pathKey(path) || key.startsWith(`${start},`));
    if (within.length > 0) return within.map(([, found]) => found);
    const around = this.writtenAt(path);
    return around ? [around] : [];
  }

  /** The written field behind one of ours: its own, that of a table around it, or one within it. */
  writtenAt(path: KeyPath): KeyPath | undefined {
    for (let length = path.length; length > 0; length--) {
      const found = this.#written.get(pathKey(path.slice(0, length)));
      if (found) return length === path.length ? found : [...found, ...path.slice(length)];
    }
    const start = pathKey(path).slice(0, -1);
    for (const [key, found] of this.#written) if (key.startsWith(start)) return found;
    return undefined;
  }
}

export type TranslationProblem = RelationProblem;

/** The table with our own fields that any dialect may contain: `[ratchet.store]`. */
export const ownTable = 'ratchet';

const schemas = new WeakMap<Dialect, z.ZodObject>();

/** The schema of a whole file: strict tables, every field optional unless the system itself requires it. */
export function schemaOf(dialect: Dialect): z.ZodObject {
  const known = dialect.schema ?? schemas.get(dialect);
  if (known) return known;
  const own = z.record(z.string(), z.unknown()).meta({ expected: 'a table of settings in our own words' });
  const schema = strictObject(nested(fieldsWithOldNames(dialect))).extend({ [ownTable]: own.optional() });
  schemas.set(dialect, schema);
  return schema;
}

interface Node {
  field?: Field;
  isList?: boolean;
  readonly children: Map<string, Node>;
}

function nested(fields: Dialect['fields']): Node {
  const root: Node = { children: new Map() };
  for (const [path, field] of Object.entries(fields)) {
    let here = root;
    for (const part of path.split('.')) {
      const key = part.replace('[]', '');
      const next: Node = here.children.get(key) ?? { children: new Map() };
      if (part.endsWith('[]')) next.isList = true;
      here.children.set(key, next);
      here = next;
    }
    here.field = field;
  }
  return root;
}

function strictObject({ children }: Node): z.ZodObject {
  const shape = [...children].map(([key, node]): [string, z.ZodType] => {
    const { schema, isRequired } = schemaOfNode(node);
    return [key, isRequired ? schema : schema.optional()];
  });
  return z.strictObject(Object.fromEntries(shape));
}

function schemaOfNode(node: Node): { schema: z.ZodType; isRequired: boolean } {
  if (node.children.size === 0) return { schema: node.field!.schema, isRequired: node.field!.isRequired === true };
  const table = strictObject(node);
  const own = node.field;
  if (node.isList) return { schema: own ? z.union([z.array(table), own.schema]) : z.array(table), isRequired: false };
  if (own?.schema instanceof z.ZodRecord) return { schema: table.catchall(z.json()), isRequired: requires(node) };
  return { schema: own ? z.union([table, own.schema]) : table, isRequired: requires(node) };
}

/** A table with a required field is required itself. */
function requires(node: Node): boolean {
  return (
    !node.isList && [...node.children.values()].some((child) => child.field?.isRequired === true || requires(child))
  );
}

/** Translates a file into our own words. `written` has passed the dialect's schema. */
export function translate(dialect: Dialect, written: Table): Own {
  const { table, placeOf, warnings, problems } = withNewNames(dialect, written);
  const own = new Own(written, placeOf);
  for (const warning of warnings) own.warn(warning);
  for (const problem of problems) own.refuse(problem);
  if (dialect.schema) {
    for (const [key, value] of Object.entries(table)) own.set([key], value, [key]);
    return own;
  }
  for (const [path, value] of leavesOf(dialect.defaults)) own.set(path, value);
  const told = new Set<string>();
  const shared = new Map<string, Found>();
  for (const [path, { fate }] of Object.entries(dialect.fields)) {
    for (const at of placesOf(path, table)) {
      const written = { value: valueAt(table, at), at };
      const before = fate.kind === 'becomes' && fate.isShared ? shared.get(fate.path) : undefined;
      if (before) own.agree(before, written, dialect.otherwise);
      else applyFate(fate, { path, ...written }, own, told);
      if (fate.kind === 'becomes' && !before) shared.set(fate.path, written);
    }
  }
  dialect.together?.(table, own);
  const added = table[ownTable];
  if (isTable(added)) for (const [path, value] of leavesOf(added)) own.set(path, value, [ownTable, ...path]);
  return own;
}

function applyFate(
  fate: Fate,
  { path, at, value }: { readonly path: string; readonly at: KeyPath; readonly value: unknown },
  own: Own,
  warned: Set<string>,
): void {
  if (fate.kind === 'ignored' && fate.passes && fate.passes.trainer === trainerIn(own.asWritten)) {
    if (value !== fate.passes.unless) own.set(placed(fate.passes.path, at), value, at);
  } else if (fate.kind === 'ignored' && !warned.has(path)) {
    warned.add(path);
    own.warn(`${path.replaceAll('[]', '')} has no effect here: ${fate.why}`);
  }
  if (fate.kind === 'only') own.refuseUnless(fate.value, { value, at }, fate.because);
  if (fate.kind !== 'becomes') return;
  const ours = placed(fate.path, at);
  const made = fate.convert ? fate.convert(value as never) : value;
  if (made !== undefined) own.set(ours, made, at);
}

/** The kind of trainer that a file asks for in our own words. */
export function trainerIn(written: Table): unknown {
  return valueAt(written, [ownTable, 'trainer', 'kind']);
}

function leavesOf(table: Table, path: KeyPath = []): [KeyPath, unknown][] {
  return Object.entries(table).flatMap(([key, value]): [KeyPath, unknown][] =>
    isTable(value) && Object.keys(value).length > 0 ? leavesOf(value, [...path, key]) : [[[...path, key], value]],
  );
}

/** Fields that are known and refused, by path without positions, with advice. */
export function refusedFields({ fields }: Dialect): Record<string, string> {
  return Object.fromEntries(
    Object.entries(fields).flatMap(([path, { fate }]) =>
      fate.kind === 'refused' ? [[path.replaceAll('[]', ''), fate.instead]] : [],
    ),
  );
}
