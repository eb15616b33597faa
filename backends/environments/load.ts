import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { RatchetError } from '../../core/errors.ts';
import { environmentName } from '../../core/names.ts';
import type { JsonValue } from '../../core/spec/run-spec.ts';
import { nearestName } from '../../core/suggest.ts';
import type { Environment } from './types.ts';

/** The environments that come with Ratchet. */
export const builtInEnvironmentsFolder = fileURLToPath(new URL('../../environments', import.meta.url));

/** A folder name and nothing else: an id never climbs out of the environments folder. */
const folderPattern = /^[a-z0-9][a-z0-9_-]{0,63}$/;

/** Written in TypeScript, run by tsx or as the JavaScript that tsc made of it. */
const entryFiles = ['index.ts', 'index.js'];

/**
 * Loads an environment by id. Loading runs its code, so only what lies in the environments folder is loaded. An owner
 * and a version, as in `primeintellect/reverse-text@0.1.4`, name the built-in environment of that name. An id that
 * does not exist is EnvironmentUnknown; arguments it cannot work with are ConfigInvalid.
 */
export async function loadEnvironment(
  id: string,
  args: Readonly<Record<string, JsonValue>>,
  options: { readonly environmentsFolder?: string } = {},
): Promise<Environment> {
  const folder = options.environmentsFolder ?? builtInEnvironmentsFolder;
  const name = environmentName(id);
  const entry = folderPattern.test(name) ? entryFile(folder, name) : undefined;
  if (entry === undefined) throw unknownEnvironment(id, listEnvironments(folder));

  const module = (await import(pathToFileURL(entry).href)) as Partial<EnvironmentModule>;
  if (typeof module.loadEnvironment !== 'function') {
    throw new RatchetError(
      'ConfigInvalid',
      `Environment "${name}" (${entry}) does not export a function loadEnvironment(args).`,
    );
  }
  return module.loadEnvironment(args);
}

/** What an environment's folder exports from its index file. */
export interface EnvironmentModule {
  loadEnvironment(args: Readonly<Record<string, JsonValue>>): Environment | Promise<Environment>;
}

/** The ids that can be loaded from a folder, in alphabetical order. */
export function listEnvironments(folder: string = builtInEnvironmentsFolder): string[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder, { withFileTypes: true })
    .filter((entry) => entry.isDirectory() && folderPattern.test(entry.name))
    .map(({ name }) => name)
    .filter((name) => entryFile(folder, name) !== undefined)
    .sort();
}

function entryFile(folder: string, name: string): string | undefined {
  return entryFiles.map((file) => path.join(folder, name, file)).find((file) => existsSync(file));
}

function unknownEnvironment(id: string, known: readonly string[]): RatchetError {
  const nearest = nearestName(environmentName(id), known);
  const meant = nearest === undefined ? '' : ` Did you mean "${nearest}"?`;
  const list = known.length === 0 ? 'none are installed' : known.join(', ');
  return new RatchetError('EnvironmentUnknown', `There is no environment "${id}".${meant} Those that exist: ${list}.`);
}
