import { RatchetError } from '../../core/errors.ts';
import type { BatchColumns } from './batch-columns.ts';
import type { DoneStep } from './trainer-start.ts';

/** What prime-rl says of a step, in our names. */

/** Throws unless it trained with that learning rate: ranks that did not take the step’s settings have trained something else. */
export function requireRate(
  { figures, rateTolerance }: DoneStep & { readonly rateTolerance: number },
  learningRate: number,
): void {
  const used = figures['optim/lr'];
  if (used !== undefined && Math.abs(used - learningRate) <= rateTolerance * learningRate) return;
  throw new RatchetError(
    'EngineDied',
    `prime-rl’s trainer says that it trained with the learning rate ${String(used)}; expected ${learningRate}.`,
  );
}

const named: Readonly<Record<string, string>> = {
  entropy: 'entropy/all/mean',
  mismatch_kl: 'mismatch_kl/all/mean',
  clip_fraction: 'is_masked/mean',
  clip_fraction_low: 'clipped_low/mean',
  clip_fraction_high: 'clipped_high/mean',
  nll: 'nll/mean',
};

/** `loss/mean` is a mean of so many parts of the batch’s loss. */
export function metricsOf(
  { figures }: DoneStep,
  parts: number,
  { mask, streams }: BatchColumns,
): Record<string, number> {
  let count = 0;
  for (const one of mask) count += one;
  for (const weight of streams.ce_weights?.values ?? []) count += Number(weight !== 0);
  const found = Object.entries(named).flatMap(([name, theirs]) => {
    const value = figures[theirs];
    return value === undefined ? [] : [[name, value] as const];
  });
  return {
    // prime-rl leaves out what is not finite.
    loss: (figures['loss/mean'] ?? Number.NaN) * parts,
    grad_norm: figures['optim/grad_norm'] ?? Number.NaN,
    token_count: count,
    ...Object.fromEntries(found),
  };
}

/** Why a step with these metrics must not be kept; null when it may. */
export function refusalOf({ loss, grad_norm: norm }: Readonly<Record<string, number>>): string | null {
  if (!Number.isFinite(loss)) return 'the loss is not a finite number';
  if (!Number.isFinite(norm)) return 'the gradient norm is not a finite number';
  return norm === 0 ? 'the gradient is 0: nothing in the batch says which way to go' : null;
}
