import { RatchetError } from '../../core/errors.ts';
import type { ObservedSpan, RowFacts, RowSource, TrainSample } from '../../core/rl/learning/batch.ts';
import type { LossSettings } from '../../core/settings/learning.ts';
import { type LossFeeds, policyFeeds, requirePolicyRow, supervisedFeeds } from './feeds.ts';
import { type GradientKind, policyKind } from './train-graph.ts';
import type { PolicyLossOptions } from './types.ts';

/** A row of a part of a loss; for cross entropy, with the weight of each token. */
export type LearnedRow = TrainSample & { readonly tokenWeights?: readonly number[] };

/** One objective of a batch, computed in one graph. */
export interface PartOfLoss {
  readonly name: 'rl' | 'ref_kl' | 'ce';
  readonly kind: GradientKind;
  /** Settings of a policy loss; null for cross entropy. */
  readonly loss: LossSettings | null;
  /** Places are those of the batch; no token counts in rows that have none of this part. */
  readonly rows: RowSource<LearnedRow>;
  readonly lossFeeds: LossFeeds<LearnedRow>;
  /** Throws for a row that it cannot be computed of. */
  readonly requireRow: (sample: LearnedRow, row: number) => void;
}

/**
 * The loss of a batch is a sum, in this order: the plan's policy loss (rl), the distance to a teacher (ref_kl) and the
 * cross entropy of environments' tokens (ce). Each is divided by the number of its own tokens in the batch, so no part
 * shrinks another. Same as prime-rl (trainer/rl/loss.py, `compute_loss`). Most batches have only the first.
 */
export function partsOfLoss(batch: RowSource<TrainSample>, options: PolicyLossOptions): PartOfLoss[] {
  const { rows } = batch;
  const isDistilled = ({ objective }: RowFacts): boolean => objective === 'ref_kl';
  const hasSeveral = rows.some((row) => isDistilled(row) || row.observed !== undefined);
  if (!hasSeveral) return [policyPart('rl', batch, options)];
  const parts: PartOfLoss[] = [];
  const has = (isIt: (row: RowFacts) => boolean): boolean => rows.some((row) => row.counted > 0 && isIt(row));
  const those = (isIt: (row: RowFacts) => boolean): RowSource<LearnedRow> => ({
    rows: rows.map((row) => (isIt(row) ? row : { ...row, counted: 0, weight: 0 })),
    read: (places) => batch.read(places),
  });
  const isRewarded = (row: RowFacts): boolean => !isDistilled(row);
  if (has(isRewarded)) parts.push(policyPart('rl', those(isRewarded), options));
  if (has(isDistilled)) parts.push(policyPart('ref_kl', those(isDistilled), distilling(options)));
  if (rows.some(({ observed = 0 }) => observed > 0)) parts.push(observedPart(batch, options));
  return parts;
}

function policyPart(name: 'rl' | 'ref_kl', rows: RowSource<LearnedRow>, options: PolicyLossOptions): PartOfLoss {
  const { loss, referenceLogprobs } = options;
  return {
    name,
    kind: policyKind(loss, referenceLogprobs !== undefined),
    loss,
    rows,
    lossFeeds: policyFeeds(rows.rows, options),
    requireRow: (sample, row) => requirePolicyRow(sample, row, options),
  };
}

/** A penalty for the distance to a reference policy is one of the rewards. */
function distilling({ distillation, temperature }: PolicyLossOptions): PolicyLossOptions {
  if (distillation) return { loss: distillation, temperature, klBeta: 0 };
  throw new RatchetError(
    'Unsupported',
    'Rows of the batch are learned from a teacher alone: expected the loss of distillation beside that of the plan, got none.',
  );
}

/** Uses the temperature at which the row was sampled, as in prime-rl. */
function observedPart(batch: RowSource<TrainSample>, { temperature }: PolicyLossOptions): PartOfLoss {
  const facts = batch.rows.map((row) => ({ ...row, counted: row.observed ?? 0, weight: row.observed ?? 0 }));
  return {
    name: 'ce',
    kind: 'sft',
    loss: null,
    rows: { rows: facts, read: async (places) => (await batch.read(places)).map(observedAlone) },
    lossFeeds: supervisedFeeds(facts, { normalizer: facts.reduce((sum, { weight }) => sum + weight, 0), temperature }),
    requireRow: () => undefined,
  };
}

function observedAlone(sample: TrainSample): LearnedRow {
  const { tokenIds, observed = [] } = sample;
  const tokenWeights = weightsOf(observed, tokenIds.length);
  return { ...sample, lossMask: tokenWeights.map((weight) => (weight === 0 ? 0 : 1)), tokenWeights };
}

function weightsOf(spans: readonly ObservedSpan[], tokens: number): number[] {
  const weights = Array.from({ length: tokens }, () => 0);
  for (const { from, to, weight } of spans) weights.fill(weight, from, to);
  return weights;
}
