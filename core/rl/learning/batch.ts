import { tokenScoresMax } from '../../limits.ts';
import { present } from '../../present.ts';

/** A trainer's input: token rows with masks, in an order fixed by the plan. */

/** Consecutive tokens of a row from its environment, trained on by cross entropy: −weight · ℓ each. */
export interface ObservedSpan {
  readonly from: number;
  /** Exclusive. */
  readonly to: number;
  /** > 0. */
  readonly weight: number;
}

/** One row as packed and stored. The arrays are aligned and equally long; position t describes token t itself. */
export interface PackedRow {
  readonly tokenIds: readonly number[];
  /** 1 if the token was sampled by the policy and counts in the loss. Position 0 is always 0. */
  readonly lossMask: readonly number[];
  /**
   * The policy's log probability of the token when it was sampled, log softmax(logits / temperature); 0 where the mask
   * is 0. Absent if the server did not report it.
   */
  readonly behaviorLogprobs?: readonly number[];
  /**
   * The sampler's log probability: under the distribution that was sampled, if penalties, top_p, top_k or min_p changed
   * it from softmax(logits / temperature). Absent if it is the same or was not reported.
   */
  readonly samplingLogprobs?: readonly number[];
  readonly advantages: readonly number[];
  /**
   * A teacher's log probability of the token, at temperature 1; 0 where the mask is 0. Absent without a scoring
   * teacher.
   */
  readonly teacherLogprobs?: readonly number[];
  /** Objective of the tokens with a mask of 1: only a teacher's log probabilities; absent = the plan's loss. */
  readonly objective?: 'ref_kl';
  /** In order, where the mask is 0; absent if there are none. */
  readonly observed?: readonly ObservedSpan[];
  /** Absent if each row of the batch is a rollout of its own, and there are no others. */
  readonly rollout?: RolloutOfRow;
  /** Sampling temperature; absent = the plan's. */
  readonly temperature?: number;
}

/**
 * Whether an environment, or a row, trains on a teacher's log probabilities: if environments differ in `loss`, those
 * with rewards do not.
 */
export function learnsFromTeacher(
  { distillation }: { readonly distillation?: unknown },
  { objective }: Pick<PackedRow, 'objective'>,
): boolean {
  return distillation === undefined || objective !== undefined;
}

/** A rollout may be several rows, where its chat template rewrites the past, or none, where it carries no loss. */
interface RolloutOfRow {
  /** Among the batch's, from 0. */
  readonly index: number;
  /** Number of rollouts in the batch, including those without a row. */
  readonly of: number;
}

/**
 * One row for a trainer. Log probabilities that no server reported are the trainer's own, under the weights at the
 * start of the step.
 */
export interface TrainSample extends PackedRow {
  /** The log probability in the denominator of the loss's ratio. */
  readonly behaviorLogprobs: readonly number[];
  /**
   * Log probability when the token was sampled: the policy's, else the sampler's. Absent if it equals
   * `behaviorLogprobs`.
   */
  readonly sampledLogprobs?: readonly number[];
  /**
   * The correction's factor on the advantage and on the teacher's term, 0 for masked tokens. Absent if the engine
   * corrects.
   */
  readonly correctionWeights?: readonly number[];
}

/**
 * A trainer's scores of the tokens that count, in nats, under the weights at the start of their part of the step. Rows
 * are those of the batch, aligned with its tokens; values are arbitrary where the mask is 0. A row that was not
 * computed is all 0. Rows from `scoredRows` on are not kept and may be empty.
 */
export interface TokenScores {
  /** log softmax(logits / temperature) of the token. */
  readonly logprobs: readonly Float32Array[];
  /** −Σ p log p of the distribution it was drawn from; null if the trainer does not report it. */
  readonly entropies: readonly Float32Array[] | null;
}

/** The number of leading rows whose scores are kept: together they have at most `tokenScoresMax` tokens that count. */
export function scoredRows(rows: readonly Pick<RowFacts, 'counted'>[]): number {
  let left = tokenScoresMax;
  const end = rows.findIndex(({ counted }) => (left -= counted) < 0);
  return end < 0 ? rows.length : end;
}

/** The part of a row that every loss needs. */
export type MaskedSample = Pick<
  PackedRow,
  'tokenIds' | 'lossMask' | 'rollout' | 'temperature' | 'objective' | 'observed'
>;

/** Facts about a row that need no reading of its tokens. */
export interface RowFacts {
  readonly tokens: number;
  /** How many of them count in the loss. */
  readonly counted: number;
  /** Σ mask; equals `counted` if masks are 0 and 1. */
  readonly weight: number;
  readonly objective?: 'ref_kl';
  /** Tokens of its observed spans; absent = 0. */
  readonly observed?: number;
  readonly rollout?: RolloutOfRow;
  /** Length of the prefix shared with the row before, within which no token counts or was observed; absent = 0. */
  readonly shared?: number;
}

/** Rows that are read on demand: together they may exceed memory. */
export interface RowSource<Row extends MaskedSample> {
  readonly rows: readonly RowFacts[];
  /**
   * Rows by their indices in `rows`, in the requested order. Throws `CheckpointDamaged` if they differ from the stored
   * ones.
   */
  read(places: readonly number[]): Promise<readonly Row[]>;
}

/** The rows that one step is trained on. */
export interface TrainBatch extends RowSource<TrainSample> {
  /** All of them in their order; one is in memory at a time. */
  samples(): AsyncIterable<TrainSample>;
}

/** Rows in memory, or rows that are read. */
export type Rows<Row extends MaskedSample> = readonly Row[] | RowSource<Row>;

export function rowsOf<Row extends MaskedSample>(rows: Rows<Row>): RowSource<Row> {
  if (!isHeld(rows)) return rows;
  const facts = rows.map((row, place) => {
    const shared = sharedTokens(rows[place - 1], row);
    return { ...factsOf(row), ...(shared > 0 ? { shared } : {}) };
  });
  return { rows: facts, read: (places) => Promise.resolve(places.map((place) => rows[place]!)) };
}

/** Computes `RowFacts.shared`; 0 for the first row. */
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

/** A batch from rows in memory, or from rows that are read. */
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

/** Consecutive indices with at most this many tokens together; a longer row is alone. */
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
  /** Index of its first row in the batch. */
  readonly first: number;
}

/**
 * Cuts a batch into parts with equally many rollouts, in the order of its rows; rows of one rollout stay together. Few
 * rollouts give fewer parts. Same as verl (`ppo_mini_batch_size`) and tinker-cookbook (`num_substeps`); each part
 * divides its loss by its own normalizer.
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
