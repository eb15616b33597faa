import { stat } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../core/errors.ts';
import { received, tomlValue, whole } from '../core/shape.ts';
import { nearestName } from '../core/suggest.ts';
import type * as Api from './index.mjs';

/* Programs in JavaScript are not checked by a compiler: what they pass is checked before anything begins. */

/** Of `startRun`; `attach` may be given the same object. */
const known = ['address', 'namespace', 'folder', 'name', 'overrides', 'rewind'];

export async function requireConnecting(options: Api.Connecting): Promise<void> {
  requireOptions(options);
  await requireFolder(options);
}

export async function requireStarting(file: unknown, options: Api.StartOptions): Promise<void> {
  if ((typeof file !== 'string' || file === '') && !isTable(file))
    throw wrong('startRun', 'the path of a run file, or its settings as an object', file);
  requireOptions(options);
  const { rewind, overrides } = options;
  if (rewind !== undefined && whole.problems(rewind, '').length > 0) throw wrong('rewind', 'a committed step', rewind);
  if (overrides !== undefined && !isTable(overrides))
    throw wrong('overrides', 'settings by dotted key, such as { max_steps: 6 }', overrides);
  const problems = Object.entries(overrides ?? {}).flatMap(([name, value]) =>
    value === undefined ? [] : tomlValue.problems(value, name),
  );
  if (problems.length > 0) throw invalid(`overrides: ${problems.join('; ')}.`);
  await requireFolder(options);
}

/** The name of a run, or the place of one. */
export function requireText(what: string, expected: string, value: unknown): void {
  if (typeof value !== 'string' || value === '') throw wrong(what, expected, value);
}

/** What is misspelt is refused, and not ignored: a run would begin with other settings, or be looked for elsewhere. */
function requireOptions(options: unknown): void {
  if (!isTable(options)) throw wrong('options', `an object with ${known.join(', ')}`, options);
  for (const [name, value] of Object.entries(options)) {
    if (!known.includes(name)) {
      const near = nearestName(name, known);
      const meant = near === undefined ? '' : ` Did you mean ${near}?`;
      throw invalid(`options: there is no ${JSON.stringify(name)}.${meant} There are: ${known.join(', ')}.`);
    }
    const isText = name !== 'overrides' && name !== 'rewind';
    if (isText && value !== undefined) requireText(name, 'a text', value);
  }
}

async function requireFolder({ folder }: Api.Connecting): Promise<void> {
  if (folder === undefined) return;
  const found = await stat(folder).catch(() => null);
  if (found?.isDirectory() !== true)
    throw invalid(`folder: expected the folder of a project, and there is none at ${path.resolve(folder)}.`);
}

function isTable(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function wrong(what: string, expected: string, value: unknown): RatchetError {
  return invalid(`${what}: expected ${expected}, got ${received(value)}.`);
}

function invalid(message: string): RatchetError {
  return new RatchetError('ConfigInvalid', message);
}
