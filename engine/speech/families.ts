import { dsml, glmXml, kimiSections, type MarkerFormat, mistralNames, qwenXml, readMarkers } from './marker-machine.ts';
import { type Thought, thinksByMarkers, thinksFirst, thinkTags } from './thoughts.ts';
import { gemma4 } from './gemma.ts';
import * as readers from './tool-readers.ts';
import type { ToolReader } from './tool-readers.ts';

/** One format of tool calls. */
export interface ToolFormat {
  readonly read: ToolReader;
  /** Markers that open a call. A text without any of them has no call. */
  readonly markers: readonly string[];
  /** Special tokens that the reader wants to see. */
  readonly seen?: readonly string[];
}

function byMarkers(format: MarkerFormat, ...markers: string[]): ToolFormat {
  return {
    read: (text, tools) => readMarkers(format, text, tools),
    markers,
    seen: Object.values(format.markers),
  };
}

const deepSeekTokens = ['calls▁begin', 'calls▁end', 'call▁begin', 'call▁end', 'sep'].map(
  (word) => `<｜tool▁${word}｜>`,
);
const hermesFormat: ToolFormat = {
  read: readers.hermes,
  markers: ['<tool_call>'],
  seen: ['<tool_call>', '</tool_call>'],
};
const llamaFormat: ToolFormat = {
  read: readers.llamaJson,
  markers: ['{', '<|python_tag|>'],
  seen: ['<|python_tag|>'],
};
const qwenFormat = byMarkers(qwenXml, '<tool_call>', '<function=');
const glmFormat = byMarkers(glmXml, '<tool_call>');

