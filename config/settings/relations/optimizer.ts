import type { RatchetConfig } from '../index.ts';
import { problem, type Relations } from './problem.ts';

/** Refuses settings that the optimizer lacks. */
export function* optimizerRelations({ trainer }: RatchetConfig): Relations {
  const { optimizer: type = 'adamw', momentum, nesterov, decay_matrices_only } = trainer;
  const say = (key: string, expected: string, received: unknown) =>
    problem([`trainer.${key}`, 'trainer.optimizer'], `${expected} of "${type}"`, JSON.stringify(received));
  if (momentum !== undefined && type !== 'muon' && type !== 'sgd')
    yield say('momentum', 'nothing, or optimizer = "muon" or "sgd": there is no momentum', momentum);
  if (nesterov !== undefined && type !== 'sgd')
    yield say('nesterov', 'nothing, or optimizer = "sgd": there is no such step', nesterov);
  if (type === 'sgd' && momentum === 0 && nesterov !== false)
    yield say(
      'nesterov',
      'false beside momentum = 0: without it there is nothing to look ahead along',
      nesterov ?? true,
    );
  if (decay_matrices_only === true && type !== 'adamw')
    yield say('decay_matrices_only', 'false: weight decay spares nothing', true);
}
