import { createHash } from 'node:crypto';
import { existsSync, readdirSync } from 'node:fs';
import { createRequire, register } from 'node:module';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { RatchetError } from '../../core/errors.ts';
import { environmentLoadMsMax } from '../../core/limits.ts';
import { environmentName, isEnvironmentFile } from '../../core/names.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import { nearestName } from '../../core/suggest.ts';
import { readTypeScript } from '../../engine/read-typescript.ts';
import { trustedFile } from '../../host/trusted-files.ts';
import type * as OwnCode from './own-code.mjs';
import { requireKnownOptions } from './known-options.ts';
import type { Environment } from './types.ts';
import { readRegularSync, whyUnreadable } from '../../host/regular-file.ts';

/** Folder of the built-in environments. */
export const builtInEnvironmentsFolder = fileURLToPath(new URL('../../environments', import.meta.url));

/** A folder name and nothing else: an id never climbs out of the environments folder. */
const folderPattern = /^[a-z0-9][a-z0-9_-]{0,63}$/;

/** Written in TypeScript, run by tsx or as the JavaScript that tsc made of it. */
const entryFiles = ['index.ts', 'index.js'];

interface LoadOptions {
  readonly environmentsFolder?: string;
  /** Time limit for importing a user's file, and for its loadEnvironment(args). */
  readonly timeoutMs?: number;
  /** Required digest of a user's file. Missing = as it is now. */
  readonly sha256?: string | undefined;
}

/**
 * Loads an environment by id. Loading runs its code, so an id must be in the environments folder, or a file's path
 * (absolute, or from the working folder). Other ids are resolved before (`find.ts`): one with an owner, as
 * `primeintellect/reverse-text`, is no built-in. Throws EnvironmentUnknown for a missing id, and ConfigInvalid for
 * wrong arguments or a file that cannot be loaded.
 */
export async function loadEnvironment(
  id: string,
  args: Readonly<Record<string, JsonValue>>,
  options: LoadOptions = {},
): Promise<Environment> {
  return (await importEnvironment(id, options)).loadEnvironment(args);
}

interface EnvironmentModule {
  loadEnvironment(args: Readonly<Record<string, JsonValue>>): Environment | Promise<Environment>;
  /** The arguments, for `ratchet env info`: a zod schema. */
  readonly Args?: unknown;
}

/** The module of an environment, before any call. */
export async function importEnvironment(id: string, options: LoadOptions = {}): Promise<EnvironmentModule> {
  if (isEnvironmentFile(id)) return importFile(path.resolve(id), options);
  const folder = options.environmentsFolder ?? builtInEnvironmentsFolder;
  const name = environmentName(id);
  const entry = folderPattern.test(name) && !id.includes('/') ? environmentEntry(path.join(folder, name)) : undefined;
  if (entry === undefined) throw unknownEnvironment(id, listEnvironments(folder));
  const isBuiltIn = folder === builtInEnvironmentsFolder;
  // Written so that esbuild finds all files and bundles them.
  const module: unknown = await (isBuiltIn
    ? import(`../../environments/${name}/index.ts`)
    : import(pathToFileURL(entry).href));
  return checked(module, entry);
}

/** The ids that can be loaded from a folder, in alphabetical order. */
export function listEnvironments(folder: string = builtInEnvironmentsFolder): string[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder, { withFileTypes: true })
    .filter((entry) => entry.isDirectory() && folderPattern.test(entry.name))
    .map(({ name }) => name)
    .filter((name) => environmentEntry(path.join(folder, name)) !== undefined)
    .sort();
}

/** Node caches CommonJS files by path alone; JavaScript without a package.json that says otherwise is CommonJS. */
const { cache } = createRequire(import.meta.url);

