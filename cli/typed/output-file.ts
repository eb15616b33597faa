import { stat } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';

/** Path of an output option, checked before the work whose result it takes. */
export async function outputFile(option: string, named: string): Promise<string> {
  // Elsewhere it means stdout; a file of this name is hard to read and to remove.
  if (named === '-') throw refusal(`${option}: expected a file, got "-": this is not written to a pipe.`);
  const file = path.resolve(named);
  if (await isFolder(file)) throw refusal(`${option}: expected a file, got the folder ${file}.`);
  const folder = path.dirname(file);
  if (!(await isFolder(folder))) throw refusal(`${option}: expected a file in a folder that is there, got ${file}.`);
  return file;
}

export function isFolder(named: string): Promise<boolean> {
  return stat(named).then(
    (found) => found.isDirectory(),
    () => false,
  );
}

function refusal(message: string): RatchetError {
  return new RatchetError('ConfigInvalid', message);
}
