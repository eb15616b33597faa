import { readdirSync } from 'node:fs';
import path from 'node:path';
import { RatchetError } from '../core/errors.ts';
import { readRegularSync, whyUnreadable } from './regular-file.ts';

/** Names a folder with a file for each secret variable, such as a mounted Secret of Kubernetes. */
export const secretsFolderVariable = 'RATCHET_SECRETS_FOLDER';

/** A key with its certificates is a few kilobytes. */
const bytesMax = 64 * 1024;

/**
 * Sets a variable for each file of the folder that RATCHET_SECRETS_FOLDER names: its name is the file's, its value the
 * content without a last line break. So a secret is in no environment that another process can read. Files that begin
 * with a dot are left out: Kubernetes keeps its own there. A child does not get the folder's name. Throws
 * `ConfigInvalid` for a file that is no variable, and for a variable that is set already.
 */
export function takeSecretsFolder(env: NodeJS.ProcessEnv = process.env): void {
  const folder = env[secretsFolderVariable];
  delete env[secretsFolderVariable];
  if (!folder) return;
  for (const name of filesOf(folder)) {
    const file = path.join(folder, name);
    if (!/^[A-Za-z_]\w*$/.test(name))
      throw refused(`expected files named like variables, such as WANDB_API_KEY, found ${file}. Rename or remove it`);
    if (env[name]) throw refused(`${name} is set, and ${file} sets it, too. Unset one of them`);
    env[name] = contentOf(file);
  }
}

function filesOf(folder: string): string[] {
  try {
    return readdirSync(folder).filter((name) => !name.startsWith('.'));
  } catch (cause) {
    throw refused(`expected a folder, got ${folder}: ${whyUnreadable(cause)}`, cause);
  }
}

function contentOf(file: string): string {
  const text = read(file)
    .toString('utf8')
    .replace(/\r?\n$/, '');
  if (!text.includes('\0')) return text;
  throw refused(`expected text in ${file}, found a byte 0, which no variable can hold`);
}

function read(file: string): Buffer {
  try {
    return readRegularSync(file, bytesMax, { links: 'followed' });
  } catch (cause) {
    throw refused(`${file} cannot be used: ${whyUnreadable(cause)}`, cause);
  }
}

function refused(message: string, cause?: unknown): RatchetError {
  return new RatchetError('ConfigInvalid', `${secretsFolderVariable}: ${message}.`, { cause });
}
