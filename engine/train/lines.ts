import type { RowFacts } from '../../core/rl/learning/batch.ts';
import type { ModelConfig } from '../model/config.ts';

/**
 * Rows that are computed as one: the tokens that all of them begin with, once, and then the rest of each. Every row sees the beginning and
 * itself, so its numbers are those that it would have alone, and the beginning gets the gradients of all.
 */
export interface Line {
  /** Places in the batch, one after the other. */
  readonly rows: readonly number[];
  /** Tokens that are fed once for all; 0 for a single row. */
  readonly shared: number;
  /** Tokens fed: the last of a row predicts nothing. */
  readonly width: number;
  /** Count of positions with loss. */
  readonly selected: number;
}

interface LineLimits {
  readonly rowsMax: number;
  readonly widthMax: number;
  readonly selectedMax: number;
  /** Cost of attending to one position, relative to the rest of a position's work; null = rows share no lines. */
  readonly pairCost: number | null;
}

/** Rows without loss are left out. Neighbouring rows become one line if that is less work than separate lines. */
export function joinRows(facts: readonly RowFacts[], limits: LineLimits): Line[] {
  const lines: Line[] = [];
  let known = Infinity; // leading tokens that the row at hand has in common with the last one that was kept
  for (const [row, { tokens, counted, shared = 0 }] of facts.entries()) {
    known = Math.min(known, shared);
    if (counted === 0) continue;
    const alone: Line = { rows: [row], shared: 0, width: tokens - 1, selected: counted };
    const open = lines.at(-1);
    const joined = open && limits.pairCost !== null ? joinedWith(open, alone, known) : null;
    if (open && joined && isWorth(joined, [open, alone], limits)) lines[lines.length - 1] = joined;
    else lines.push(alone);
    known = Infinity;
  }
  return lines;
}

function joinedWith(line: Line, row: Line, common: number): Line | null {
  const shared = line.rows.length === 1 ? common : Math.min(line.shared, common);
  if (shared <= 0) return null;
  const rows = [...line.rows, ...row.rows];
  // Tokens that leave the shared beginning are fed once for each row of the line.
  const unshared = (line.rows.length - 1) * (line.shared - shared);
  const ofLine = line.rows.length === 1 ? line.width : line.width + unshared;
  return { rows, shared, width: ofLine + row.width - shared, selected: line.selected + row.selected };
}

function isWorth(
  joined: Line,
  apart: readonly Line[],
  { rowsMax, widthMax, selectedMax, pairCost }: LineLimits,
): boolean {
  const { rows, width, selected } = joined;
  if (rows.length > rowsMax || width > widthMax || selected > selectedMax || pairCost === null) return false;
  const cost = (line: Line): number => line.width * (1 + line.width * pairCost);
  return cost(joined) < apart.reduce((sum, line) => sum + cost(line), 0);
}

/**
 * Multiplications per pair of positions in a layer's attention, relative to those of a position in its linear layers.
 * null if a layer has a window: it would count positions across rows.
 */
export function pairCost(config: ModelConfig): number | null {
  if (config.attention.some(({ window }) => window !== null)) return null;
  const { hiddenSize, headCount, keyValueHeadCount, headSize, feedForwardSize, experts } = config;
  const fed = experts ? experts.perToken * experts.feedForwardSize : feedForwardSize;
  const linear = hiddenSize * (2 * (headCount + keyValueHeadCount) * headSize + 3 * fed);
  return (2 * headCount * headSize) / linear;
}

/** The position of each slot of a line within its row, and the slots it attends to. */
export interface Sharing {
  /** [lines · width]: the position. */
  readonly positions: BigInt64Array;
  /** [lines · width · width]: bias on the score of a slot (row) for an earlier slot (column): 0, or `unseen`. */
  readonly bias: Float32Array;
}

/** So far below any score that its exponential is 0. */
const unseen = -1e30;

/** `lengths`: tokens fed of each row, by line. Slots of padding see all before them, as they do in a line of one row. */
export function sharingOf(lines: readonly { shared: number; lengths: readonly number[] }[], width: number): Sharing {
  const positions = new BigInt64Array(lines.length * width);
  const bias = new Float32Array(lines.length * width * width);
  for (const [l, { shared, lengths }] of lines.entries()) {
    for (let slot = 0; slot < shared; slot++) positions[l * width + slot] = BigInt(slot);
    let first = shared;
    for (const length of lengths) {
      const end = first + length - shared;
      for (let slot = first; slot < end; slot++) {
        positions[l * width + slot] = BigInt(slot - first + shared);
        const row = (l * width + slot) * width;
        bias.fill(unseen, row + shared, row + first);
      }
      first = end;
    }
  }
  return { positions, bias };
}
