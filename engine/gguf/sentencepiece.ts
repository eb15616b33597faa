import { z } from 'zod';

/**
 * SentencePiece's BPE in two forms: a GGUF file scores each piece, a tokenizer.json orders the merges of pairs.
 * llama.cpp joins the adjacent pair whose piece has the highest score (`llm_tokenizer_spm_session` of
 * src/llama-vocab.cpp). The equivalent merges are all cuts of all pieces, ordered by the score of the piece.
 */

/** Replaces a space within a piece. */
const blank = '▁';

/** Codes of `tokenizer.ggml.token_type`. */
export const tokenTypes = { normal: 1, unknown: 2, control: 3, own: 4, unused: 5, byte: 6 } as const;

export interface Pieces {
  readonly tokens: readonly string[];
  /** Pieces with higher scores are merged first. */
  readonly scores: readonly number[];
  readonly types: readonly number[];
}

type Merge = readonly [left: string, right: string];

/** All pairs of pieces that give a piece, in the order in which they are merged. */
export function mergesOf({ scores, ...pieces }: Pieces): Merge[] {
  const ids = normalIds(pieces);
  const found = [...ids].flatMap(([token, id]) => cutsOf(token, ids).map((merge) => ({ merge, score: scores[id]! })));
  return found.sort((a, b) => b.score - a.score).map(({ merge }) => merge);
}

/** Pieces of several characters that no merge gives: SentencePiece's `user_defined_symbols`, which the converter does not mark. */
export function uncutPieces(pieces: Pick<Pieces, 'tokens' | 'types'>): ReadonlySet<number> {
  const ids = normalIds(pieces);
  const isUncut = (token: string): boolean => !isOneCharacter(token) && cutsOf(token, ids).length === 0;
  return new Set([...ids].flatMap(([token, id]) => (isUncut(token) ? [id] : [])));
}

const isOneCharacter = (token: string): boolean =>
  token.length < 2 || token.length === String.fromCodePoint(token.codePointAt(0)!).length;

function normalIds({ tokens, types }: Pick<Pieces, 'tokens' | 'types'>): Map<string, number> {
  return new Map(tokens.flatMap((token, id) => (types[id] === tokenTypes.normal ? [[token, id] as const] : [])));
}

/** The cuts of a piece into two known pieces, ordered by the ids of the two. */
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
 * Scores that give the same merges, one for each piece: pieces that merges produce get −1, −2, … in the order of the
 * merges. Null when no scores can: the merges of one piece are not adjacent, or not all of its cuts are merges.
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
  const ids = normalIds(pieces);
  for (const token of ids.keys()) if (cutsOf(token, ids).length !== (counts.get(token) ?? 0)) return null;
  const least = -1 - ranks.size;
  return pieces.tokens.map((token, id) => (ids.get(token) === id ? (ranks.get(token) ?? least) : 0));
}

/** The parts of a tokenizer.json around the model. `addsBlank`: a space is put before the text, as before a word. */
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

/** A token that is matched before the text is split keeps its spaces. */
export const withBlanks = (token: string): string => token.replaceAll(blank, ' ');

const Replace = z.object({
  type: z.literal('Replace'),
  pattern: z.object({ String: z.literal(' ') }),
  content: z.literal(blank),
});
const Prepend = z.object({ type: z.literal('Prepend'), prepend: z.literal(blank) });
/** Gemma's splits at spaces, which are already replaced by then, so it splits nothing. */
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
 * Whether a text gets a space before it, if a tokenizer.json handles spaces like SentencePiece; null = it does not.
 * llama.cpp lacks `prepend_scheme = "first"`, a space at the beginning of a conversation and none behind a special
 * token: it then adds one there too, as `convert_hf_to_gguf.py` does.
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

/** Form: `<0x0A>`. */
export const isByte = (token: string): boolean => /^<0x[0-9A-F]{2}>$/.test(token);