/** Keys are vLLM's parser names (`--tool-call-parser`). */
export const toolFormats: Readonly<Record<string, ToolFormat>> = {
  hermes: hermesFormat,
  qwen3_json: hermesFormat,
  qwen3_coder: qwenFormat,
  qwen3_xml: qwenFormat,
  glm45: glmFormat,
  glm47: glmFormat,
  kimi_k2: byMarkers(kimiSections, '<|tool_calls_section_begin|>'),
  deepseek_v3: {
    read: readers.deepSeekV3,
    markers: ['<｜tool▁calls▁begin｜>'],
    seen: deepSeekTokens,
  },
  deepseek_v31: {
    read: readers.deepSeekV31,
    markers: ['<｜tool▁calls▁begin｜>'],
    seen: deepSeekTokens,
  },
  deepseek_v32: byMarkers(dsml('function_calls'), '<｜DSML｜'),
  deepseek_v4: byMarkers(dsml('tool_calls'), '<｜DSML｜'),
  mistral: {
    read: (text, tools) =>
      /^(?:(?!\[TOOL_CALLS\])[^])*\[TOOL_CALLS\]\s*[[{]/.test(text)
        ? readers.mistralList(text, tools)
        : readMarkers(mistralNames, text, tools),
    markers: ['[TOOL_CALLS]'],
    seen: ['[TOOL_CALLS]', '[ARGS]'],
  },
  llama3_json: llamaFormat,
  llama4_json: llamaFormat,
  pythonic: { read: readers.pythonic, markers: ['['] },
  llama4_pythonic: {
    read: readers.llama4Pythonic,
    markers: ['['],
    seen: ['<|python_start|>', '<|python_end|>'],
  },
  lfm2: {
    read: readers.lfm2,
    markers: ['<|tool_call_start|>'],
    seen: ['<|tool_call_start|>', '<|tool_call_end|>'],
  },
  gemma4: {
    read: gemma4,
    markers: ['<|tool_call>'],
    seen: ['<|tool_call>', '<tool_call|>', '<|"|>'],
  },
  functiongemma: {
    read: readers.functionGemma,
    markers: ['<start_function_call>'],
    seen: ['<start_function_call>', '<end_function_call>', '<escape>'],
  },
};

/** gpt-oss writes thoughts, calls and answers in channels, which are read together. */
export const harmonyParsers = {
  tools: 'openai',
  reasoning: 'openai_gptoss',
} as const;
export const harmonyTokens = ['start', 'end', 'message', 'channel', 'constrain', 'call', 'return'].map(
  (word) => `<|${word}|>`,
);

type TemplateArguments = Readonly<Record<string, unknown>>;
/** Takes the thoughts out of a turn; the variables of the chat template say whether the model thinks. */
type ThoughtReader = (text: string, args: TemplateArguments) => Thought;

const thinkMarkers = ['<tool_call>'];
const unread = (text: string): Thought => ({ reasoning: '', rest: text });
/** A closing tag has no meaning if the prompt turned thinking off. */
const unclosed = (text: string): Thought => unread(text.replaceAll(thinkTags.close, ''));

/** Thinks unless a variable of the template says no. */
const thinks = ({ thinking, enable_thinking: enabled }: TemplateArguments): boolean =>
  (thinking == null && enabled == null) || Boolean(thinking) || Boolean(enabled);

const machine = {
  ...thinkTags,
  begins: true,
  reopens: false,
  callMarkers: thinkMarkers,
  trimsEnd: false,
};
const glmThoughts: ThoughtReader = (text, args) =>
  thinks(args)
    ? thinksByMarkers(text, { ...machine, reopens: true, trimsEnd: true })
    : unread(thinksByMarkers(text, { ...machine, begins: false, reopens: true }).rest);

/** Keys are vLLM's parser names (`--reasoning-parser`). */
export const thoughtReaders: Readonly<Record<string, ThoughtReader>> = {
  /** Thoughts stay in the content, as in vLLM without a reasoning parser. */
  none: unread,
  deepseek_r1: (text) => thinksFirst(text),
  deepseek_v3: (text, { thinking, enable_thinking: enabled }) =>
    thinking || enabled ? thinksFirst(text) : unread(text),
  deepseek_v4: (text, args) =>
    thinks(args) && args['reasoning_effort'] !== 'none'
      ? thinksByMarkers(text, {
          ...machine,
          reopens: true,
          callMarkers: ['<｜DSML｜tool_calls>'],
          trimsEnd: true,
        })
      : thinksByMarkers(text, {
          ...machine,
          begins: false,
          reopens: true,
          callMarkers: ['<｜DSML｜tool_calls>'],
          trimsEnd: true,
        }),
  qwen3: (text, { enable_thinking: enabled = true }) => (enabled ? thinksByMarkers(text, machine) : unclosed(text)),
  glm45: glmThoughts,
  glm47: glmThoughts,
  kimi_k2: (text, args) =>
    thinks(args)
      ? thinksByMarkers(text, {
          ...machine,
          callMarkers: ['<|tool_calls_section_begin|>'],
          trimsEnd: true,
        })
      : unclosed(text),
  mistral: (text) =>
    thinksByMarkers(text, {
      open: '[THINK]',
      close: '[/THINK]',
      begins: false,
      reopens: true,
      callMarkers: ['[TOOL_CALLS]'],
      trimsEnd: true,
    }),
  gemma4: (text) => {
    const isOpen = !text.includes('<|channel>') && (text.includes('<channel|>') || text.startsWith('thought\n'));
    const { reasoning, rest } = thinksByMarkers(text, {
      open: '<|channel>',
      close: '<channel|>',
      begins: isOpen,
      reopens: true,
      callMarkers: ['<|tool_call>'],
      trimsEnd: true,
    });
    return {
      reasoning: reasoning === 'thought' ? '' : reasoning.replace(/^thought\n/, ''),
      rest,
    };
  },
};

/** Special tokens that thoughts are read by. */
export const thoughtTokens = ['<think>', '</think>', '[THINK]', '[/THINK]', '<|channel>', '<channel|>'];

/** Finds the call format of a chat template's model: the first one whose markers are all in the template. */
const marks: readonly (readonly [parser: string, ...marks: string[]])[] = [
  ['openai', '<|channel|>', 'functions'],
  ['kimi_k2', '<|tool_calls_section_begin|>'],
  ['deepseek_v4', '｜DSML｜', 'tool_calls>'],
  ['deepseek_v32', 'DSML', 'function_calls'],
  ['deepseek_v3', '<｜tool▁calls▁begin｜>', '```json'],
  ['deepseek_v31', '<｜tool▁calls▁begin｜>'],
  ['gemma4', '<|tool_call>'],
  ['functiongemma', '<start_function_call>'],
  ['lfm2', '<|tool_call_start|>'],
  ['mistral', '[TOOL_CALLS]'],
  ['glm45', '<arg_key>'],
  ['qwen3_coder', '<function='],
  ['hermes', '<tool_call>'],
  ['llama4_pythonic', '<|python_start|>'],
  ['pythonic', '[func_name1('],
  ['llama3_json', '<|python_tag|>'],
  ['llama3_json', '<|start_header_id|>', '"parameters"'],
];

/** The tool parser for a chat template; null if it has none of the known marks. */
export function toolParserOf(template: string): string | null {
  // Every turn asks, mostly for the same template.
  if (newest?.template !== template) {
    const parser = marks.find(([, ...words]) => words.every((word) => template.includes(word)))?.[0] ?? null;
    newest = { template, parser };
  }
  return newest.parser;
}

let newest: { readonly template: string; readonly parser: string | null } | undefined;
