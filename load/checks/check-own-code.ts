import { codeOfAdvantage } from '../../core/rl/learning/advantage.ts';
import { trainerTraits } from '../../core/kinds/trainers.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { importUserFunction, requireCustomLoss } from '../../engine/index.ts';

/**
 * Runs the user's loss and advantage as far as possible without a model, and throws their errors. A run's identity
 * includes their sha256, so a run that began with a broken file could not continue with a fixed one.
 */
export async function checkOwnCode({
  loss,
  advantage,
  kl,
  trainer,
}: Pick<RunSpec, 'loss' | 'advantage' | 'kl' | 'trainer'>): Promise<void> {
  const code = codeOfAdvantage(advantage);
  if (code !== null) await importUserFunction(code, 'advantage');
  if (loss.import && trainerTraits(trainer).customLoss === 'graph')
    await requireCustomLoss(loss.import, { hasReference: kl.beta > 0 });
}
