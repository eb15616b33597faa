import { RatchetError } from '../../core/errors.ts';
import type { TomlFile } from '../../config/toml/parse-toml.ts';
import { readOverrides } from './overrides.ts';
import { typedDialect } from './typed-dialect.ts';

/** A file laid over the earlier ones; `section` is the table for its contents: `--trainer @ trainer.toml`. */
export interface OverFile {
  readonly file: string;
  readonly section?: string;
}

/** Words typed after a command that takes a run file. */
export interface ConfigLine {
  readonly file: string;
  /** Begins with the file itself if that is one table of a run: see `isTableAlone`. */
  readonly over: readonly OverFile[];
  readonly overrides: Record<string, string>;
}

/**
 * Parses `base.toml @ mine.toml --trainer @ trainer.toml --max-steps 5`, also with an `@` before the first file, as in
 * prime-rl's commands. Files are laid over one another from left to right; settings override all of them.
 */
export function readConfigLine(words: readonly string[]): ConfigLine {
  const files: OverFile[] = [];
  const settings: string[] = [];
  for (let i = 0; i < words.length; i++) {
    const [word, next] = [words[i]!, words[i + 1]];
    const isKey = word.startsWith('--');
    if (word === '@') {
      files.push({ file: fileAfter(words, i) });
      i += 1;
    } else if (isKey && next === '@' && !word.includes('=') && !isSwitchedOff(word)) {
      files.push({ file: fileAfter(words, i + 1), section: word.slice(2) });
      i += 2;
    } else if (isKey) {
      settings.push(word);
      const takesNext = next !== undefined && !word.includes('=') && next !== '@' && !next.startsWith('--');
      if (takesNext) settings.push(words[++i]!);
    } else if (/^@[^\s]/.test(word)) throw refused(`a space after the @: @ ${word.slice(1)}`, word);
    else if (files.length === 0) files.push({ file: word });
    else throw refused('--key value, or "@ FILE" for a further run file', word);
  }
  const [first, ...further] = files;
  if (!first)
    throw refused(
      'a run file before the settings, as in `ratchet train FILE --max-steps 5`',
      settings.join(' ') || 'none',
    );
  const over = first.section === undefined ? further : files;
  return { file: first.file, over, overrides: readOverrides(settings) };
}

/** Applies the overlaid files and typed settings to the run file, and records the words they came from. */
export function laidOver(
  toml: TomlFile,
  over: readonly OverFile[],
  options: { readonly dialect?: string },
): { readonly over?: readonly OverFile[]; readonly dialect?: string } {
  const layers = over.length === 0 ? {} : { over };
  return { ...layers, ...typedDialect(toml, { ...options, isAlone: over.length === 0 }) };
}

function isSwitchedOff(word: string): boolean {
  return /^--(?:.*\.)?no[-_]/.test(word);
}

function fileAfter(words: readonly string[], at: number): string {
  const file = words[at + 1];
  if (file !== undefined && file !== '@' && !file.startsWith('--')) return file;
  throw refused('a run file after @', file ?? 'nothing');
}

function refused(expected: string, received: string): RatchetError {
  return new RatchetError('ConfigInvalid', `Command line: expected ${expected}, got ${JSON.stringify(received)}.`);
}
