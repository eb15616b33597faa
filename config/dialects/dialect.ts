import { z } from 'zod';
import { formatPath, type KeyPath, pathKey } from '../positions.ts';
import { isTable, setAt, type Table, valueAt } from '../tables.ts';
import { placed, placesOf } from './places.ts';
import { fieldsWithOldNames, withNewNames } from './renames.ts';

/**
 * A dialect is a table of its fields: what each accepts, and what becomes of it in our own words (ratchet.ts). From it come
 * the strict schema, the translation, the tables of the documentation and the tests that nothing is dropped.
 */
export interface Dialect {
  readonly name: string;
  /** As it is said aloud: `prime-rl 0.4`. */
  readonly title: string;
  /**
   * By path: `orchestrator.sampling.max_tokens`, `orchestrator.env[].id` in a list of tables. A path that ends a table of
   * free keys (`env[].args`) has a record for a schema. A path that others go on from (`wandb` beside `wandb.project`) is for
   * the table as a whole, also where it is empty, or for a short spelling of it; with a record for a schema the table takes
   * further keys.
   */
  readonly fields: Readonly<Record<string, Field>>;
  /** In place of the one that is made from the fields: of our own dialect, which needs no translation. */
  readonly schema?: z.ZodObject;
  /** What becomes of a second value of one setting: "warn" where the system itself passes over it. Missing = it is refused. */
  readonly otherwise?: 'refuse' | 'warn';
  /** In our own words: what the dialect means where nothing is written and we would mean something else. */
  readonly defaults: Table;
  /** Writes out short spellings and nulls, before anything is looked at. Paths of what it leaves stay the same. */
  readonly prepare?: (table: Table) => Table;
  /** What only several fields together mean. Called with what was written, after every field has become what it becomes. */
  readonly together?: (written: Table, own: Own) => void;
  /** What only this dialect can be (a value, not a key): it wins whatever the keys say. Said aloud. */
  readonly proof?: (table: Table) => string | undefined;
  /** Whether a file can be of this dialect at all; missing = any. */
  readonly mayBe?: (table: Table) => boolean;
  /** What other systems call a field of this one, for suggestions. */
  readonly synonyms?: Readonly<Record<string, string>>;
  /** Older names, which are read as the newer ones, with one warning each. */
  readonly renames?: readonly Rename[];
  /** By path without positions: what to write where the value is not one the field takes. */
  readonly hints?: Readonly<Record<string, string>>;
}

/** A field or a table that was called otherwise; written as in a dialect's table of fields, a list with its brackets. */
export interface Rename {
  readonly was: string;
  readonly is: string;
  /** The first version with the newer name. */
  readonly since: string;
}

export interface Field {
  /** Without `optional()` or defaults; says what it expects. */
  readonly schema: z.ZodType;
  /** Whether the system itself refuses a file without it. */
  readonly isRequired?: boolean;
  /** As the system itself takes it where nothing is written; for the documentation. */
  readonly usual?: string;
  /** Whether the system's own way to write null takes the field back to that. */
  readonly isNullable?: boolean;
  readonly fate: Fate;
}

export type Fate =
  /** One of our own fields (`sampling.max_tokens`, `env[].id`), the value as it is or converted; undefined = it is left out. */
  | {
      readonly kind: 'becomes';
      readonly path: string;
      readonly convert?: (value: never) => unknown;
      /** There are several places for it, which agree; the first counts. */
      readonly isShared?: true;
    }
  /** Read by `together`; `what` says what it becomes. */
  | { readonly kind: 'together'; readonly what: string }
  /** One value alone means what happens here anyway; any other is refused. */
  | { readonly kind: 'only'; readonly value: unknown; readonly because: string }
  /** Accepted with one warning: why it has no effect here. */
  | { readonly kind: 'ignored'; readonly why: string }
  /** Refused by name: ignoring it would train something else than was asked for. `instead`: what to do. */
  | { readonly kind: 'refused'; readonly instead: string };

export const becomes = (path: string, schema: z.ZodType, more: Omit<Field, 'schema' | 'fate'> = {}): Field => ({
  schema,
  fate: { kind: 'becomes', path },
  ...more,
});
export const converted = <Schema extends z.ZodType>(
  path: string,
  schema: Schema,
  convert: (value: z.infer<Schema>) => unknown,
  more: Omit<Field, 'schema' | 'fate'> = {},
): Field => ({ schema, fate: { kind: 'becomes', path, convert: convert }, ...more });
export const together = (what: string, schema: z.ZodType, more: Omit<Field, 'schema' | 'fate'> = {}): Field => ({
  schema,
  fate: { kind: 'together', what },
  ...more,
});
export const only = (value: string | number | boolean, because: string, schema: z.ZodType): Field => ({
  schema,
  usual: String(value),
  fate: { kind: 'only', value, because },
});
export const ignored = (why: string, schema: z.ZodType, more: Omit<Field, 'schema' | 'fate'> = {}): Field => ({
  schema,
  fate: { kind: 'ignored', why },
  ...more,
});
export const refused = (instead: string): Field => ({
  schema: z.never().meta({ expected: 'nothing here' }),
  fate: { kind: 'refused', instead },
});

