import { isTableAlone } from '../../config/toml/layers.ts';
import { settingsWithoutResume } from '../../config/resume-words.ts';
import type { OverFile } from './config-line.ts';

/** A `ratchet train` as typed, for suggesting it again. */
export interface TypedCommand {
  readonly file: string;
  readonly over?: readonly OverFile[];
  readonly dialect?: string;
  /** Null when the file's own name is the run's. */
  readonly name: string | null;
  readonly overrides: Readonly<Record<string, string>>;
}

/** Command that trains the same run again: file, name and settings, quoted for a shell. */
export function trainAgain({ file, over = [], dialect, name, overrides }: TypedCommand): string {
  const files = over.map(({ file: next, section }) =>
    [...(section === undefined ? [] : [quote(`--${section}`)]), '@', quote(next)].join(' '),
  );
  const named = dialect === undefined ? [] : [`--dialect ${quote(dialect)}`];
  const settings = Object.entries(overrides).map(([key, value]) => {
    if (value === 'false') return quote(`--${key.replace(/(?<![^.])[^.]*$/, 'no-$&')}`);
    // A value that begins with a dash would be read as the next setting.
    return value === '' || value.startsWith('-') ? quote(`--${key}=${value}`) : `${quote(`--${key}`)} ${quote(value)}`;
  });
  return [
    'npx ratchet-rl train',
    ...(isTableAlone(file, over) ? [] : [quote(file)]),
    ...files,
    ...named,
    ...(name === null ? [] : [`--name ${quote(name)}`]),
    ...settings,
  ].join(' ');
}

/** The same with another number of steps. */
export function withMaxSteps(command: TypedCommand, maxSteps: number): TypedCommand {
  const others = Object.entries(command.overrides).filter(([key]) => key.replaceAll('-', '_') !== 'max_steps');
  return { ...command, overrides: Object.fromEntries([...others, ['max-steps', String(maxSteps)]]) };
}

/** The same without the settings for resuming, which apply to one start only. */
export function withoutResume(command: TypedCommand): TypedCommand {
  return { ...command, overrides: settingsWithoutResume(command.overrides) };
}

export function quote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
