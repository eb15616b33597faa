import type { ToolSchema } from '../../core/rl/rollout/rollout.ts';
import { parseWritten, type WrittenJson, textOf } from '../../core/written-json.ts';

/** Bare text of a model gets the type of the tool's schema, as in vLLM. */

type Schema = Readonly<Record<string, unknown>>;

export function withSchemaTypes(args: WrittenJson, name: string, tools: readonly ToolSchema[]): WrittenJson {
  const parameters = tools.find((tool) => tool.function.name === name)?.function.parameters;
  const properties = parameters?.['properties'];
  return isTable(properties) ? typedEntries(args, properties) : args;
}

function typedEntries(value: WrittenJson, properties: Schema): WrittenJson {
  if (value.kind !== 'object') return value;
  const entries = [...value.entries].map(([key, item]): [string, WrittenJson] => {
    const schema = Object.hasOwn(properties, key) ? properties[key] : undefined;
    return [key, isTable(schema) ? typed(item, schema) : item];
  });
  return { kind: 'object', entries: new Map(entries) };
}

function typed(value: WrittenJson, schema: Schema): WrittenJson {
  if (value.kind === 'text') return coerced(value.text, typesOf(schema));
  if (value.kind === 'object') {
    return isTable(schema['properties']) ? typedEntries(value, schema['properties']) : value;
  }
  if (value.kind === 'array') {
    const items = schema['items'];
    return isTable(items) ? { kind: 'array', items: value.items.map((item) => typed(item, items)) } : value;
  }
  return coerced(value.word, typesOf(schema));
}

const aliases: Readonly<Record<string, string>> = {
  ...named('string', 'str text varchar char enum'),
  ...named('integer', 'int int32 int64 uint uint32 uint64 long short unsigned'),
  ...named('number', 'float float32 float64 double'),
  ...named('boolean', 'bool'),
  ...named('object', 'dict'),
  ...named('array', 'arr list sequence'),
};

function named(type: string, words: string): Record<string, string> {
  return Object.fromEntries(words.split(' ').map((word) => [word, type]));
}

function typesOf(schema: unknown): Set<string> {
  const types = new Set<string>();
  if (isTable(schema)) {
    const { type, enum: choices } = schema;
    for (const one of Array.isArray(type) ? type : [type]) if (typeof one === 'string') types.add(one);
    for (const choice of Array.isArray(choices) ? choices : []) types.add(typeOfChoice(choice));
    for (const field of ['anyOf', 'oneOf', 'allOf']) {
      const several = schema[field];
      for (const one of Array.isArray(several) ? several : []) for (const type of typesOf(one)) types.add(type);
    }
  }
  return types.size === 0 ? new Set(['string']) : types;
}

function typeOfChoice(choice: unknown): string {
  if (choice === null) return 'null';
  if (Array.isArray(choice)) return 'array';
  if (typeof choice === 'number') return Number.isInteger(choice) ? 'integer' : 'number';
  return typeof choice;
}

/** The first of vLLM's order that takes the text: null, integer, number, boolean, object, array, string. */
function coerced(text: string, given: ReadonlySet<string>): WrittenJson {
  const types = new Set([...given].map((type) => type.trim().toLowerCase()).map((type) => aliases[type] ?? type));
  const trimmed = text.trim();
  const lower = trimmed.toLowerCase();
  if (types.has('null') && text.toLowerCase() === 'null') return { kind: 'word', word: 'null' };
  if (types.has('integer') && /^[+-]?\d+(?:_\d+)*$/.test(trimmed)) {
    return {
      kind: 'word',
      word: String(BigInt(trimmed.replaceAll('_', '').replace(/^\+/, ''))),
    };
  }
  const number = trimmed.replaceAll(/(?<=\d)_(?=\d)/g, ''); // like Python's float()
  if (types.has('number') && isFiniteNumber(number)) return { kind: 'word', word: numberOf(number) };
  if (types.has('boolean') && ['true', '1', 'false', '0'].includes(lower)) {
    return { kind: 'word', word: String(lower === 'true' || lower === '1') };
  }
  if (types.has('object') || types.has('array')) {
    const parsed = parseWritten(text);
    if (parsed !== null) return parsed;
  }
  const parsed = types.has('string') ? null : parseWritten(text);
  // 1e400 is a number that Python has no value for: it stays a text.
  return parsed === null || (parsed.kind === 'word' && Number(parsed.word) === Infinity) ? textOf(text) : parsed;
}

function isFiniteNumber(text: string): boolean {
  return /^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$/.test(text) && Number.isFinite(Number(text));
}

/** vLLM writes whole numbers without a point: 2.0 becomes 2. A number that JSON has no form for gets JavaScript's. */
function numberOf(text: string): string {
  if (/^(?:0|-?[1-9]\d*)$/.test(text)) return text;
  const value = Number(text);
  if (Number.isInteger(value)) return String(BigInt(value));
  return /^-?(?:0|[1-9]\d*)\.\d+$/.test(text) ? text : String(value);
}

function isTable(value: unknown): value is Schema {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
