import { ConfigProblems, type Problem } from '../config/problems.ts';
import { RatchetError } from '../core/errors.ts';
import { readsAnything } from '../engine/trusted-files.ts';

/**
 * Anybody may name a file through an unauthenticated Temporal, without being able to read it. So a problem with its content is told by
 * line alone, and the command is named that tells the rest to its owner.
 */

/** Whether whoever names files may also be told what is in them. */
export function tellsContent(): boolean {
  return readsAnything();
}

export const howToBeTold =
  'what a file holds is not told through Temporal: look at it in this folder, with npx ratchet-rl check FILE';

/** The problems of a file, in full where that may be told. `quotesNothing`: its content is not the reason, or it is sound by itself. */
export function problemsToTell(problems: readonly Problem[], expected: string, quotesNothing = false): ConfigProblems {
  return quotesNothing || tellsContent() ? new ConfigProblems(problems) : withoutContent(problems, expected);
}

/** The problems of files, with nothing of what is in these. */
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

/** `read`, whose errors quote a file; where that is not to be told they say that it will not do. */
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
