import { z } from 'zod';

/**
 * SentencePiece's BPE between a GGUF file, where each piece has a score, and a tokenizer.json, where pairs are merged in an order. Of the pairs that lie
 * side by side llama.cpp joins the one whose piece has the highest score (`llm_tokenizer_spm_session` of src/llama-vocab.cpp). The merges that do
 * the same are all cuts of all pieces, by the score of the piece.
 */

/** What stands for a blank within a piece. */
const blank = '▁';

/** As `tokenizer.ggml.token_type` has them. */
export const tokenTypes = { usual: 1, unknown: 2, control: 3, own: 4, unused: 5, byte: 6 } as const;

export interface Pieces {
  readonly tokens: readonly string[];
  /** The higher, the sooner it is put together. */
  readonly scores: readonly number[];
  readonly types: readonly number[];
}

type Merge = readonly [left: string, right: string];

/** All pairs of pieces that give a piece, in the order in which they are merged. */
export function mergesOf({ scores, ...pieces }: Pieces): Merge[] {
  const ids = usualIds(pieces);
  const found = [...ids].flatMap(([token, id]) => cutsOf(token, ids).map((merge) => ({ merge, score: scores[id]! })));
  return found.sort((a, b) => b.score - a.score).map(({ merge }) => merge);
}

/** Pieces of several characters that no merge gives: SentencePiece's `user_defined_symbols`, which the converter does not mark. */
export function uncutPieces(pieces: Pick<Pieces, 'tokens' | 'types'>): ReadonlySet<number> {
  const ids = usualIds(pieces);
  const isUncut = (token: string): boolean => !isOneCharacter(token) && cutsOf(token, ids).length === 0;
  return new Set([...ids].flatMap(([token, id]) => (isUncut(token) ? [id] : [])));
}

const isOneCharacter = (token: string): boolean =>
  token.length < 2 || token.length === String.fromCodePoint(token.codePointAt(0)!).length;

function usualIds({ tokens, types }: Pick<Pieces, 'tokens' | 'types'>): Map<string, number> {
  return new Map(tokens.flatMap((token, id) => (types[id] === tokenTypes.usual ? [[token, id] as const] : [])));
}

/** Where a piece can be cut into two that are known, in the order of their ids. */
function cutsOf(token: string, ids: ReadonlyMap<string, number>): Merge[] {
  const cuts: { readonly merge: Merge; readonly left: number; readonly right: number }[] = [];
  let at = 0;
  for (const character of token) {
    at += character.length;
    const merge: Merge = [token.slice(0, at), token.slice(at)];
    const [left, right] = [ids.get(merge[0]), ids.get(merge[1])];
    if (left !== undefined && right !== undefined) cuts.push({ merge, left, right });
  }
  return cuts.sort((a, b) => a.left - b.left || a.right - b.right).map(({ merge }) => merge);
}

/**
 * The scores with which the same merges are made, one for each piece: those that are made of others get −1, −2, … in the order of their merges. Null
 * where no scores do: where the merges of one piece lie apart, or some of its cuts are none.
 */
export function scoresOf(merges: readonly Merge[], pieces: Pick<Pieces, 'tokens' | 'types'>): readonly number[] | null {
  const ranks = new Map<string, number>();
  const counts = new Map<string, number>();
  let last: string | null = null;
  for (const [left, right] of merges) {
    const piece = left + right;
    if (piece !== last && ranks.has(piece)) return null;
    if (piece !== last) ranks.set(piece, -1 - ranks.size);
    counts.set(piece, (counts.get(piece) ?? 0) + 1);
    last = piece;
  }
  const ids = usualIds(pieces);
  for (const token of ids.keys()) if (cutsOf(token, ids).length !== (counts.get(token) ?? 0)) return null;
  const least = -1 - ranks.size;
  return pieces.tokens.map((token, id) => (ids.get(token) === id ? (ranks.get(token) ?? least) : 0));
}

/** The parts of a tokenizer.json around the model. `addsBlank`: a text gets a blank before it, as before a word. */
export function partsOfTokenizer(addsBlank: boolean): { readonly normalizer: unknown; readonly decoder: unknown } {
  const replace = (from: string, to: string): unknown => ({ type: 'Replace', pattern: { String: from }, content: to });
  return {
    normalizer: {
      type: 'Sequence',
      normalizers: [...(addsBlank ? [{ type: 'Prepend', prepend: blank }] : []), replace(' ', blank)],
    },
    decoder: {
      type: 'Sequence',
      decoders: [
        replace(blank, ' '),
        { type: 'ByteFallback' },
        { type: 'Fuse' },
        ...(addsBlank ? [{ type: 'Strip', content: ' ', start: 1, stop: 0 }] : []),
      ],
    },
  };
}

/** A token that is found in a text before it is cut has blanks in it as they are. */
export const withBlanks = (token: string): string => token.replaceAll(blank, ' ');

const Replace = z.object({
  type: z.literal('Replace'),
  pattern: z.object({ String: z.literal(' ') }),
  content: z.literal(blank),
});
const Prepend = z.object({ type: z.literal('Prepend'), prepend: z.literal(blank) });
/** Blanks are replaced by then, so that it cuts nothing (Gemma). */
const CutsNothing = z
  .looseObject({
    type: z.literal('Split'),
    pattern: z.object({ String: z.literal(' ') }),
    behavior: z.literal('MergedWithPrevious'),
  })
  .nullish();
const Metaspace = z.looseObject({
  type: z.literal('Metaspace'),
  replacement: z.literal(blank),
  prepend_scheme: z.enum(['always', 'first', 'never']),
  split: z.literal(false),
});
const Steps = z.looseObject({ type: z.literal('Sequence'), normalizers: z.array(z.unknown()) });

/**
 * Whether a text gets a blank before it, of a tokenizer.json that handles blanks as SentencePiece does; null = it does not. llama.cpp knows no
 * `prepend_scheme = "first"`, a blank before what begins a conversation and nothing behind a special token: it gets one there too, as
 * `convert_hf_to_gguf.py` writes it.
 */
export function addsBlankOf(normalizer: unknown, preTokenizer: unknown): boolean | null {
  const metaspace = Metaspace.safeParse(preTokenizer);
  if (metaspace.success) return normalizer == null ? metaspace.data.prepend_scheme !== 'never' : null;
  if (!CutsNothing.safeParse(preTokenizer).success) return null;
  const sequence = Steps.safeParse(normalizer);
  const steps = sequence.success ? sequence.data.normalizers : [normalizer];
  if (!Replace.safeParse(steps.at(-1)).success) return null;
  if (steps.length === 1) return false;
  return steps.length === 2 && Prepend.safeParse(steps[0]).success ? true : null;
}

/** `<0x0A>` */
export const isByte = (token: string): boolean => /^<0x[0-9A-F]{2}>$/.test(token);
