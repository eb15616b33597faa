import { z } from '../../backends/environments/kit.ts';

/** A word, a phrase, a number or keys; null for instructions without a value. */
export const Value = z.union([z.string(), z.int(), z.array(z.string()), z.null()]);
export type Value = z.infer<typeof Value>;

/** Kinds of instructions: their words for the model, and the check of an answer. */

export const kindNames = [
  'lower_case',
  'capitals',
  'words',
  'beginning',
  'ending',
  'include',
  'no_comma',
  'question',
  'quotes',
  'list',
  'json',
] as const;
export type KindName = (typeof kindNames)[number];

/** One instruction, as an example carries it. `value` is the word, the phrase, the number or the keys that it is about. */
export const Instruction = z.strictObject({ kind: z.enum(kindNames), value: Value });
export type Instruction = z.infer<typeof Instruction>;

interface Kind {
  /** Values that it may be drawn with. */
  readonly values: readonly Value[];
  /** The sentence that asks for it, after the one with the topic. */
  ask(value: Value): string;
  isFollowed(text: string, value: Value): boolean;
}

export const kinds: Readonly<Record<KindName, Kind>> = {
  lower_case: plain('Use lower case only.', (text) => text === text.toLowerCase()),
  capitals: plain('Use capital letters only.', (text) => text === text.toUpperCase()),
  words: {
    values: [5, 6, 7, 8, 9],
    ask: (count) => `Use exactly ${String(count)} words.`,
    isFollowed: (text, count) => wordsIn(text) === count,
  },
  beginning: {
    values: ['Indeed', 'Yes', 'Sometimes', 'Today', 'Everybody', 'Maybe'],
    ask: (word) => `Begin with the word: ${String(word)}`,
    isFollowed: (text, word) => new RegExp(`^${String(word)}\\b`, 'i').test(bare(text)),
  },
  ending: {
    values: ['that is all', 'thank you', 'and so on', 'I promise', 'good night', 'the end'],
    ask: (phrase) => `End with the words: ${String(phrase)}`,
    isFollowed: (text, phrase) => new RegExp(`\\b${String(phrase)}$`, 'i').test(bare(text)),
  },
  include: {
    values: ['green', 'small', 'happy', 'old', 'water', 'night', 'house', 'morning'],
    ask: (word) => `Use the word: ${String(word)}`,
    isFollowed: (text, word) => new RegExp(`\\b${String(word)}\\b`, 'i').test(text),
  },
  no_comma: plain('Use no commas.', (text) => !text.includes(',')),
  question: plain('Make it a question.', (text) => /\?"?$/.test(text)),
  quotes: plain('Put it in double quotes.', (text) => /^"[^"]+"$/.test(text)),
  list: {
    values: [2, 3, 4],
    ask: (count) => `Give exactly ${String(count)} words, separated by commas.`,
    isFollowed: (text, count) => {
      const items = bare(text).split(',');
      return items.length === count && items.every((item) => wordsIn(item) === 1);
    },
  },
  json: {
    values: [
      ['name', 'color'],
      ['topic', 'mood'],
      ['title', 'text'],
    ],
    ask: (keys) => `Answer with JSON of the keys ${(keys as string[]).map((key) => `"${key}"`).join(' and ')}.`,
    isFollowed: (text, keys) => {
      const value = parseJson(text);
      const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
      return isObject && JSON.stringify(Object.keys(value).sort()) === JSON.stringify((keys as string[]).toSorted());
    },
  },
};

/** Kinds that fix the whole answer, so that no other can be added. */
export const standsAlone: ReadonlySet<KindName> = new Set(['list', 'json']);

/** Pairs that no answer can satisfy together. */
export const exclusive: readonly (readonly [KindName, KindName])[] = [
  ['lower_case', 'capitals'],
  ['ending', 'question'],
];

/** Whether an answer is about the topic at all: without it, one answer would do for every topic. */
export function mentions(text: string, topic: string): boolean {
  return text.toLowerCase().includes(topic.replace(/s$/, ''));
}

function wordsIn(text: string): number {
  return text.split(/\s+/).filter((word) => /[\p{L}\p{N}]/u.test(word)).length;
}

function plain(sentence: string, isFollowed: (text: string) => boolean): Kind {
  return { values: [null], ask: () => sentence, isFollowed: (text) => isFollowed(text) };
}

/** Without the marks around it. */
function bare(text: string): string {
  return text.replace(/^["'\s]+/, '').replace(/["'.!?\s]{1,20}$/, '');
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
