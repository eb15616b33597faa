import { createInterface } from 'node:readline/promises';
import path from 'node:path';
import type { CodeRef } from '../../config/run-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import { isNoFile } from '../../load/grants/grant.ts';
import { changedCode, type NamedByRun, notGranted, type NotGranted } from '../../load/grants/stored-grants.ts';
import { localRoot, resolveStoreUri, showStoreUri } from '../../store/index.ts';
import { realOr } from '../../host/file-owners.ts';
import { writeGrants } from '../../host/grants.ts';
import { grantedLines } from '../../host/grants.ts';
import { digestsGranted, isOtherThanGranted, isWithin } from '../../host/trusted-files.ts';
import type { RunPlace } from '../../runs/run-access.ts';
import { shellWord } from '../../workers/stack/service.ts';
import { onOneLine } from '../output/plain-text.ts';
import { defaultStore } from '../stored/run-place.ts';

export interface GrantOptions {
  readonly grant?: readonly string[] | undefined;
  readonly json?: boolean | undefined;
}

/** An interactive user. */
export interface Asker {
  readonly isThere: boolean;
  /** The command to type at a terminal, for when this is not one. */
  readonly command?: string;
  ask(question: string): Promise<string>;
}

/**
 * Grants what a stored run names: what belongs to the project, what was granted before, and what `--grant` or the user
 * at the terminal allows. Throws `ConfigInvalid` for anything else, and then grants nothing. Another user may have
 * written the run's folder, so nothing in it counts as typed.
 */
export async function askGrants(
  place: RunPlace,
  named: NamedByRun,
  { grant = [], json = false }: GrantOptions,
  asker: Asker = ownTerminal(json),
): Promise<void> {
  const projectFolder = process.cwd();
  const missing = notGranted(named, { projectFolder, runFolders: runFolders(place, projectFolder) });
  if (missing.length === 0) return;
  const broken = missing.find(({ line }) => /[\0\n\r]/.test(line));
  if (broken !== undefined) throw refusal(place, missing, `a name with a line break in it is not granted`);
  const changed = changedCode(named, missing);
  if (changed !== null) throw refusal(place, missing, changedSince(changed));
  const open = missing.filter(({ line }) => !grant.includes(line));
  if (open.length > 0 && !asker.isThere) throw refusal(place, missing, howToGrant(missing, asker));
  if (open.length > 0 && !isYes(await asker.ask(`${sentence(place, open)} Use it? [y/N] `)))
    throw refusal(place, open, 'the answer was no, and nothing was granted');
  const granted = missing.flatMap(({ grants }) => grants);
  writeGrants(projectFolder, granted);
}

/**
 * Whether run files are this user's own: in the project, or named on a command line, and not another user's that was
 * granted once.
 */
export function areOwn(place: RunPlace, files: readonly string[]): boolean {
  const projectFolder = process.cwd();
  const around = { projectFolder, runFolders: runFolders(place, projectFolder) };
  return notGranted({ lines: files, environments: [] }, around).length === 0 && !files.some(hasDigest);
}

function hasDigest(file: string): boolean {
  return digestsGranted(realOr(file, path.resolve(file)), grantedLines(process.cwd())).length > 0;
}

/** Whether a file has changed since it was granted. */
export function isChanged(line: string): boolean {
  const real = isNoFile(line) ? null : realOr(line, null);
  return real !== null && isOtherThanGranted(real, grantedLines(process.cwd()));
}

/** A folder around the project holds more than runs. */
function runFolders({ store, name }: RunPlace, projectFolder: string): string[] {
  const real = (folder: string): string => realOr(folder, path.resolve(folder));
  const folders = [store, resolveStoreUri(defaultStore, projectFolder)]
    .filter((uri) => uri.startsWith('file:'))
    .map((uri) => real(localRoot(uri)))
    .filter((folder) => !isWithin(folder, real(projectFolder)));
  const own = store.startsWith('file:') ? [path.join(localRoot(store), name)] : [];
  return [...folders, ...own];
}

function isYes(answer: string): boolean {
  return /^y(?:es)?$/i.test(answer.trim());
}

function sentence({ name, store }: RunPlace, missing: readonly NotGranted[]): string {
  const things = missing.map(({ says }) => onOneLine(says));
  return `The run ${name} in ${onOneLine(showStoreUri(store))} names what you have not granted: ${things.join('; ')}.`;
}

function howToGrant(missing: readonly NotGranted[], { command }: Asker): string {
  const options = missing.map(({ line }) => `--grant ${shellWord(line)}`).join(' ');
  const typed = command === undefined ? `the same command with: ${options}` : `${command} ${options}`;
  return `to use it, look at it first, and type ${onOneLine(typed)}`;
}

function changedSince({ path: file, sha256 }: CodeRef): string {
  return `the run had ${onOneLine(file)} with sha256 ${onOneLine(sha256 ?? '').slice(0, 16)}…; put that back`;
}

function refusal(place: RunPlace, missing: readonly NotGranted[], end: string): RatchetError {
  return new RatchetError('ConfigInvalid', `${sentence(place, missing)} Nothing was started: ${end}`);
}

export function ownTerminal(isJson: boolean): Asker {
  const { stdin: input, stderr: output } = process;
  return {
    isThere: !isJson && input.isTTY && output.isTTY,
    async ask(question) {
      const lines = createInterface({ input, output });
      // Ctrl-C and Ctrl-D count as no.
      const left = new Promise<string>((resolve) => lines.once('close', () => resolve('')));
      try {
        return await Promise.race([lines.question(question), left]);
      } finally {
        lines.close();
      }
    },
  };
}
