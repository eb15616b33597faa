import { RatchetError } from '../core/errors.ts';
import { rowsAtOnceTokensMax } from '../core/limits.ts';
import { type MaskedSample, windowsOf } from '../core/rl/learning/batch.ts';
import { pairLoss } from '../core/rl/learning/preferences.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import type { DataRef, RunSpec } from '../config/run-spec.ts';
import type { SftPair } from '../load/data/sft-data.ts';
import type { SupervisedRow } from '../backends/trainer/types.ts';
import { decodeStored, encodeStored } from '../runs/forms/stored-forms.ts';
import type { ChatTokenizer } from '../engine/index.ts';
import { layout } from '../runs/layout.ts';
import type { MayGoOn, PolicyTrainer } from './policy-trainer.ts';
import { storeOf } from '../runs/run-access.ts';
import { drawnRows, requireRoom, samplesOf, storedRows, type TemplateUse } from './sft-rows.ts';

/** Rows of a step of preferences: all of every chosen answer, and of every rejected one. */
interface PairedRows {
  /** Among all pairs of the run. */
  readonly place: number;
  readonly chosen: readonly SupervisedRow[];
  readonly rejected: readonly SupervisedRow[];
}

/** Sums of the reference's log probabilities of both answers, for each pair of the run. */
interface ReferenceSums {
  readonly chosen: readonly number[];
  readonly rejected: readonly number[];
}

/** The pairs of supervised step n, as rows are drawn. */
export async function drawPairs(
  run: RunHandle,
  spec: RunSpec,
  tokenizer: ChatTokenizer,
): Promise<(step: number) => PairedRows[]> {
  const pairs = await storedRows<SftPair>(run, spec.sft!.data!);
  const placesOf = drawnRows(pairs.length, spec);
  return (step) => placesOf(step).map((place) => rowsOfPair(pairs.row(place), place, tokenizer, spec.sampling));
}

/** {@link checkData} for pairs. */
export async function checkPairs(
  run: RunHandle,
  data: DataRef,
  model: { readonly tokenizer: ChatTokenizer; readonly positionsMax: number } & TemplateUse,
): Promise<void> {
  const pairs = await storedRows<SftPair>(run, data);
  for (let index = 0; index < pairs.length; index++) {
    await requireRoom(data, index, model, () => sidesOf(pairs.row(index), model));
  }
}

/**
 * Sums for every pair under the initial weights, which the trainer must hold now. Computed once; what is stored is used
 * again, also after a crash half-way (TRL's `precompute_ref_log_probs`).
 */
export async function referenceSums(
  run: RunHandle,
  spec: RunSpec,
  tokenizer: ChatTokenizer,
  { trainer, holdsReference, mayGoOn }: { trainer: PolicyTrainer; holdsReference: boolean; mayGoOn: MayGoOn },
): Promise<ReferenceSums> {
  const store = storeOf(run);
  const key = layout.sftReference();
  const stored = await store.read(key);
  if (stored)
    return decodeStored<ReferenceSums>(stored, key, ({ chosen, rejected }) => ({
      sums: areSums(chosen) && areSums(rejected),
    }));
  if (!holdsReference)
    throw new RatchetError(
      'CheckpointDamaged',
      `${store.uri}${key}: expected what the weights of the beginning say of each pair, found nothing. Restore the file from a copy.`,
    );
  const pairs = await storedRows<SftPair>(run, spec.sft!.data!);
  const sums = { chosen: [] as number[], rejected: [] as number[] };
  const facts = Array.from({ length: pairs.length }, (_, place) => {
    const { chosen, rejected } = rowsOfPair(pairs.row(place), place, tokenizer, spec.sampling);
    return { tokens: [...chosen, ...rejected].reduce((total, { tokenIds }) => total + tokenIds.length, 0) };
  });
  for (const places of windowsOf(facts, rowsAtOnceTokensMax)) {
    await mayGoOn();
    const rows = places.map((place) => rowsOfPair(pairs.row(place), place, tokenizer, spec.sampling));
    for (const { chosen, rejected } of await sumsOf(rows, trainer)) {
      sums.chosen.push(chosen);
      sums.rejected.push(rejected);
    }
  }
  const { bytes } = await store.putIfAbsent(key, encodeStored(key, sums));
  return decodeStored<ReferenceSums>(bytes, key, () => ({}));
}

/** One supervised step on pairs: the gradient of the mean of their losses. */
export async function preferenceStep(
  pairs: readonly PairedRows[],
  reference: ReferenceSums,
  {
    trainer,
    beta,
    ...rate
  }: { trainer: PolicyTrainer; beta: number } & Pick<
    Parameters<PolicyTrainer['sftStep']>[0],
    'learningRate' | 'optimizer'
  >,
): ReturnType<PolicyTrainer['sftStep']> {
  const current = await sumsOf(pairs, trainer);
  const judged = pairs.map(({ place }, i) =>
    pairLoss(
      { ...current[i]!, referenceChosen: reference.chosen[place]!, referenceRejected: reference.rejected[place]! },
      beta,
    ),
  );
  const weighted = (rows: readonly SupervisedRow[], weight: number): SupervisedRow[] =>
    rows.map((row) => ({ ...row, tokenWeights: row.lossMask.map((mask) => mask * weight) }));
  const samples = pairs.flatMap(({ chosen, rejected }, i) => {
    const { weight } = judged[i]!;
    return [...weighted(chosen, weight), ...weighted(rejected, -weight)];
  });
  const outcome = await trainer.sftStep({ samples, normalizer: pairs.length, ...rate });
  const mean = (of: (pair: (typeof judged)[number]) => number): number =>
    judged.reduce((sum, pair) => sum + of(pair), 0) / judged.length;
  const metrics = {
    ...outcome.metrics,
    loss: mean(({ loss }) => loss),
    accuracy: mean(({ margin }) => Number(margin > 0)),
    margin: mean(({ margin }) => margin),
  };
  return { ...outcome, metrics };
}

function sidesOf(
  { chosen, rejected }: SftPair,
  { tokenizer, ...use }: { readonly tokenizer: ChatTokenizer } & TemplateUse,
) {
  return [...samplesOf(chosen, tokenizer, use), ...samplesOf(rejected, tokenizer, use)];
}

function rowsOfPair(pair: SftPair, place: number, tokenizer: ChatTokenizer, use: TemplateUse): PairedRows {
  return {
    place,
    chosen: samplesOf(pair.chosen, tokenizer, use),
    rejected: samplesOf(pair.rejected, tokenizer, use),
  };
}

/** Sums under the trainer's weights, at temperature 1. */
async function sumsOf(
  pairs: readonly PairedRows[],
  trainer: PolicyTrainer,
): Promise<{ readonly chosen: number; readonly rejected: number }[]> {
  const rows = pairs.flatMap(({ chosen, rejected }) => [...chosen, ...rejected]);
  const scored = (await trainer.logprobs(rows)).values();
  const sum = (side: readonly MaskedSample[]): number =>
    side.reduce((total, { lossMask }) => {
      const logprobs = scored.next().value!;
      return lossMask.reduce((all, mask, t) => all + (mask === 1 ? logprobs[t]! : 0), total);
    }, 0);
  return pairs.map(({ chosen, rejected }) => ({ chosen: sum(chosen), rejected: sum(rejected) }));
}

function areSums(value: unknown): boolean {
  return Array.isArray(value) && value.every((one) => Number.isFinite(one));
}
