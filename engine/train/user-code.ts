import { createHash } from 'node:crypto';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { RatchetError } from '../../core/errors.ts';
import type { CodeRef } from '../../core/settings/code.ts';
import { readTypeScript } from '../read-typescript.ts';
import { trustedFile } from '../../host/trusted-files.ts';
import { readRegular, whyUnreadable } from '../../host/regular-file.ts';

/**
 * The function that a user's file exports by default. The file runs with all the rights of this process: it is loaded
 * because a config names it, and only while it is the file that was looked at when the config was read.
 */
export async function importUserFunction(code: CodeRef, what: UserCode): Promise<UserFunction> {
  return (await importChecked(code, what)).call;
}

/** The function's purpose, as messages name it. */
type UserCode = 'loss' | 'advantage' | 'trainer' | 'inference' | 'score' | 'sandbox provider';

type UserFunction = (...args: readonly never[]) => unknown;

/** Imports the function, by default the default export, and returns the sha256 of its file. */
export async function importChecked(
  { path: named, sha256 }: CodeRef,
  what: UserCode,
  name = 'default',
): Promise<{ call: UserFunction; sha256: string }> {
  const path = trustedFile(named, `The custom ${what}`);
  const found = createHash('sha256')
    .update(await readCode(path, what))
    .digest('hex');
  if (sha256 !== null && found !== sha256) {
    throw new RatchetError(
      'Unsupported',
      `${path}, the custom ${what} of this run, was changed: expected sha256 ${sha256.slice(0, 12)}…, found ` +
        `${found.slice(0, 12)}…. Put the file back, or start another run with --fresh.`,
    );
  }
  const module = await load(path, what, found);
  const given = typeof module === 'object' && module !== null ? (Reflect.get(module, name) as unknown) : undefined;
  if (typeof given === 'function') return { call: given as UserFunction, sha256: found };
  throw new RatchetError(
    'Unsupported',
    `${path} must export the custom ${what} as ${name === 'default' ? 'its default' : name}: expected a function, got ${describe(given)}.`,
  );
}

async function readCode(path: string, what: string): Promise<Uint8Array> {
  try {
    return await readRegular(path);
  } catch (cause) {
    throw new RatchetError('Unsupported', `The custom ${what} cannot be read: ${path}: ${whyUnreadable(cause)}.`, {
      cause,
    });
  }
}

/** Node caches CommonJS files by path alone; files without a package.json that says otherwise are CommonJS. */
const { cache } = createRequire(import.meta.url);

/** A file with other contents is another module, also within one process. */
async function load(path: string, what: string, sha256: string): Promise<unknown> {
  for (const key of Object.keys(cache)) if (key.split('?')[0] === path) delete cache[key];
  try {
    if (/\.[mc]?ts$/.test(path)) await readTypeScript();
    return exportsOf(await import(`${pathToFileURL(path).href}?sha256=${sha256}`));
  } catch (cause) {
    const message = `${path}, the custom ${what}, failed while it was loaded: ${String(cause)}`;
    throw new RatchetError('Unsupported', message, { cause });
  }
}

/** An ES module that was read as CommonJS has its exports one level below. */
function exportsOf(module: unknown): unknown {
  const { default: inner } = module as { default?: unknown };
  const isWrapped = typeof inner === 'object' && inner !== null && '__esModule' in inner;
  return isWrapped ? inner : module;
}

function describe(value: unknown): string {
  return value === undefined ? 'no default export' : `${typeof value === 'object' ? 'an' : 'a'} ${typeof value}`;
}
