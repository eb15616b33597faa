import { RatchetError } from '../../core/errors.ts';
import type { ModuleSpec } from '../../core/spec/run-spec.ts';
import { importUserFunction } from '../../engine/index.ts';
import type { Trainer } from './types.ts';

const methods = [
  'open',
  'trainStep',
  'sftStep',
  'digest',
  'exportTo',
  'saveOptimizer',
  'restoreOptimizer',
  'close',
] as const satisfies readonly (keyof Trainer)[];

/** A trainer of the user's own: what the default export of `import` gives for `options`. */
export async function loadTrainer({ import: code, options }: ModuleSpec): Promise<Trainer> {
  const create = (await importUserFunction(code, 'trainer')) as (given: ModuleSpec['options']) => unknown;
  const made = (await create(options)) as Partial<Record<string, unknown>> | null | undefined;
  const missing = methods.filter((name) => typeof made?.[name] !== 'function');
  if (missing.length === 0) return made as unknown as Trainer; // every method is there
  throw new RatchetError(
    'Unsupported',
    `${code.path}: its default export must give a trainer with ${methods.join(', ')} (backends/trainer/types.ts); missing: ${missing.join(', ')}.`,
  );
}
