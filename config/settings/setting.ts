import { z } from 'zod';
import type { LiveRule } from '../../core/rl/live-settings.ts';

/**
 * An entry in the table of settings. Each file of this folder has the settings of a section, by key. They give the
 * schema of run files, the run's spec, the documentation's tables, the bounds of numbers, and suggestions.
 */
interface Entry<Written extends z.ZodType = z.ZodType> {
  /** Schema in a file: has the default, or is optional. */
  readonly written: Written;
}

export interface Setting<
  Written extends z.ZodType = z.ZodType,
  Spec extends z.ZodType = z.ZodType,
  Name extends string = string,
> extends Entry<Written> {
  /** Without its default. `meta.expected` is the text of its errors. */
  readonly type: z.ZodType;
  /** Description for the documentation. */
  readonly means: string;
  /** Schema in the run's spec. */
  readonly spec: Spec;
  /** Name in the spec, if it is not the key in camel case. */
  readonly as?: Name;
  /** Value in the spec if the file has none; missing = null. */
  readonly neutral?: unknown;
  /** The spec omits it if the file does. */
  readonly isLeftOut?: boolean;
  readonly most?: Bound;
  /** An alias of that setting: both values must agree. */
  readonly otherPlaceOf?: string;
  /** Rule for changes in a running run. */
  readonly live?: LiveRule;
}

/** The maximum of a number, what a larger one would require, and advice. */
export type Bound = readonly [max: number, because: string, instead: string];

/** Settings of one table, or of a part of one that is also a part of the spec. */
type Settings = Readonly<Record<string, Setting>>;

type More<Name extends string> = Pick<Setting<z.ZodType, z.ZodType, Name>, 'as' | 'most' | 'otherPlaceOf' | 'live'>;

/** Has no default: the file may omit it, and the spec then has null. */
export function setting<Type extends z.ZodType, const Name extends string = never>(
  type: Type,
  means: string,
  more: More<Name> & { readonly default: z.input<Type> },
): Setting<z.ZodDefault<Type>, z.ZodDefault<Type>, Name>;
export function setting<Type extends z.ZodType, const Name extends string = never>(
  type: Type,
  means: string,
  more: More<Name> & { readonly neutral: z.input<Type> },
): Setting<z.ZodOptional<Type>, z.ZodDefault<Type>, Name>;
export function setting<Type extends z.ZodType, const Name extends string = never>(
  type: Type,
  means: string,
  more: More<Name> & { readonly isLeftOut: true },
): Setting<z.ZodOptional<Type>, z.ZodOptional<Type>, Name>;
export function setting<Type extends z.ZodType, const Name extends string = never>(
  type: Type,
  means: string,
  more?: More<Name>,
): Setting<z.ZodOptional<Type>, z.ZodDefault<z.ZodNullable<Type>>, Name>;
export function setting(
  type: z.ZodType,
  means: string,
  { default: ownDefault, ...more }: More<string> & { default?: unknown; neutral?: unknown; isLeftOut?: boolean } = {},
): Setting {
  if (ownDefault !== undefined)
    return { type, written: type.default(ownDefault), spec: type.default(ownDefault), means, ...more };
  const fallback = more.isLeftOut ? type.optional() : type.nullable().default(null);
  return {
    type,
    written: type.optional(),
    spec: more.neutral === undefined ? fallback : type.default(more.neutral),
    means,
    ...more,
  };
}

/** A setting that a file, or its table, must have. */
export function required<Type extends z.ZodType, const Name extends string = never>(
  type: Type,
  means: string,
  more: More<Name> = {},
): Setting<Type, Type, Name> {
  return { type, written: type, spec: type, means, ...more };
}

type Entries = Readonly<Record<string, Entry>>;

interface SettingTable<Its extends Entries = Entries, Written extends z.ZodType = z.ZodType> extends Entry<Written> {
  readonly entries: Its;
}

