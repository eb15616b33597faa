import type { EvalSpec } from '../../config/run-spec.ts';
import type { Overrides } from '../../core/rl/run-state.ts';

/** Environments whose evaluation is due at this step: v0 unless skipped, every interval, and the last version. */
export function environmentsDue(
  evaluation: EvalSpec | null,
  step: number,
  { lastStep, overrides }: { readonly lastStep: number; readonly overrides: Pick<Overrides, 'evalInterval'> },
): EvalSpec['environments'] {
  if (evaluation === null) return [];
  const { environments, interval, skipFirstStep } = evaluation;
  if (step === lastStep) return environments;
  if (step === 0) return skipFirstStep ? [] : environments;
  return environments.filter((entry) => step % (entry.interval ?? overrides.evalInterval ?? interval) === 0);
}
