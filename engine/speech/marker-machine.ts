import type { ToolSchema } from '../../core/rl/rollout/rollout.ts';
import { withSchemaTypes } from './schema-types.ts';
import type { Heard } from './heard.ts';
import {
  objectOf,
  parseWritten,
  readWritten,
  textOf,
  type WrittenJson,
  writeWritten,
} from '../../core/written-json.ts';

/** The state of a reader between markers. */
type State = 'content' | 'preamble' | 'name' | 'arguments' | 'between';

/**
 * A format with calls between markers, as a table: the meaning of each marker in each state. Other markers are text of
 * that state.
 */
export interface MarkerFormat {
  readonly markers: Readonly<Record<string, string>>;
  /** `STATE MARKER`: the next state; `+` begins a call, `.` ends one, `=` keeps the marker as text of the arguments. */
  readonly steps: Readonly<Record<string, `${'' | '.'}${'' | '+'}${'' | '='}${State}`>>;
  readonly argumentsOf: (
    written: string,
    call: { readonly name: string; readonly tools: readonly ToolSchema[] },
  ) => string;
  /** `isCut`: the text ended before the arguments. */
  readonly nameOf?: (written: string, isCut: boolean) => string;
  /** Calls of tools that were not offered are dropped. */
  readonly isOfferedOnly?: boolean;
  /** Spaces around the content beside calls stay. */
  readonly keepsBlanks?: boolean;
}

/**
 * Calls and text of a whole turn. Text after the first call is dropped, as in vLLM; an unfinished call is returned as
 * far as it goes.
 */
export function readMarkers(format: MarkerFormat, text: string, tools: readonly ToolSchema[]): Heard {
  const named = Object.entries(format.markers).sort(([, a], [, b]) => b.length - a.length);
  const pattern = new RegExp(named.map(([, marker]) => escaped(marker)).join('|'), 'g');
  const calls: { name: string; written: string[]; isCut: boolean }[] = [];
  const [before, behind]: [string[], string[]] = [[], []];
  let state: State = 'content';
  const say = (piece: string): void => {
    const call = calls.at(-1);
    if (state === 'content') (call === undefined ? before : behind).push(piece);
    else if (state === 'name') call!.name += piece;
    else if (state === 'arguments') call!.written.push(piece);
  };
  let at = 0;
  for (const { 0: marker, index } of text.matchAll(pattern)) {
    say(text.slice(at, index));
    at = index + marker.length;
    const name = named.find(([, one]) => one === marker)![0];
    const step = format.steps[`${state} ${name}`];
    if (step === undefined) {
      say(marker);
      continue;
    }
    if (step.includes('+')) calls.push({ name: '', written: [], isCut: true });
    state = step.replace(/^[.+=]*/, '') as State;
    if (state === 'arguments') calls.at(-1)!.isCut = false;
    if (step.includes('=')) say(marker);
  }
  say(text.slice(at));
  const { nameOf = (written: string) => written.trim() } = format;
  const toolCalls = calls.flatMap(({ name: writtenName, written, isCut }) => {
    const name = nameOf(writtenName, isCut);
    if (name === '' || (format.isOfferedOnly && tools.length > 0 && !tools.some((tool) => tool.function.name === name)))
      return [];
    return [
      {
        name,
        arguments: format.argumentsOf(written.join(''), { name, tools }),
      },
    ];
  });
  const said = before.join('') + (toolCalls.length > 0 ? '' : behind.join(''));
  const isBlank = calls.length > 0 && said.trim() === '';
  const trimmed = toolCalls.length > 0 && !format.keepsBlanks ? said.trim() : said;
  return { content: isBlank ? '' : trimmed, toolCalls };
}

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
}

type ArgumentsOf = MarkerFormat['argumentsOf'];

/** Bare values between tags: texts, unless the tool's schema has another type. */
function tagged(
  pattern: RegExp,
  valueOf: (found: readonly string[]) => WrittenJson,
  keyOf = (key: string) => key,
): ArgumentsOf {
  return (written, { name, tools }) => {
    const entries = [...written.matchAll(pattern)].map((found): [string, WrittenJson] => [
      keyOf(found[1]!),
      valueOf(found),
    ]);
    return writeWritten(withSchemaTypes(objectOf(entries), name, tools));
  };
}

const withoutFrame = (text: string): string => text.replace(/^\n/, '').replace(/\n$/, '');

/** Qwen3-Coder, Qwen3.5. */
export const qwenXml: MarkerFormat = {
  markers: {
    open: '<tool_call>',
    close: '</tool_call>',
    call: '<function=',
    end: '</function>',
    angle: '>',
  },
  steps: {
    'content open': '+preamble',
    'content call': '+name',
    'preamble close': '.content',
    'preamble call': 'name',
    'name angle': 'arguments',
    'name end': '.between',
    'arguments end': '.between',
    'between close': 'content',
    'between open': '+preamble',
    'between call': '+name',
  },
  argumentsOf: tagged(
    /<\s*parameter\s*=\s*([^>]*)>((?:(?!<\s*\/?\s*parameter\s*[=>])[^])*)(?:<\s*\/\s*parameter\s*>|(?=<\s*parameter\s*=))/g,
    ([, , value]) => textOf(withoutFrame(value!)),
  ),
};

