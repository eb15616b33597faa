import { tokenScoresMax } from '../limits.ts';
import { present } from '../present.ts';

/** What a trainer gets: token rows with masks, in an order fixed by the plan. */

/** Consecutive tokens of a row that its environment said, learned by heart: −weight · ℓ each. */
export interface ObservedSpan {
  readonly from: number;
  /** Before this one. */
  readonly to: number;
  /** > 0. */
  readonly weight: number;
}

/** One row as it is packed and stored. The arrays are aligned and equally long; position t speaks of token t itself. */
export interface PackedRow {
  readonly tokenIds: readonly number[];
  /** 1 where the token was sampled by the policy and counts in the loss. Position 0 is always 0. */
  readonly lossMask: readonly number[];
  /**
   * The policy's log probability of the token when it was sampled, log softmax(logits / temperature); 0 where the mask is 0. Absent
   * where its server did not tell it.
   */
  readonly behaviorLogprobs?: readonly number[];
  /**
   * The sampler's: log probability under the distribution that was really drawn from, where penalties, top_p, top_k or min_p made it
   * another one than softmax(logits / temperature). Absent where it is the same, or nobody told it.
   */
  readonly samplingLogprobs?: readonly number[];
  readonly advantages: readonly number[];
  /** A teacher's log probability of the token, at temperature 1; 0 where the mask is 0. Absent where the run has no teacher that scores. */
  readonly teacherLogprobs?: readonly number[];
  /** By what its tokens with a mask of 1 are learned: a teacher's log probabilities alone; absent where by the plan's loss. */
  readonly objective?: 'ref_kl';
  /** In order, where the mask is 0; absent where there are none. */
  readonly observed?: readonly ObservedSpan[];
  /** Absent where each row of the batch is a rollout of its own, and there are no others. */
  readonly rollout?: RolloutOfRow;
  /** It was sampled at; absent where that is the plan's. */
  readonly temperature?: number;
}

/** Whether a teacher's log probabilities are learned in an environment, or a row of it: where environments differ in `loss`, not by those that learn from rewards. */
export function learnsFromTeacher(
  { distillation }: { readonly distillation?: unknown },
  { objective }: Pick<PackedRow, 'objective'>,
): boolean {
  return distillation === undefined || objective !== undefined;
}

/** A rollout may be several rows, where its chat template rewrites the past, or none, where it carries no loss. */
export interface RolloutOfRow {
  /** Among the batch's, from 0. */
  readonly index: number;
  /** How many the batch has, those without a row included. */
  readonly of: number;
}

/** One row as a trainer gets it: what no server told of the policy is the trainer's own, of the weights that the step begins from. */
export interface TrainSample extends PackedRow {
  /** The log probability in the denominator of the loss's ratio. */
  readonly behaviorLogprobs: readonly number[];
  /** What the token was sampled with: the policy's log probability then, else the sampler's. Absent where that is `behaviorLogprobs`. */
  readonly sampledLogprobs?: readonly number[];
  /** What the correction multiplied the advantage by, 0 where it masked the token; the teacher's lead gets it as well. Absent where the engine corrects. */
  readonly correctionWeights?: readonly number[];
}

/**
 * What a trainer computed of each token that counts, in nats, under the weights that its part of the step began from: row by row as its batch,
 * aligned with the rows' tokens; where the mask is 0, whatever it likes. A row that it did not compute is all 0; those from `scoredRows` on, which
 * nobody keeps, may be empty.
 */
export interface TokenScores {
  /** log softmax(logits / temperature) of the token. */
  readonly logprobs: readonly Float32Array[];
  /** −Σ p log p of what it was drawn from; null where the trainer does not tell. */
  readonly entropies: readonly Float32Array[] | null;
}

/** Of how many leading rows scores are kept: of those that together have `tokenScoresMax` tokens that count. */
export function scoredRows(rows: readonly Pick<RowFacts, 'counted'>[]): number {
  let left = tokenScoresMax;
  const end = rows.findIndex(({ counted }) => (left -= counted) < 0);
  return end < 0 ? rows.length : end;
}

/** What every loss needs of a row. */
export type MaskedSample = Pick<
  PackedRow,
  'tokenIds' | 'lossMask' | 'rollout' | 'temperature' | 'objective' | 'observed'
>;

/** What is known of a row without reading its tokens. */
export interface RowFacts {
  readonly tokens: number;
  /** How many of them count in the loss. */
  readonly counted: number;
  /** Σ mask: the same, where masks are 0 and 1. */
  readonly weight: number;
  readonly objective?: 'ref_kl';
  /** Tokens of its observed spans; absent = 0. */
  readonly observed?: number;
  readonly rollout?: RolloutOfRow;
  /** Leading tokens that it has in common with the row before it, none of which predicts a token that counts or was observed; absent = 0. */
  readonly shared?: number;
}

/** Rows that are read when they are needed: all of them may be more than fits into memory. */
export interface RowSource<Row extends MaskedSample> {
  readonly rows: readonly RowFacts[];
  /** Rows by their places in `rows`, in the order asked for. Throws `CheckpointDamaged` where they are not what was stored. */
  read(places: readonly number[]): Promise<readonly Row[]>;
}

