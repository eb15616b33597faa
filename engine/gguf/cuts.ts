import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';

/**
 * A rule by which byte-level tokenizers split a text before they encode it: a name in a GGUF file, spelled out in a
 * tokenizer.json.
 */
interface Cut {
  readonly normalizer?: unknown;
  readonly pretokenizers: readonly unknown[];
}

/** Keyed by `tokenizer.ggml.pre`. Export writes the first of several equal entries. */
export const cuts: Readonly<Record<string, Cut>> = {
  'gpt-2': { pretokenizers: [byteLevel({ cuts: true })] },
  default: { pretokenizers: [byteLevel({ cuts: true })] },
  smollm: { pretokenizers: [{ type: 'Digits', individual_digits: true }, byteLevel({ cuts: true })] },
  qwen2: {
    normalizer: { type: 'NFC' },
    pretokenizers: [split(words(String.raw`\p{N}`)), byteLevel({ cuts: false })],
  },
  'llama-bpe': { pretokenizers: [split(words(String.raw`\p{N}{1,3}`)), byteLevel({ cuts: false })] },
};

/** Tokenizers that keep a word whole if it is a token, whether merges produce it or not. */
export const ignoreMerges: ReadonlySet<string> = new Set(['llama-bpe']);

const Step = z.looseObject({ type: z.string() });
const Sequence = z.looseObject({ type: z.literal('Sequence'), pretokenizers: z.array(Step) });

/** The name of a tokenizer.json's way of cutting; null if it has no name. */
export function nameOfCut(normalizer: unknown, preTokenizer: unknown): string | null {
  const sequence = Sequence.safeParse(preTokenizer);
  const steps = sequence.success ? sequence.data.pretokenizers : [preTokenizer];
  const found = Object.entries(cuts).find(
    ([, cut]) =>
      isDeepStrictEqual(cut.normalizer ?? null, normalizer ?? null) &&
      isDeepStrictEqual(cut.pretokenizers.map(meaning), steps.map(meaning)),
  );
  return found?.[0] ?? null;
}

/** Drops fields that do not affect the cuts. */
function meaning(step: unknown): unknown {
  if (typeof step !== 'object' || step === null) return step;
  return Object.fromEntries(Object.entries(step).filter(([name]) => name !== 'trim_offsets'));
}

function byteLevel({ cuts: usesRegex }: { readonly cuts: boolean }): unknown {
  return { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: usesRegex };
}

function split(expression: string): unknown {
  return { type: 'Split', pattern: { Regex: expression }, behavior: 'Isolated', invert: false };
}

/** The expression of Qwen 2 and Llama 3, which differ in how many digits are one piece. */
function words(digits: string): string {
  return String.raw`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|${digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`;
}
