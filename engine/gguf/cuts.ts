import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';

/** How byte-level tokenizers cut a text before it is encoded: by name in a GGUF file, spelled out in a tokenizer.json. */
interface Cut {
  readonly normalizer?: unknown;
  readonly pretokenizers: readonly unknown[];
}

/** By `tokenizer.ggml.pre`. Of two that are the same, the first is written. */
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

/** Tokenizers that take a word as it is where it is a token, merged or not. */
export const ignoreMerges: ReadonlySet<string> = new Set(['llama-bpe']);

const Step = z.looseObject({ type: z.string() });
const Sequence = z.looseObject({ type: z.literal('Sequence'), pretokenizers: z.array(Step) });

/** The name of how a tokenizer.json cuts; null where it has none. */
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

/** Without what says nothing about where a text is cut. */
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