async function importFile(named: string, options: LoadOptions): Promise<EnvironmentModule> {
  const { file, module } = await importOwnFile(named, options);
  const { timeoutMs = environmentLoadMsMax } = options;
  const own = checked(module, file);
  return {
    ...own,
    async loadEnvironment(args) {
      try {
        const loaded = await withoutExit(file, () =>
          inTime(Promise.resolve(own.loadEnvironment(args)), timeoutMs, `${file}: loadEnvironment(args)`),
        );
        return complete(loaded, file);
      } catch (cause) {
        if (cause instanceof RatchetError) throw cause;
        throw new RatchetError('ConfigInvalid', `loadEnvironment(args) failed: ${placed(cause, file)}`, { cause });
      }
    },
  };
}

/** Imports a user's file if it is unchanged since the check. Other contents are another module. */
export async function importOwnFile(
  named: string,
  { sha256: expected, timeoutMs = environmentLoadMsMax }: LoadOptions,
): Promise<{ readonly file: string; readonly module: unknown }> {
  const file = trustedFile(named, 'The environment');
  const found = createHash('sha256').update(readOwn(file)).digest('hex');
  if (expected !== undefined && found !== expected) {
    throw new RatchetError(
      'ConfigInvalid',
      `${file} was changed in the middle of its run: expected sha256 ${expected.slice(0, 12)}…, found ${found.slice(0, 12)}…. Put it back, or train the run's file again (ratchet train), which continues with the environment as it is then.`,
    );
  }
  await registerKit();
  for (const key of Object.keys(cache)) if (key.split('?')[0] === file) delete cache[key];
  let module: unknown;
  try {
    module = await withoutExit(file, () => {
      const importing = import(`${pathToFileURL(file).href}?sha256=${found}`) as Promise<unknown>;
      return inTime(importing, timeoutMs, `${file}: its import`);
    });
  } catch (cause) {
    if (cause instanceof RatchetError) throw cause;
    throw new RatchetError('ConfigInvalid', `The environment cannot be loaded: ${placed(cause, file)}`, { cause });
  }
  return { file, module };
}

/** A file that ends the process would end a worker, or a command silently. Other code may still end it meanwhile. */
async function withoutExit<T>(file: string, work: () => Promise<T>): Promise<T> {
  const exit = Reflect.get(process, 'exit');
  const refusing = (code?: number | string | null): never => {
    const refusal = new RatchetError(
      'ConfigInvalid',
      `${file} ends the process while it is loaded: process.exit(${code ?? ''}). Throw an error there instead; what it says is told.`,
    );
    const [, ...callers] = (refusal.stack ?? '').split('\n');
    if (callers.some((line) => line.includes(file))) throw refusal;
    return exit(code);
  };
  process.exit = refusing;
  try {
    return await work();
  } finally {
    if (process.exit === refusing) process.exit = exit;
  }
}

/** Bounds the wait for a file that awaits something endless. */
async function inTime<T>(work: Promise<T>, timeoutMs: number, what: string): Promise<T> {
  const over = new AbortController();
  const late = delay(timeoutMs, undefined, { signal: over.signal }).then(() => {
    throw new RatchetError(
      'ConfigInvalid',
      `${what} has not come to its end within ${timeoutMs / 1000} s. What does it await? What takes long, such as a download, belongs before the run.`,
    );
  });
  late.catch(() => undefined); // the work was done sooner
  try {
    return await Promise.race([work, late]);
  } finally {
    over.abort();
  }
}

function readOwn(file: string): Uint8Array {
  try {
    return readRegularSync(file);
  } catch (cause) {
    throw new RatchetError('EnvironmentUnknown', `The environment ${file} cannot be read: ${whyUnreadable(cause)}.`, {
      cause,
    });
  }
}

let registering: Promise<void> | null = null;

/** Makes `ratchet-rl/environments` the kit beside this file, and enables TypeScript. Concurrent callers wait for it. */
export function registerKit(): Promise<void> {
  return (registering ??= registerHooks());
}

async function registerHooks(): Promise<void> {
  const kit = import.meta.resolve('./kit.ts');
  // Registered after tsx's hooks, so that these run first.
  await readTypeScript();
  const hooks = new URL('./own-code.mjs', import.meta.url).href;
  const { registerHere } = (await import(hooks)) as typeof OwnCode;
  if (!registerHere({ kit })) register(hooks, { data: { kit } });
}

