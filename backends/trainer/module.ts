import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { problemsIn } from '../../core/problems-in.ts';
import type { ModuleSpec } from '../../config/run-spec.ts';
import { importUserFunction } from '../../engine/index.ts';
import { registerKit } from '../environments/load.ts';
import type { SftOutcome, Trainer, TrainOutcome } from './types.ts';

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

/** The user's own trainer: the result of the default export of `import` for `options`. */
export async function loadTrainer({ import: code, options }: ModuleSpec): Promise<Trainer> {
  await registerKit();
  const create = (await importUserFunction(code, 'trainer')) as (given: ModuleSpec['options']) => unknown;
  const made = (await create(options)) as Partial<Record<string, unknown>> | null | undefined;
  const missing = methods.filter((name) => typeof made?.[name] !== 'function');
  if (missing.length === 0) return checked(made as unknown as Trainer, code.path); // every method exists
  throw new RatchetError(
    'Unsupported',
    `${code.path}: its default export must give a trainer with ${methods.join(', ')} (backends/trainer/types.ts); missing: ${missing.join(', ')}.`,
  );
}

const Digest = z.string().regex(/^[0-9a-f]{64}$/, 'expected 64 hexadecimal digits');
const Opened = z.looseObject({ digest: Digest });
const Supervised = z.looseObject({
  applied: z.boolean(),
  reason: z.string().optional(),
  metrics: z.record(
    z.string(),
    z.custom<number>((value) => typeof value === 'number', 'expected a number'),
  ),
});
const Trained = Supervised.extend({ digest: Digest });

/** Checks the results of the user's code before they become a version. */
function checked(trainer: Trainer, file: string): Trainer {
  const read = <T>(shape: z.ZodType<T>, given: unknown, method: keyof Trainer): T => {
    const result = shape.safeParse(given);
    if (result.success) return result.data;
    const wrong = problemsIn(result.error);
    throw new RatchetError(
      'Unsupported',
      `${file}: ${method}() answered otherwise than docs/guide/adapters.md asks:\n${wrong}`,
    );
  };
  const applied = <T extends SftOutcome>(outcome: T, method: keyof Trainer): T => {
    const strange = Object.entries(outcome.metrics).filter(([, value]) => !Number.isFinite(value));
    if (strange.length === 0) return outcome;
    const metrics = Object.fromEntries(Object.entries(outcome.metrics).filter(([, value]) => Number.isFinite(value)));
    if (!outcome.applied) return { ...outcome, metrics };
    const named = strange.map(([name, value]) => `${name} is ${value}`).join(', ');
    throw new RatchetError(
      'EngineDied',
      `${file}: ${method}() applied a step although ${named}; a batch without a finite loss and gradient is to be refused (applied: false).`,
    );
  };
  const own: Partial<Trainer> = {
    open: async (...given) => read(Opened, await trainer.open(...given), 'open'),
    trainStep: async (...given) =>
      applied<TrainOutcome>(read(Trained, await trainer.trainStep(...given), 'trainStep') as TrainOutcome, 'trainStep'),
    sftStep: async (...given) =>
      applied<SftOutcome>(read(Supervised, await trainer.sftStep(...given), 'sftStep') as SftOutcome, 'sftStep'),
    digest: async () => read(Digest, await trainer.digest(), 'digest'),
  };
  return new Proxy(trainer, {
    get(target, name) {
      const found: unknown = own[name as keyof Trainer] ?? Reflect.get(target, name);
      if (typeof found !== 'function') return found;
      return (...given: readonly unknown[]): unknown => {
        const failed = (error: unknown): never => {
          throw ofEngine(error, `${file}: ${String(name)}()`);
        };
        try {
          const result: unknown = found.apply(target, given);
          return result instanceof Promise ? result.catch(failed) : result;
        } catch (error) {
          return failed(error);
        }
      };
    },
  });
}

/** An error without a code means that the code is broken, which waiting does not fix; a system error may pass. */
function ofEngine(error: unknown, where: string): unknown {
  if (!(error instanceof Error)) return new RatchetError('EngineDied', `${where} threw ${String(error)}.`);
  const { code } = error as { readonly code?: unknown };
  const isNamed = error instanceof RatchetError || (typeof code === 'string' && !code.startsWith('ERR_'));
  return isNamed ? error : new RatchetError('EngineDied', `${where}: ${String(error)}`, { cause: error });
}
