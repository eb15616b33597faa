import path from 'node:path';
import { RatchetError } from '../core/errors.ts';
import type { CodeRef } from '../config/run-spec.ts';

/**
 * A run file's text and the files beside it, as they were where the user named it; sent along, since the run may be
 * opened on another machine.
 */
export interface SentFiles {
  /** Keys are names of files as typed, and paths of system prompts. */
  readonly texts: Readonly<Record<string, string>>;
  /** sha256 of files that it names: by their relative path below its folder, others by their absolute one. */
  readonly beside: Readonly<Record<string, string>>;
}

/** Digests by the names in `SentFiles`. */
export function digestsOf(
  folder: string,
  files: readonly (Pick<CodeRef, 'path' | 'sha256'> | null)[],
): Record<string, string> {
  return Object.fromEntries(
    files.flatMap((ref) => {
      if (!ref || ref.sha256 === null) return [];
      return [[isBelow(folder, ref.path) ? path.relative(folder, ref.path) : ref.path, ref.sha256]];
    }),
  );
}

/** The same run file with other code beside it is another run: the user meant the files beside theirs. */
export function refuseOthers(here: Readonly<Record<string, string>>, sent: SentFiles, folder: string): void {
  for (const [name, digest] of Object.entries(here)) {
    const meant = sent.beside[name];
    if (meant === undefined || meant === digest) continue;
    throw new RatchetError(
      'ConfigInvalid',
      `${path.resolve(folder, name)} is not the file that was beside the run file where this run was started: expected sha256 ${meant.slice(0, 12)}…, found ${digest.slice(0, 12)}… here, where the run is opened. Bring the same file here, or start the run from here.`,
    );
  }
}

export function isBelow(folder: string, file: string): boolean {
  const way = path.relative(folder, file);
  return way !== '..' && !way.startsWith(`..${path.sep}`) && !path.isAbsolute(way);
}