/** The failure, with its first position in the user's own file. */
function placed(error: unknown, file: string): string {
  if (!(error instanceof Error)) return `${file} threw ${String(error)}`;
  const clean = (error.stack ?? '').replaceAll(/\?sha256=[0-9a-f]+/g, '');
  const escaped = [file, pathToFileURL(file).href].map((place) =>
    place.replaceAll(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`),
  );
  const at = new RegExp(`(?:${escaped.join('|')}):(\\d+)(?::(\\d+))?`).exec(`${error.message}\n${clean}`);
  const place = at?.[1] === undefined ? file : `${file}:${at[1]}${at[2] === undefined ? '' : `:${at[2]}`}`;
  const message = error.message.replaceAll(/\?sha256=[0-9a-f]+/g, '');
  return `${place}\n  ${error.name}: ${message}`;
}

function checked(module: unknown, entry: string): EnvironmentModule {
  if (typeof (module as Partial<EnvironmentModule>).loadEnvironment === 'function') return module as EnvironmentModule;
  throw new RatchetError('ConfigInvalid', `${entry} does not export a function loadEnvironment(args).`);
}

/** Checks an environment that user code returned. */
function complete(environment: Environment, file: string): Environment {
  const given = (environment ?? {}) as Partial<Record<keyof Environment, unknown>>;
  const isDataset = (value: unknown): boolean =>
    typeof (value as { at?: unknown } | undefined)?.at === 'function' &&
    typeof (value as { length?: unknown }).length === 'number';
  for (const name of ['dataset', 'evalDataset'] as const) if (isDataset(given[name])) requireLength(file, name, given[name] as { length: number }); // prettier-ignore
  const missing = [
    ...(typeof given.name === 'string' ? [] : ['name']),
    ...(isDataset(given.dataset) ? [] : ['dataset']),
    ...(isDataset(given.evalDataset) ? [] : ['evalDataset']),
    ...(Array.isArray((given.rubric as { functions?: unknown } | undefined)?.functions) ? [] : ['rubric']),
    ...(typeof given.rollout === 'function' ? [] : ['rollout']),
  ];
  if (missing.length === 0) return withKnownKeys(environment, file);
  throw new RatchetError(
    'ConfigInvalid',
    `${file}: loadEnvironment(args) must give an environment, as singleTurn(…), multiTurn(…) and toolEnvironment(…) do; missing: ${missing.join(', ')}.`,
  );
}

function withKnownKeys(environment: Environment, file: string): Environment {
  requireKnownOptions<Environment>(`${file}: what loadEnvironment(args) gives`, environment, {
    name: true,
    dataset: true,
    evalDataset: true,
    rubric: true,
    isDeterministic: true,
    saysState: true,
    isSingleTurn: true,
    maxTurns: true,
    warnings: true,
    tools: true,
    rollout: true,
    withdraw: true,
    judge: true,
    scoring: true,
    scoresGroups: true,
    isComparing: true,
    sampling: true,
    stateAfter: true,
    demonstrate: true,
  });
  return environment;
}

function requireLength(file: string, name: string, { length }: { readonly length: number }): void {
  if (Number.isSafeInteger(length) && length >= 0) return;
  throw new RatchetError(
    'ConfigInvalid',
    `${file}: ${name}.length is ${length}; expected how many examples at(index) can be asked for, an integer ≥ 0. listDataset(rows) makes a dataset of an array.`,
  );
}

/** The entry file of an environment's folder; undefined if it is no TypeScript or JavaScript. */
export function environmentEntry(folder: string): string | undefined {
  return entryFiles.map((file) => path.join(folder, file)).find((file) => existsSync(file));
}

function unknownEnvironment(id: string, known: readonly string[]): RatchetError {
  const nearest = nearestName(environmentName(id), known);
  const meant = nearest === undefined ? '' : ` Did you mean "${nearest}"?`;
  const list = known.length === 0 ? 'none are installed' : known.join(', ');
  return new RatchetError('EnvironmentUnknown', `There is no environment "${id}".${meant} Those that exist: ${list}.`);
}
