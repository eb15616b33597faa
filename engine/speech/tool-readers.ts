import type { ToolCall, ToolSchema } from '../../core/rl/rollout/rollout.ts';
import type { Heard } from './heard.ts';
import { readPythonCalls } from './python-calls.ts';
import {
  objectOf,
  parseWritten,
  readWritten,
  textOf,
  type WrittenJson,
  writeWritten,
} from '../../core/written-json.ts';

/** Reads a turn without its thoughts. Text that is no call stays unchanged. */
export type ToolReader = (text: string, tools: readonly ToolSchema[]) => Heard;

function onlyText(content: string): Heard {
  return { content, toolCalls: [] };
}

function unlessBlank(content: string): string {
  return content.trim() === '' ? '' : content;
}

/** Named by `name`, its arguments an object under the first of `keys` that is there. */
function callOf(value: WrittenJson | null, keys: readonly string[]): ToolCall | null {
  if (value?.kind !== 'object') return null;
  const name = value.entries.get('name');
  const given = keys.map((key) => value.entries.get(key)).find((one) => one !== undefined);
  if (name?.kind !== 'text' || name.text === '' || given?.kind !== 'object') return null;
  return { name: name.text, arguments: writeWritten(given) };
}

/** Hermes, Qwen2.5, Qwen3: JSON in tags. One call that cannot be read makes all of the turn text, as in vLLM. */
export const hermes: ToolReader = (text) => {
  const [before, ...rest] = text.split('<tool_call>');
  if (rest.length === 0) return onlyText(text);
  const calls: ToolCall[] = [];
  for (const [i, piece] of rest.entries()) {
    const end = piece.indexOf('</tool_call>');
    if (end < 0 && i < rest.length - 1) return onlyText(text);
    const call = callOf(parseWritten(end < 0 ? piece : piece.slice(0, end)), ['arguments']);
    if (call === null) return onlyText(text);
    calls.push(call);
  }
  return { content: unlessBlank(before!), toolCalls: calls };
};

/** Llama 3: objects of JSON anywhere in the turn. */
export const llamaJson: ToolReader = (text) => {
  const calls: ToolCall[] = [];
  for (let at = text.indexOf('{'); at >= 0; at = text.indexOf('{', at)) {
    const read = readWritten(text, at);
    const call = read && callOf(read.value, ['arguments', 'parameters']);
    if (!call) return onlyText(text);
    calls.push(call);
    at = read.end;
  }
  return calls.length === 0 ? onlyText(text) : { content: '', toolCalls: calls };
};

const pythonOpening = /^\[[a-zA-Z]\w*\(/;

/** Llama 3.2 and 4: a list of Python's calls, and nothing beside it. */
export const pythonic: ToolReader = (text) => {
  const isPlain = pythonOpening.test(text) && !/,\s*\]\s*$/.test(text);
  const calls = isPlain ? readPythonCalls(text, { isStrict: true }) : null;
  if (calls === null || calls.length === 0 || calls.some(({ name }) => name.includes('.'))) return onlyText(text);
  return { content: '', toolCalls: calls };
};

export const llama4Pythonic: ToolReader = (text, tools) => {
  const opening = '<|python_start|>';
  if (!text.startsWith(opening)) return pythonic(text, tools);
  const heard = pythonic(text.slice(opening.length).replaceAll('<|python_end|>', ''), tools);
  return heard.toolCalls.length === 0 ? onlyText(text) : heard;
};

/** LFM2: Python's calls between markers. */
export const lfm2: ToolReader = (text) => {
  const [opening, closing] = ['<|tool_call_start|>', '<|tool_call_end|>'];
  const start = text.indexOf(opening);
  if (start < 0) return onlyText(text);
  const from = start + opening.length;
  const end = text.indexOf(closing, from);
  const calls = readPythonCalls(text.slice(from, end < 0 ? text.length : end).trim());
  if (calls === null || calls.length === 0) return onlyText(text);
  const behind = end < 0 ? '' : text.slice(end).split(closing).at(-1)!;
  const content = [text.slice(0, start).trim(), behind.trim()].filter((piece) => piece !== '').join('\n');
  return { content, toolCalls: calls };
};

/** DeepSeek V3, R1 and V3.1: arguments stay the text that they were. */
function deepSeek(pattern: RegExp): ToolReader {
  return (text) => {
    const start = text.indexOf('<｜tool▁calls▁begin｜>');
    if (start < 0) return onlyText(text);
    const toolCalls = [...text.matchAll(pattern)].map(({ 1: name, 2: given }) => ({ name: name!, arguments: given! }));
    return { content: unlessBlank(text.slice(0, start)), toolCalls };
  };
}
export const deepSeekV3 = deepSeek(
  /<｜tool▁call▁begin｜>[^\n<]*<｜tool▁sep｜>([^\n]*)\n```json\n([^\n]*)\n```<｜tool▁call▁end｜>/g,
);
export const deepSeekV31 = deepSeek(
  /<｜tool▁call▁begin｜>([^\n<]*)<｜tool▁sep｜>((?:(?!<｜tool▁)[^\n])*)<｜tool▁call▁end｜>/g,
);

/** Mistral before its eleventh tokenizer: a list of JSON behind the marker. */
export const mistralList: ToolReader = (text) => {
  const [before, ...segments] = text.split('[TOOL_CALLS]');
  const written = segments.find((segment) => segment.trim() !== '')?.trim() ?? '';
  const read = segments.length === 0 ? null : readWritten(written);
  const listed = read?.value.kind === 'array' ? read.value.items : read === null ? [] : [read.value];
  const calls = listed.map((one) => callOf(withArguments(one), ['arguments'])).filter((call) => call !== null);
  return calls.length === 0
    ? onlyText(segments.length === 0 ? text : written)
    : { content: unlessBlank(before!), toolCalls: calls };
};

function withArguments(value: WrittenJson): WrittenJson {
  if (value.kind !== 'object' || value.entries.has('arguments')) return value;
  return objectOf([...value.entries, ['arguments', objectOf([])]]);
}

/** FunctionGemma. */
export const functionGemma: ToolReader = (text) => {
  const start = text.indexOf('<start_function_call>');
  if (start < 0) return onlyText(text);
  const toolCalls = text
    .slice(start)
    .split('<start_function_call>')
    .flatMap((piece) => {
      const [, name, written = ''] = /^call:(\w+)\{([^]*)/.exec(piece) ?? [];
      if (name === undefined) return [];
      const pairs = [
        ...written.split('}<end_function_call>')[0]!.matchAll(/(\w+):<escape>((?:(?!<escape>)[^])*)<escape>/g),
      ];
      const entries = pairs.map(({ 1: key, 2: value }) => [key!, parseWritten(value!) ?? textOf(value!)] as const);
      return [{ name, arguments: writeWritten(objectOf(entries)) }];
    });
  return toolCalls.length === 0 ? onlyText(text) : { content: text.slice(0, start).trim(), toolCalls };
};