type Shape<Its extends Entries> = { -readonly [Key in keyof Its]: Its[Key]['written'] };
type TableType<Its extends Entries> = z.ZodObject<Shape<Its>, z.core.$strict>;
/** A file's values with defaults filled in. */
export type WrittenIn<Its extends Entries> = z.output<TableType<Its>>;

export function tableType<Its extends Entries>(entries: Its): TableType<Its> {
  const shape = Object.entries(entries).map(([key, { written }]) => [key, written]);
  return z.strictObject(Object.fromEntries(shape) as Shape<Its>);
}

/** A table that gets its defaults if missing. */
export function table<Its extends Entries>(entries: Its): SettingTable<Its, z.ZodPrefault<TableType<Its>>> {
  return { entries, written: tableType(entries).prefault({} as z.input<TableType<Its>>) };
}

/** A table that turns something on. */
export function optionalTable<Its extends Entries>(entries: Its): SettingTable<Its, z.ZodOptional<TableType<Its>>> {
  return { entries, written: tableType(entries).optional() };
}

/** A list of tables, `[[env]]`. */
export function listOf<Its extends Entries, Written extends z.ZodType>(
  entries: Its,
  written: (items: z.ZodArray<TableType<Its>>) => Written,
): SettingTable<Its, Written> {
  return { entries, written: written(z.array(tableType(entries))) };
}

/** The settings for another table, where they have another meaning. */
export function meaning<Its extends Settings>(settings: Its, means: (key: keyof Its) => string): Its {
  const others = Object.entries(settings).map(([key, one]): [string, Setting] => [key, { ...one, means: means(key) }]);
  return Object.fromEntries(others) as Its;
}

type Camel<Key extends string> = Key extends `${infer First}_${infer Rest}`
  ? `${First}${Capitalize<Camel<Rest>>}`
  : Key;
type NameOf<Key extends string, One> =
  One extends Setting<z.ZodType, z.ZodType, infer Name> ? ([Name] extends [never] ? Camel<Key> : Name) : never;
type SpecShape<Its extends Settings> = {
  -readonly [Key in keyof Its & string as NameOf<Key, Its[Key]>]: Its[Key]['spec'];
};
type SpecOf<Its extends Settings> = z.output<z.ZodObject<SpecShape<Its>, z.core.$strict>>;

/** Fields of the spec for these settings, by their names there. */
export function specFields<Its extends Settings>(settings: Its): SpecShape<Its> {
  const names = namesInSpec(settings);
  const fields = Object.entries(settings).map(([key, { spec }]) => [names[key], spec]);
  return Object.fromEntries(fields) as SpecShape<Its>;
}

/** Names of the settings in the spec. */
export function namesInSpec(settings: Settings): Readonly<Record<string, string>> {
  return Object.fromEntries(Object.entries(settings).map(([key, { as }]) => [key, as ?? camelCase(key)]));
}

/** The spec's part for these settings. `written`: their table, which may contain others. */
export function inSpec<Its extends Settings>(settings: Its, written: WrittenIn<Its>): SpecOf<Its> {
  const values = Object.entries(settings).flatMap(([key, { as, neutral, isLeftOut }]): [string, unknown][] => {
    const value = (written as Readonly<Record<string, unknown>>)[key] ?? neutral;
    return value === undefined && isLeftOut ? [] : [[as ?? camelCase(key), value ?? null]];
  });
  return Object.fromEntries(values) as SpecOf<Its>;
}

function camelCase(key: string): string {
  return key.replaceAll(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
}

/** Every setting of a table by its path, `env[].buffer.easy_threshold`, in the order of the tables. */
export function* settingsIn(entries: Entries, start = ''): Generator<readonly [path: string, setting: Setting]> {
  for (const [key, entry] of Object.entries(entries)) {
    if ('entries' in entry)
      yield* settingsIn((entry as SettingTable).entries, `${start}${key}${isList(entry) ? '[]' : ''}.`);
    else yield [start + key, entry as Setting];
  }
}

function isList({ written }: Entry): boolean {
  const inner = written instanceof z.ZodDefault || written instanceof z.ZodOptional ? written.unwrap() : written;
  return inner instanceof z.ZodArray;
}