/** A value, and where it was written. */
export interface Found {
  readonly value: unknown;
  readonly at: KeyPath;
}

/** A config in our own words, while it is being put together; knows which written field each part came from. */
export class Own {
  readonly table: Table = {};
  readonly warnings: string[] = [];
  readonly problems: TranslationProblem[] = [];
  readonly #written = new Map<string, KeyPath>();
  readonly #moved = new Map<string, KeyPath>();
  /** The file under the names that it has itself. */
  readonly asWritten: Table;
  readonly #placeOf: (path: KeyPath) => KeyPath;

  /** `placeOf`: where a field was written whose name has changed since. */
  constructor(asWritten: Table = {}, placeOf: (path: KeyPath) => KeyPath = (path) => path) {
    this.asWritten = asWritten;
    this.#placeOf = placeOf;
  }

  /** `from`: the written field. A later value replaces an earlier one. */
  set(path: KeyPath, value: unknown, from?: KeyPath): void {
    setAt(this.table, path, value);
    if (from) this.#written.set(pathKey(path), this.#placeOf(this.#beforeMove(from)));
  }

  /** A written field is looked for at another path. */
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

  /** Something that is wrong with what was written; paths are the dialect's own. */
  refuse(problem: TranslationProblem): void {
    this.problems.push({ ...problem, paths: problem.paths.map((path) => this.#placeOf(this.#beforeMove(path))) });
  }

  /** What only one value of a field can mean here. */
  refuseUnless(meant: unknown, { value, at }: Found, because: string): void {
    if (JSON.stringify(value) === JSON.stringify(meant)) return;
    const expected = `${JSON.stringify(meant)}: ${because}`;
    this.refuse({ paths: [at], expected, received: JSON.stringify(value) });
  }

  /** Another value of the same setting. */
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

  /** Every written field that one of ours, or something in it, came from. */
  sourcesOf(path: KeyPath): KeyPath[] {
    const start = pathKey(path).slice(0, -1);
    const within = [...this.#written].filter(([key]) => key === pathKey(path) || key.startsWith(`${start},`));
    if (within.length > 0) return within.map(([, found]) => found);
    const around = this.writtenAt(path);
    return around ? [around] : [];
  }

  /** The written field that one of ours came from: its own, that of a table it lies in, or that of something in it. */
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

export interface TranslationProblem {
  /** The first is where the error is reported. */
  readonly paths: readonly KeyPath[];
  readonly expected: string;
  readonly received: string;
  readonly suggestion?: string;
}

/** The table that any dialect may have beside its own, with fields of ours: `[ratchet.store]`. */
const ownTable = 'ratchet';

const schemas = new WeakMap<Dialect, z.ZodObject>();

/** Of the whole file: strict tables, every field optional but what the system itself requires. */
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

/** A table that must hold something must be there. */
function requires(node: Node): boolean {
  return (
    !node.isList && [...node.children.values()].some((child) => child.field?.isRequired === true || requires(child))
  );
}

/** What was written, in our own words. `written` has passed the dialect's schema. */
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
  if (fate.kind === 'ignored' && !warned.has(path)) {
    warned.add(path);
    own.warn(`${path.replaceAll('[]', '')} has no effect here: ${fate.why}`);
  }
  if (fate.kind === 'only') own.refuseUnless(fate.value, { value, at }, fate.because);
  if (fate.kind !== 'becomes') return;
  const ours = placed(fate.path, at);
  const made = fate.convert ? fate.convert(value as never) : value;
  if (made !== undefined) own.set(ours, made, at);
}

function leavesOf(table: Table, path: KeyPath = []): [KeyPath, unknown][] {
  return Object.entries(table).flatMap(([key, value]): [KeyPath, unknown][] =>
    isTable(value) && Object.keys(value).length > 0 ? leavesOf(value, [...path, key]) : [[[...path, key], value]],
  );
}

/** The fields that are known and refused, by path without positions, with what to do instead. */
export function refusedFields({ fields }: Dialect): Record<string, string> {
  return Object.fromEntries(
    Object.entries(fields).flatMap(([path, { fate }]) =>
      fate.kind === 'refused' ? [[path.replaceAll('[]', ''), fate.instead]] : [],
    ),
  );
}
