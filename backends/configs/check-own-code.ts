import { codeOfAdvantage } from '../../core/rl/advantage.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { importUserFunction, requireCustomLoss } from '../../engine/index.ts';

/**
 * Runs what a config names of the user's loss and advantage as far as it goes without a model, and throws what is wrong with
 * it: a run's identity holds their sha256, so one that begins with a broken file could not go on with it mended.
 */
export async function checkOwnCode({
  loss,
  advantage,
  kl,
  trainer,
}: Pick<RunSpec, 'loss' | 'advantage' | 'kl' | 'trainer'>): Promise<void> {
  const code = codeOfAdvantage(advantage);
  if (code !== null) await importUserFunction(code, 'advantage');
  if (loss.import && trainer.kind === 'onnx') await requireCustomLoss(loss.import, { hasReference: kl.beta > 0 });
}
