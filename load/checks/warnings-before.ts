import { whyNotTracked } from '../../backends/metrics/tracking-server.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { slowStepRefusal, slowStepWarning, type TurnsOf } from '../../config/step-cost.ts';
import { contextWarning } from './check-context.ts';
import type { ModelSize } from './check-model.ts';
import { countsOfMissing } from './model-of-hub.ts';

/** Warnings wherever the run is to be trained: how long a step may take, and that its metrics are not tracked. */
export function warningsBefore(spec: RunSpec, model: ModelSize | null, turns: TurnsOf): string[] {
  const counts = model ?? countsOfMissing(spec);
  // a run that is refused as too slow says so itself
  const isTold = tooSlowHere(spec, model, turns) !== null;
  const slow = isTold ? null : counts && slowStepWarning(spec, counts, turns);
  const context = model && contextWarning(spec, model);
  return [slow, context, ...whyNotTracked(spec)].filter((warning) => warning !== null);
}

/** Refuses a step that takes hours here, unless the user confirms it; null for faster steps, or when others compute. */
export function tooSlowHere(spec: RunSpec, model: ModelSize | null, turns: TurnsOf): string | null {
  const counts = model ?? countsOfMissing(spec);
  if (counts === null || (process.env['TEMPORAL_ADDRESS'] ?? '') !== '') return null;
  return slowStepRefusal(spec, counts, turns);
}
