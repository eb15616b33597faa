import { existsSync } from 'node:fs';
import { ConfigProblems } from '../config/toml/problems.ts';
import { RatchetError } from '../core/errors.ts';
import { NotAFile, readRegularText, whyUnreadable } from '../host/regular-file.ts';
import { readsAnything, trustedFile } from '../host/trusted-files.ts';
import type { SentFiles } from './sent-files.ts';

/** Text of a run file, as sent or as it is here. */
export async function readRunText(absolute: string, file: string, sent: SentFiles | undefined): Promise<string> {
  const text = sent?.texts[file];
  if (text !== undefined && readsAnything()) return text;
  try {
    return await readRegularText(trustedFile(absolute, 'The run file'));
  } catch (cause) {
    if (cause instanceof RatchetError && !(cause instanceof NotAFile)) throw cause;
    const what = whyUnreadable(cause);
    // Older documents have the runs of `lab setup` in configs/lab.
    const newer = (name: string): string => name.replace(/(^|\/)configs\/lab\/(?=[^/]+$)/, '$1configs/rl/');
    const other = [
      { name: `${file}.toml`, at: `${absolute}.toml` },
      { name: newer(file), at: newer(absolute) },
    ].find(({ name, at }) => name !== file && existsSync(at));
    const meant = other === undefined ? {} : { suggestion: `did you mean ${other.name}?` };
    const place = { file, line: null, column: null, path: '' };
    throw new ConfigProblems([{ ...place, expected: 'a TOML file', received: `${what}: ${absolute}`, ...meant }]);
  }
}
