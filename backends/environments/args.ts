import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { looksSecret } from '../../config/toml/secrets.ts';

/** Checks an environment's arguments, `[[env]] args = { … }`, and fills in its defaults. */
export function parseArgs<T extends z.ZodType>(environment: string, schema: T, args: unknown): z.infer<T> {
  lastSchema = schema;
  const parsed = schema.safeParse(args, { reportInput: true });
  if (parsed.success) return parsed.data;
  const lines = parsed.error.issues.map((issue) => {
    const what = issue.path.length > 0 ? z.core.toDotPath(['args', ...issue.path]) : 'args';
    // A rule over several arguments receives all of them, defaults included; it names the wrong one.
    const found = issue.code === 'custom' ? valueAt(issue.input, issue.path) : issue.input;
    const input = JSON.stringify(found) ?? 'nothing';
    const received = issue.code === 'unrecognized_keys' || looksSecret(input) ? '' : `, received ${input}`;
    return `  ${what}: ${issue.message}${received}`;
  });
  const known = schema instanceof z.ZodObject ? `\nIts arguments are: ${Object.keys(schema.shape).join(', ')}.` : '';
  throw new RatchetError(
    'ConfigInvalid',
    `Environment "${environment}" cannot work with its arguments:\n${lines.join('\n')}${known}`,
    { cause: parsed.error },
  );
}

function valueAt(args: unknown, path: readonly PropertyKey[]): unknown {
  return path.reduce<unknown>((value, key) => (value as Record<PropertyKey, unknown> | null | undefined)?.[key], args);
}

let lastSchema: z.ZodType | undefined;

/** Description of one argument of an environment, for people. */
export interface ArgumentHelp {
  readonly name: string;
  /** Default as JSON; undefined = required, or optional without a default. */
  readonly defaultValue: string | undefined;
  /** The schema's statement about the values: its type, bounds, and description if it has one. */
  readonly kind: string;
}

/** Records the arguments that `load` requests; empty if it requests none. */
export async function watchArguments<T>(load: () => Promise<T>): Promise<{ loaded: T; args: ArgumentHelp[] }> {
  lastSchema = undefined;
  const loaded = await load();
  return { loaded, args: lastSchema === undefined ? [] : describeArguments(lastSchema) };
}

interface JsonSchema {
  readonly type?: string;
  readonly enum?: readonly unknown[];
  readonly minimum?: number;
  readonly maximum?: number;
  readonly default?: unknown;
  readonly description?: string;
  readonly properties?: Readonly<Record<string, JsonSchema>>;
  readonly required?: readonly string[];
}

function describeArguments(schema: z.ZodType): ArgumentHelp[] {
  const { properties = {}, required = [] } = z.toJSONSchema(schema, {
    io: 'input',
    unrepresentable: 'any',
  }) as JsonSchema;
  return Object.entries(properties).map(([name, property]) => ({
    name,
    defaultValue: property.default === undefined ? undefined : JSON.stringify(property.default),
    kind: [kindOf(property), required.includes(name) ? 'has to be given' : '', property.description ?? '']
      .filter((part) => part !== '')
      .join('; '),
  }));
}

function kindOf({ type = 'any value', enum: choices, minimum, maximum, properties }: JsonSchema): string {
  if (choices) return choices.map((choice) => JSON.stringify(choice)).join(' or ');
  if (properties) return `{ ${Object.keys(properties).join(', ')} }`;
  const isBound = (value: number | undefined): value is number =>
    value !== undefined && Math.abs(value) < Number.MAX_SAFE_INTEGER;
  const from = isBound(minimum) ? ` from ${minimum}` : '';
  const to = isBound(maximum) ? ` to ${maximum}` : '';
  return `${type}${from}${to}`;
}
