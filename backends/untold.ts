import { ConfigProblems, type Problem } from '../config/toml/problems.ts';
import { RatchetError } from '../core/errors.ts';
import { readsAnything } from '../host/trusted-files.ts';

/**
 * Any user may name a file through an unauthenticated Temporal, without being able to read it. So a problem with its
 * content is reported by line alone, with the command that shows the rest to its owner.
 */

/** Whether errors may quote a file's content. */
export function tellsContent(): boolean {
  return readsAnything();
}

export const howToBeTold =
  'what a file holds is not told through Temporal: look at it in this folder, with npx ratchet-rl check FILE';

/**
 * The problems of a file, in full if they may quote it. `quotesNothing`: its content is not the reason, or it is sound
 * by itself.
 */
export function problemsToTell(problems: readonly Problem[], expected: string, quotesNothing = false): ConfigProblems {
  return quotesNothing || tellsContent() ? new ConfigProblems(problems) : withoutContent(problems, expected);
}

/** The problems of files, without any of their content. */
export function withoutContent(problems: readonly Problem[], expected: string): ConfigProblems {
  const files = [...new Set(problems.map(({ file }) => file))];
  return new ConfigProblems(
    files.map((file) => {
      const lines = [...new Set(problems.flatMap((one) => (one.file === file ? (one.line ?? []) : [])))];
      const at = lines.toSorted((a, b) => a - b).slice(0, linesShown);
      const received = at.length === 0 ? 'another file' : `something else in line ${at.join(', ')}`;
      return { file, line: null, column: null, path: '', expected, received, suggestion: howToBeTold };
    }),
  );
}

const linesShown = 10;

/** Runs `read`, whose errors quote a file; if quoting is not allowed, errors only state that the file is wrong. */
export function quotingNothing<T>(file: string, expected: string, read: () => T): T {
  if (tellsContent()) return read();
  try {
    return read();
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    // No cause: a failure in a history has the words of its causes.
    throw new RatchetError(error.code, `${file}: expected ${expected}, found something else; ${howToBeTold}.`);
  }
}