/** GLM 4.5 and later. */
export const glmXml: MarkerFormat = {
  markers: { open: '<tool_call>', close: '</tool_call>', key: '<arg_key>' },
  steps: {
    'content open': '+name',
    'name key': '=arguments',
    'name close': '.content',
    'arguments close': '.content',
  },
  argumentsOf: tagged(
    /<arg_key>((?:(?!<arg_key>)[^])*?)<\/arg_key>\s*<arg_value>((?:(?!<\/?arg_value>)[^])*)<\/arg_value>/g,
    ([, , value]) => textOf(value!),
    (key) => key.trim(),
  ),
  isOfferedOnly: true,
};

/** Kimi K2. */
export const kimiSections: MarkerFormat = {
  markers: {
    section: '<|tool_calls_section_begin|>',
    sectionEnd: '<|tool_calls_section_end|>',
    open: '<|tool_call_begin|>',
    close: '<|tool_call_end|>',
    args: '<|tool_call_argument_begin|>',
  },
  steps: {
    'content section': 'preamble',
    'preamble open': '+name',
    'name args': 'arguments',
    'arguments close': '.between',
    'arguments sectionEnd': '.preamble',
    'between open': '+name',
    'preamble sectionEnd': 'preamble',
    'between sectionEnd': 'preamble',
  },
  nameOf(written, isCut) {
    const id = /^[^\n]+:\d+/.exec(written.trim())?.[0];
    return id?.split(':')[0]!.replace(/^functions\./, '') ?? (isCut ? written.trim() : '');
  },
  argumentsOf: (written, { name, tools }) => typedText(written.trim() || '{}', name, tools),
  keepsBlanks: true,
};

/** A JSON text keeps its form, unless the tool's schema has another type. */
function typedText(written: string, name: string, tools: readonly ToolSchema[]): string {
  const parsed = parseWritten(written);
  if (parsed === null) return written;
  const typed = writeWritten(withSchemaTypes(parsed, name, tools));
  return typed === writeWritten(parsed) ? written : typed;
}

const dsmlParameter =
  /<｜DSML｜parameter\s+name="([^"]+)"(?:\s+string="([^"]*)")?\s*>((?:(?!<\/?｜DSML｜parameter)[^])*)(?:<\/｜DSML｜parameter>|(?=<｜DSML｜parameter\s+name=))/g;

/** Some turns have all arguments inside of one that the tool does not have. */
function unwrapped(args: WrittenJson, properties: readonly string[]): WrittenJson {
  if (args.kind !== 'object' || args.entries.size !== 1 || properties.length === 0) return args;
  const [[key, given]] = [...args.entries] as [[string, WrittenJson]];
  if ((key !== 'arguments' && key !== 'input') || properties.includes(key)) return args;
  const inner = given.kind === 'text' ? parseWritten(given.text) : given;
  return inner?.kind === 'object' && [...inner.entries.keys()].every((one) => properties.includes(one)) ? inner : args;
}

function propertiesOf(name: string, tools: readonly ToolSchema[]): string[] {
  const properties = tools.find((tool) => tool.function.name === name)?.function.parameters['properties'];
  return typeof properties === 'object' && properties !== null ? Object.keys(properties) : [];
}

/** DeepSeek V3.2 and V4. */
export function dsml(wrapper: string): MarkerFormat {
  return {
    markers: {
      open: `<｜DSML｜${wrapper}>`,
      close: `</｜DSML｜${wrapper}>`,
      call: '<｜DSML｜invoke name="',
      named: '">',
      end: '</｜DSML｜invoke>',
    },
    steps: {
      'content open': 'preamble',
      'preamble call': '+name',
      'content call': '+name',
      'name named': 'arguments',
      'arguments end': '.between',
      'arguments close': '.between',
      'between call': '+name',
      'between close': 'between',
      'between open': 'preamble',
    },
    argumentsOf(written, call) {
      const entries = [...written.matchAll(dsmlParameter)].map(
        ({ 1: key, 2: isText, 3: value }): [string, WrittenJson] => [
          key!,
          isText === 'true' ? textOf(value!) : (parseWritten(value!) ?? textOf(value!)),
        ],
      );
      const args = unwrapped(objectOf(entries), propertiesOf(call.name, call.tools));
      return writeWritten(withSchemaTypes(args, call.name, call.tools));
    },
    keepsBlanks: true,
  };
}

/** Mistral from its eleventh tokenizer on. */
export const mistralNames: MarkerFormat = {
  markers: { open: '[TOOL_CALLS]', args: '[ARGS]', brace: '{' },
  steps: {
    'content open': '+name',
    'name args': 'arguments',
    'name brace': '=arguments',
    'arguments open': '.+name',
  },
  argumentsOf(written, { name, tools }) {
    const text = written.trim();
    const read = readWritten(text);
    return typedText(read === null ? text || '{}' : text.slice(0, read.end), name, tools);
  },
};
