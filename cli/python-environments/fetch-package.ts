import { spawn } from 'node:child_process';
import {
  accessSync,
  constants,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { metadataOf, pythonFolder } from '../../backends/environments/packages/installed.ts';
import { moduleCode, moduleIn } from '../../backends/environments/packages/package.ts';
import {
  applicableRequirements,
  extrasWithVerifiers,
  isSameName,
  pythonsThatFit,
  readRequirement,
  verifiersRequirement,
} from '../../backends/environments/packages/requirement.ts';
import { verifiersOfResolution } from '../../backends/environments/packages/resolution.ts';
import {
  findPython,
  type FoundPython,
  InstallerFailed,
  pythonForVerifiers,
  pythonVariables,
  runInstaller,
} from '../../backends/python/interpreter.ts';
import { RatchetError } from '../../core/errors.ts';
import { ensureVerifiers } from '../../workers/install/environment-python.ts';
import { extrasText, type InstallSource } from './install-source.ts';

/** A built package, examined before any of it is installed. */
interface BuiltPackage {
  readonly name: string;
  readonly version: string;
  readonly module: string;
  readonly requires: string;
  readonly code: string | null;
}

/**
 * Downloads a package of the index, or takes a wheel, without dependencies, into a temporary folder, and returns its
 * facts. Throws ConfigInvalid if it is not an environment: on the index several names of environments belong to
 * unrelated packages.
 */
export async function lookAtBuilt(
  source: InstallSource & { readonly kind: 'pypi' | 'wheel' },
  { log }: { readonly log: (line: string) => void },
): Promise<BuiltPackage> {
  const { extras } = source;
  const found = await findPython(pythonForVerifiers);
  const wanted = source.kind === 'pypi' ? source.requirement : source.file;
  const where = source.kind === 'pypi' ? 'of the package index' : `in ${source.file}`;
  const scratch = mkdtempSync(path.join(tmpdir(), 'ratchet-look-'));
  try {
    log(`looking at ${source.kind === 'pypi' ? `${wanted} on the package index` : wanted}`);
    // Wheels only: building a source distribution would run it before anybody has examined it.
    const target = ['--no-deps', '--only-binary', ':all:', '--target', scratch, wanted];
    const [command, ...args] = await installerOf(found, log);
    try {
      await runInstaller(command, [...args, 'install', '--quiet', ...pythonOf(found), ...target], {
        env: pythonVariables(process.env),
      });
    } catch (cause) {
      throw withReason(cause, wanted, { found, advice: source.kind === 'pypi' ? sourceOnly : '' });
    }
    const about = readdirSync(scratch).find(
      (entry) =>
        entry.endsWith('.dist-info') && isSameName(metadataOf(path.join(scratch, entry)).name ?? '', source.name),
    );
    const metadata = metadataOf(path.join(scratch, about ?? ''));
    const named = metadata.name ?? source.name;
    const unknown = extras.find((extra) => !metadata.extras.some((known) => isSameName(known, extra)));
    if (unknown !== undefined) {
      const known = metadata.extras.join(', ') || 'none';
      throw new RatchetError('ConfigInvalid', `${named} ${metadata.version ?? ''} ${where} has no extra "${unknown}"; it has ${known}. Nothing was installed.`); // prettier-ignore
    }
    const asked = { name: named, extras, python: found.version };
    const requires =
      verifiersRequirement(metadata.requires, asked) ??
      (applicableRequirements(metadata.requires, asked).length === 0
        ? null
        : await throughOthers(withExtras(source), found, log));
    if (requires === null || metadata.version === null)
      throw new RatchetError('ConfigInvalid', notAnEnvironment(source, metadata, asked));
    const module = moduleIn(scratch, named);
    return { name: named, version: metadata.version, module, requires, code: moduleCode(scratch, module) };
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

/** Extras in the syntax of pip and uv. */
function withExtras(source: InstallSource & { readonly kind: 'pypi' | 'wheel' }): string {
  if (source.kind === 'pypi') return source.requirement;
  return `${source.name}${extrasText(source.extras)} @ ${pathToFileURL(source.file).href}`;
}

const sourceOnly =
  'Where the index has only a source distribution, building that would run its code before it is looked at: take its file from the index, unpack it, read it, and install its folder: npx ratchet-rl env install ./FOLDER';

/** uv, or the pip of an existing environment. */
async function installerOf({ uv }: FoundPython, log: (line: string) => void): Promise<[string, ...string[]]> {
  if (uv) return ['uv', 'pip'];
  return [await ensureVerifiers('v0', { log }), '-m', 'pip', '--disable-pip-version-check', '--no-input'];
}

function pythonOf({ uv, command }: FoundPython): string[] {
  return uv ? ['--python', command] : [];
}

/** Why it is no environment, and the extra or the Python with which it would be one. */
function notAnEnvironment(
  source: InstallSource & { readonly kind: 'pypi' | 'wheel' },
  { version, requires }: { readonly version: string | null; readonly requires: readonly string[] },
  asked: { readonly name: string; readonly extras: readonly string[]; readonly python: string },
): string {
  const { name } = asked;
  const where = source.kind === 'pypi' ? `${name} ${version ?? ''} of the package index` : source.file;
  const again = (extra: string) =>
    source.kind === 'pypi'
      ? `'pypi:${name}[${[...asked.extras, extra].join(',')}]${source.requirement.replace(/^[\w.-]+(?:\[[^\]]*\])?/, '')}'`
      : `'${source.file}[${[...asked.extras, extra].join(',')}]'`;
  const [extra] = extrasWithVerifiers(requires, asked);
  if (extra !== undefined) {
    return `${where} needs verifiers only with its extra "${extra}": npx ratchet-rl env install ${again(extra)}. Without it nothing was installed.`;
  }
  const conditional = requires.find((one) => isSameName(readRequirement(one)?.name ?? '', 'verifiers'));
  if (conditional !== undefined) {
    return `${where} asks for ${conditional.trim()}, which does not hold here (Python ${asked.python}, ${process.platform}): without verifiers it is not an environment. Nothing was installed. RATCHET_PYTHON names another Python.`;
  }
  return `${where} is not an environment: it does not need verifiers, nor does anything that it depends on. Packages there may have an environment's name and be something else; nothing was installed. Of the Environments Hub: npx ratchet-rl env install OWNER/${name}`;
}

/**
 * Searches a package's dependencies for one that requires verifiers: resolves all of them and installs none. null
 * without one.
 */
async function throughOthers(wanted: string, found: FoundPython, log: (line: string) => void): Promise<string | null> {
  log(`looking at what ${wanted} depends on`);
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-resolve-'));
  const written = path.join(folder, 'resolved');
  try {
    const [command, ...args] = await installerOf(found, log);
    const built = ['--only-binary', ':all:'];
    if (found.uv) {
      const input = path.join(folder, 'wanted.in');
      writeFileSync(input, `${wanted}\n`);
      const compile = ['compile', '--quiet', '--no-header', '--no-annotate', '--output-file', written];
      await runInstaller(command, [...args, ...compile, ...pythonOf(found), ...built, input], { env: pythonVariables(process.env) }); // prettier-ignore
      const names = readFileSync(written, 'utf8').split('\n').flatMap((line) => readRequirement(line)?.name ?? []); // prettier-ignore
      return names.some((name) => isSameName(name, 'verifiers')) ? '' : null;
    }
    const resolve = ['install', '--dry-run', '--ignore-installed', '--report', written, ...built, wanted];
    await runInstaller(command, [...args, ...resolve], { env: pythonVariables(process.env) });
    return verifiersOfResolution(readFileSync(written, 'utf8'), found.version);
  } catch (cause) {
    throw withReason(cause, wanted, { found, advice: 'It does not ask for verifiers itself, and what it depends on cannot be looked at. Nothing was installed.' }); // prettier-ignore
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Puts the installer's whole reason first, then the advice. */
export function withReason(
  cause: unknown,
  name: string,
  { found, advice, again = '' }: { readonly found: FoundPython; readonly advice: string; readonly again?: string },
): unknown {
  if (!(cause instanceof InstallerFailed)) return cause;
  const isOffline =
    /Failed to establish a new connection|NewConnectionError|dns error|Could not fetch URL|tcp connect error|network was disabled/i;
  const what =
    pythonAdvice(cause.output, found, again) ??
    (isOffline.test(cause.output) ? 'The package index cannot be reached, or does not know it: see to the network or to the index (PIP_INDEX_URL, UV_INDEX_URL), and install again.' : advice); // prettier-ignore
  return new RatchetError('ConfigInvalid', `${name} cannot be installed: ${cause.reason}${what === '' ? '' : `\n${what}`}`, { cause }); // prettier-ignore
}

/** Advice when the Python version is the reason: names versions that will do. */
function pythonAdvice(output: string, { version, command }: FoundPython, again: string): string | undefined {
  const asked = [
    ...output.matchAll(/requires a different Python: \S+ not in '([^']+)'/g),
    ...output.matchAll(/Requires-Python ([<>=!~][^;\n]*)/g),
    ...output.matchAll(/(?:requires|satisfy) Python\s?((?:[<>=!~]=?\s?[\d.*]+(?:,\s?)?)+)/g),
  ].map(([, specifier = '']) => specifier.replaceAll(/\s/g, '').replace(/,$/, ''));
  if (asked.length === 0) return undefined;
  const wanted = [...new Set(asked)];
  const fitting = wanted.map(pythonsThatFit);
  const fit = [...new Set(fitting.flat())].toSorted();
  const here = /^\d/.test(version) ? `the Python here is ${version} (${command})` : `Python ${version} was looked for`;
  const start = `It asks for Python ${wanted.join(' or ')}, and ${here}.`;
  if (fit.length === 0)
    return `${start} verifiers runs on Python 3.11, 3.12 and 3.13: no Python runs both. Ask for another version of it.`;
  const suggested = `python${fit.at(-1)!}`;
  return `${start} Python ${fit.join(' or ')} will do: install it, and name it: RATCHET_PYTHON=${suggested} npx ratchet-rl env install …${again}`;
}

/**
 * Folder into which the `prime` CLI downloaded a package of the Environments Hub; null without the CLI, or when it
 * failed.
 */
export async function fetchFromHub(
  { id, owner, name, module }: InstallSource & { readonly kind: 'hub' },
  { projectFolder, log }: { readonly projectFolder: string; readonly log: (line: string) => void },
): Promise<string | null> {
  const prime = findProgram('prime');
  if (prime === undefined) {
    log(
      [
        'The prime CLI, which fetches packages of the Environments Hub, is not on the PATH. Install it, and ask again:',
        '  uv tool install prime',
        `  npx ratchet-rl env install ${id}`,
        `or bring its files to environments/${module} in another way, and then: npx ratchet-rl env install ${name}`,
      ].join('\n'),
    );
    return null;
  }
  const folder = path.join(pythonFolder(projectFolder), 'hub', `${owner}--${module}`);
  const fresh = `${folder}.new`;
  rmSync(fresh, { recursive: true, force: true });
  mkdirSync(fresh, { recursive: true });
  log(`prime env pull ${id}`);
  const code = await runProgram(prime, ['env', 'pull', id, '--target', fresh], projectFolder);
  if (code !== 0) {
    log(`prime ended with exit code ${code}: nothing was installed.`);
    return null;
  }
  rmSync(folder, { recursive: true, force: true });
  renameSync(fresh, folder);
  return folder;
}

/** First program of that name on the PATH. */
function findProgram(name: string): string | undefined {
  const folders = (process.env['PATH'] ?? '').split(path.delimiter).filter((folder) => folder !== '');
  return folders.map((folder) => path.join(folder, name)).find(isExecutable);
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return existsSync(file) && statSync(file).isFile();
  } catch {
    return false; // Not there, or not ours to run.
  }
}

/** Runs on our own terminal; its output is progress, so it goes to stderr. */
function runProgram(program: string, args: readonly string[], cwd: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { cwd, stdio: ['inherit', process.stderr, 'inherit'] });
    child.once('error', reject);
    child.once('close', (code) => resolve(code ?? 1));
  });
}
