import { spawn } from 'node:child_process';
import {
  accessSync,
  constants,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { metadataOf, pythonFolder } from '../../backends/environments/packages/installed.ts';
import { isSameName, moduleCode, moduleOf } from '../../backends/environments/packages/package.ts';
import { verifiersRequirement } from '../../backends/environments/packages/requirement.ts';
import {
  findPython,
  InstallerFailed,
  pythonForVerifiers,
  pythonVariables,
  runInstaller,
} from '../../backends/python/interpreter.ts';
import { RatchetError } from '../../core/errors.ts';
import { ensureVerifiers } from '../../workers/environment-python.ts';
import type { InstallSource } from './install-source.ts';

/** A package of the index, looked at before anything of it is installed. */
interface IndexPackage {
  readonly name: string;
  readonly version: string;
  readonly module: string;
  readonly requires: string;
  readonly code: string | null;
}

/**
 * Fetches a package of the index, without what it depends on, into a folder that is removed again, and says what it is. Throws ConfigInvalid
 * where it is no environment: on the index several names of environments belong to unrelated packages.
 */
export async function fetchFromIndex(
  { name, requirement }: InstallSource & { readonly kind: 'pypi' },
  { log }: { readonly log: (line: string) => void },
): Promise<IndexPackage> {
  const found = await findPython(pythonForVerifiers);
  const scratch = mkdtempSync(path.join(tmpdir(), 'ratchet-look-'));
  try {
    log(`looking at ${requirement} on the package index`);
    // Only what is built: to build a source distribution is to run it, before anybody has looked at it.
    const target = ['--no-deps', '--only-binary', ':all:', '--target', scratch, requirement];
    const [command, ...args] = found.uv
      ? ['uv', 'pip', 'install', '--quiet', '--python', found.command, ...target]
      : [await ensureVerifiers('v0', { log }), '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--no-input', ...target]; // prettier-ignore
    try {
      await runInstaller(command, args, { env: pythonVariables(process.env) });
    } catch (cause) {
      if (!(cause instanceof InstallerFailed)) throw cause;
      throw new RatchetError(
        'ConfigInvalid',
        `The package index has no wheel of ${requirement} that installs here: ${cause.message}\nWhere it has only a source distribution, building that would run its code before it is looked at: take its file from the index, unpack it, read it, and install its folder: npx ratchet env install ./FOLDER`,
        { cause },
      );
    }
    const about = readdirSync(scratch).find(
      (entry) => entry.endsWith('.dist-info') && isSameName(metadataOf(path.join(scratch, entry)).name ?? '', name),
    );
    const metadata = metadataOf(path.join(scratch, about ?? ''));
    const requires = verifiersRequirement(metadata.requires);
    const named = metadata.name ?? name;
    if (requires === null || metadata.version === null) {
      throw new RatchetError(
        'ConfigInvalid',
        `${named} ${metadata.version ?? ''} of the package index is not an environment: it does not need verifiers. Packages there may have an environment's name and be something else; nothing was installed. Of the Environments Hub: npx ratchet env install OWNER/${named}`,
      );
    }
    const module = moduleOf(named);
    return { name: named, version: metadata.version, module, requires, code: moduleCode(scratch, module) };
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

/** The folder that the `prime` CLI fetched a package of the Environments Hub into; null where there is no such CLI, or it failed. */
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
        `  npx ratchet env install ${id}`,
        `or bring its files to environments/${module} in another way, and then: npx ratchet env install ${name}`,
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

/** The first program of that name on the PATH. */
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

/** With our own terminal; what it prints is progress, so it goes to stderr. */
function runProgram(program: string, args: readonly string[], cwd: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { cwd, stdio: ['inherit', process.stderr, 'inherit'] });
    child.once('error', reject);
    child.once('close', (code) => resolve(code ?? 1));
  });
}
