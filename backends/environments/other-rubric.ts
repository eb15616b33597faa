import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { isEnvironmentFile } from '../../core/names.ts';
import { present } from '../../core/present.ts';
import type { Environments } from './index.ts';
import { importOwnFile } from './load.ts';
import { rubric } from './rubrics.ts';
import type { Environment, EnvironmentEntry } from './index.ts';
import type { RewardFunction } from './types.ts';

/** The parts of an environment that score stored rollouts. */
export type Scoring = Pick<Environment, 'name' | 'rubric' | 'stateAfter' | 'judge' | 'scoring' | 'isComparing'>;

/**
 * A rubric that is named in place of an environment's own: that of another environment, or the `rubric` that a module
 * of the user's exports beside no environment. Throws `ConfigInvalid` for a module with neither.
 */
export async function openRubric(environments: Pick<Environments, 'open'>, entry: EnvironmentEntry): Promise<Scoring> {
  if (entry.python !== undefined || !isEnvironmentFile(entry.id)) return environments.open(entry);
  const { file, module } = await importOwnFile(path.resolve(entry.id), { sha256: entry.sha256 });
  const own = module as {
    readonly loadEnvironment?: unknown;
    readonly rubric?: unknown;
    readonly stateAfter?: unknown;
  };
  if (typeof own.loadEnvironment === 'function') return environments.open(entry);
  if (!isRubric(own.rubric))
    throw new RatchetError(
      'ConfigInvalid',
      `${file} exports neither a rubric (export const rubric = rubricOf([…]), with rubric from ratchet-rl/environments) nor loadEnvironment(args).`,
    );
  if (Object.keys(entry.args).length > 0)
    throw new RatchetError('ConfigInvalid', `${file} exports a rubric, which takes no arguments: leave them out, or export loadEnvironment(args).`); // prettier-ignore
  const stateAfter = typeof own.stateAfter === 'function' ? (own.stateAfter as Environment['stateAfter']) : undefined;
  return { name: path.basename(file), rubric: rubric(own.rubric.functions), ...present({ stateAfter }) };
}

/** Whether a module of the user's exports one. Each function is checked by `rubric`. */
function isRubric(value: unknown): value is { readonly functions: readonly RewardFunction[] } {
  return Array.isArray((value as { readonly functions?: unknown } | undefined)?.functions);
}
