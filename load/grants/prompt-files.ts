import path from 'node:path';
import type { CodeRef, RunSpec } from '../../config/run-spec.ts';
import type { KeyPath } from '../../config/toml/positions.ts';
import { systemPromptCharsMax } from '../../core/limits.ts';
import { isPromptFile } from '../../core/rl/rollout/system-prompt.ts';
import { readRegularText, whyUnreadable } from '../../host/regular-file.ts';
import { trustedData } from '../../host/trusted-files.ts';
import { sha256 } from '../../store/file-store.ts';
import { type Folders, resolvePath } from '../paths.ts';
import { Refused, type Tried } from '../refused.ts';
import type { SentFiles } from '../sent-files.ts';
import { howToBeTold, tellsContent } from '../../backends/untold.ts';

interface Prompt {
  readonly text: string;
  /** null when the text itself was written. */
  readonly file: { readonly path: string; readonly sha256: string } | null;
}

/**
 * Whether the text of a prompt's file may be revealed: it becomes part of plans and settings, which everyone may read.
 */
type MayTell = (written: string, read: { readonly path: string; readonly text: string }) => boolean;

/**
 * Prompt from `system_prompt`: the text itself, or the exact contents of its file. If files are not open to
 * everyone, `mayTell` decides. Throws `Refused`.
 */
export async function readPrompt(
  written: string,
  resolve: (name: string) => string,
  mayTell: MayTell,
): Promise<Prompt> {
  if (!isPromptFile(written)) return { text: written, file: null };
  const expected = `a system prompt of at most ${systemPromptCharsMax} characters: its text, or a file with it`;
  const named = resolve(written);
  const file = trustedData(named, 'The system prompt');
  let text: string;
  try {
    text = await readRegularText(file);
  } catch (cause) {
    const hint = '; one word is read as the name of a file, so end a text of one word with a line break';
    const isWord = path.extname(written) === '';
    throw new Refused({ expected, received: `${whyUnreadable(cause)}: ${file}${isWord ? hint : ''}` }, cause);
  }
  if (text.length > systemPromptCharsMax)
    throw new Refused({ expected, received: `${file} with ${text.length} characters` });
  if (tellsContent() || mayTell(written, { path: named, text }))
    return { text, file: { path: named, sha256: sha256(Buffer.from(text)) } };
  throw new Refused({
    expected: 'a text, or a file that the file of settings itself names',
    received: `${file}, named beside it`,
    suggestion: howToBeTold,
  });
}

interface ReadPrompts {
  readonly trained: RunSpec['environments'];
  readonly evaluated: NonNullable<RunSpec['eval']>['environments'];
  /** Files that were read. */
  readonly files: readonly Pick<CodeRef, 'path' | 'sha256'>[];
  /** Texts by path, without files that the run file names itself. The starter of a run sends them. */
  readonly texts: Readonly<Record<string, string>>;
}

/** All that environments of a run write as their system prompts. */
export function promptsIn(spec: Pick<RunSpec, 'environments' | 'eval'>): Set<string> {
  const all = [...spec.environments, ...(spec.eval?.environments ?? [])];
  return new Set(all.flatMap(({ systemPrompt }) => systemPrompt ?? []));
}

interface Told {
  /** Prompts that the run file itself names. */
  readonly ownPrompts: ReadonlySet<string>;
  /**
   * Sending a file's text proves access to the file. A digest proves nothing: histories reveal digests of files that
   * runs use.
   */
  readonly sent: SentFiles | undefined;
}

/** The environments of a run with the text of their system prompts. */
export async function readPrompts(
  spec: RunSpec,
  folders: Folders,
  { tried, ownPrompts, sent }: Told & { readonly tried: Tried },
): Promise<ReadPrompts> {
  const mayTell: MayTell = (written, { path, text }) => ownPrompts.has(written) || sent?.texts[path] === text;
  const texts: Record<string, string> = {};
  const files: Pick<CodeRef, 'path' | 'sha256'>[] = [];
  const withPrompt = async <Entry extends { readonly systemPrompt?: string | undefined }>(
    entry: Entry,
    ...names: KeyPath[]
  ): Promise<Entry> => {
    const { systemPrompt: written } = entry;
    if (written === undefined) return entry;
    const read = await tried(names, () => readPrompt(written, (name) => resolvePath(name, folders), mayTell));
    if (read === null) return entry;
    if (read.file !== null) files.push(read.file);
    if (read.file !== null && !ownPrompts.has(written)) texts[read.file.path] = read.text;
    return { ...entry, systemPrompt: read.text };
  };
  const of = (...at: KeyPath): KeyPath => [...at, 'system_prompt'];
  const evaluated = spec.eval?.environments ?? [];
  return {
    trained: await Promise.all(spec.environments.map((entry, i) => withPrompt(entry, of('env', i)))),
    // defaults to the trained environments
    evaluated: await Promise.all(evaluated.map((entry, i) => withPrompt(entry, of('eval', 'env', i), of('env', i)))),
    files,
    texts,
  };
}