/** The rows that one step is trained on. */
export interface TrainBatch extends RowSource<TrainSample> {
  /** All of them in their order; one is in memory at a time. */
  samples(): AsyncIterable<TrainSample>;
}

/** Rows that are in memory already, or will be read. */
export type Rows<Row extends MaskedSample> = readonly Row[] | RowSource<Row>;

export function rowsOf<Row extends MaskedSample>(rows: Rows<Row>): RowSource<Row> {
  if (!isHeld(rows)) return rows;
  const facts = rows.map((row, place) => {
    const shared = sharedTokens(rows[place - 1], row);
    return { ...factsOf(row), ...(shared > 0 ? { shared } : {}) };
  });
  return { rows: facts, read: (places) => Promise.resolve(places.map((place) => rows[place]!)) };
}

/** As `RowFacts.shared` has it; 0 without a row before. */
export function sharedTokens(before: Masked | undefined, row: Masked): number {
  if (!before) return 0;
  const most = Math.min(uncounted(before), uncounted(row));
  let shared = 0;
  while (shared < most && before.tokenIds[shared] === row.tokenIds[shared]) shared += 1;
  return shared;
}

type Masked = Pick<MaskedSample, 'tokenIds' | 'lossMask' | 'observed'>;

/** Leading tokens that predict none that is learned: the one before a row's first such token is not among them, nor is its last. */
function uncounted({ tokenIds, lossMask, observed }: Masked): number {
  const first = lossMask.findIndex((mask) => mask !== 0);
  return Math.max(0, Math.min(first < 0 ? tokenIds.length : first, observed?.[0]?.from ?? Infinity) - 1);
}

export function isHeld<Row extends MaskedSample>(rows: Rows<Row>): rows is readonly Row[] {
  return Array.isArray(rows);
}

/** A batch of rows that are in memory, or are read from somewhere. */
export function batchOf(given: Rows<TrainSample>): TrainBatch {
  const source = rowsOf(given);
  return {
    rows: source.rows,
    read: (places) => source.read(places),
    async *samples() {
      for (const place of source.rows.keys()) yield* await source.read([place]);
    },
  };
}

/** Consecutive places, of so many tokens together; a longer row is by itself. */
export function windowsOf(rows: readonly Pick<RowFacts, 'tokens'>[], tokensMax: number): number[][] {
  const windows: number[][] = [];
  let sum = 0;
  for (const [place, { tokens }] of rows.entries()) {
    const open = windows.at(-1);
    sum += tokens;
    if (open && sum <= tokensMax) open.push(place);
    else {
      windows.push([place]);
      sum = tokens;
    }
  }
  return windows;
}

export function factsOf({ tokenIds, lossMask, rollout, objective, observed }: MaskedSample): RowFacts {
  let [counted, weight] = [0, 0];
  for (const mask of lossMask) {
    if (mask !== 0) counted += 1;
    weight += mask;
  }
  const seen = observed && tokensIn(observed);
  return { tokens: tokenIds.length, counted, weight, ...present({ objective, observed: seen, rollout }) };
}

export function tokensIn(spans: readonly ObservedSpan[]): number {
  return spans.reduce((sum, { from, to }) => sum + to - from, 0);
}

/** A part of a batch that is an optimizer step of its own. */
interface MiniBatch extends RowSource<TrainSample> {
  /** Where its rows begin in the batch. */
  readonly first: number;
}

/**
 * Cuts a batch into parts of as many rollouts each, in the order of its rows; those of one rollout stay together. There are fewer parts
 * where there are fewer rollouts. So do verl (`ppo_mini_batch_size`) and tinker-cookbook (`num_substeps`); each part divides its loss by
 * what is in it.
 */
export function miniBatches(batch: RowSource<TrainSample>, count: number): MiniBatch[] {
  const { rows } = batch;
  const starts = [...rows.keys()].filter((row) => !isOfSameRollout(rows[row - 1], rows[row]!));
  const parts = Math.min(count, starts.length);
  if (parts <= 1) return [{ rows, first: 0, read: (places) => batch.read(places) }];
  const firsts = Array.from({ length: parts }, (_, i) => starts[Math.floor((i * starts.length) / parts)]!);
  return firsts.map((first, i) => {
    const end = firsts[i + 1] ?? rows.length;
    const recount = rolloutsOf(rows, first, end);
    return {
      rows: rows.slice(first, end).map(recount),
      first,
      read: async (places) => (await batch.read(places.map((place) => first + place))).map(recount),
    };
  });
}

function isOfSameRollout(before: RowFacts | undefined, { rollout }: RowFacts): boolean {
  return rollout !== undefined && before?.rollout?.index === rollout.index;
}

/** Counts the rollouts of a part from 0; those without a row belong to the part before them. */
function rolloutsOf(rows: readonly RowFacts[], first: number, end: number) {
  const from = first === 0 ? 0 : (rows[first]?.rollout?.index ?? 0);
  const of = (rows[end]?.rollout?.index ?? rows[first]?.rollout?.of ?? 0) - from;
  return <Row extends Pick<RowFacts, 'rollout'>>(row: Row): Row =>
    row.rollout === undefined ? row : { ...row, rollout: { index: row.rollout.index - from, of } };
}
