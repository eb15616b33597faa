import { z } from 'zod';
import { sandboxTraits } from '../../../core/kinds/sandboxes.ts';
import { sandboxFilesMax, taskFileBytesMax } from '../../../core/limits.ts';
import { isInsideWorkFolder, isUnicode } from '../../../core/names.ts';
import type { ProgramSandbox } from '../../../core/settings/programs.ts';

/** What a row of an agent's tasks may say, and what is wrong with one that says something else. */

const text = z.string().min(1);
const contents = z.union([z.string(), z.strictObject({ base64: z.base64() })]);
const fileTable = z.record(z.string().refine(isInsideWorkFolder), contents);
const roles = ['system', 'user', 'assistant', 'tool'] as const;
const message = z.looseObject({
  role: z.enum(roles),
  content: z.union([z.string(), z.null(), z.array(z.looseObject({}))]).optional(),
});
const Row = z.looseObject({
  prompt: z.union([text, z.array(message).min(1)]).optional(),
  task: text.optional(),
  answer: z.union([z.string(), z.number(), z.boolean()]).nullish(),
  files: fileTable.nullish(),
  score_files: fileTable.nullish(),
  info: z.record(z.string(), z.unknown()).nullish(),
  image: text.nullish(),
});
export type TaskRow = z.infer<typeof Row>;

/** Names of files, and their folders, each with a file in it. */
interface FileTree {
  readonly files: ReadonlySet<string>;
  readonly folders: ReadonlyMap<string, string>;
}

/** Files that every sandbox gets, whatever its task, as it begins and when it is scored. */
export interface CommonFiles {
  readonly begins: FileTree;
  readonly scored: FileTree;
}

export function treeOf(names: readonly string[]): FileTree {
  const folders = new Map<string, string>();
  for (const name of names) for (const folder of above(name)) if (!folders.has(folder)) folders.set(folder, name);
  return { files: new Set(names), folders };
}

/** A name that is a file's and a folder's at once, with a file that lies in it; null if there is none. */
export function fileAndFolder(
  { files, folders }: FileTree,
  names: Iterable<string>,
): { readonly name: string; readonly inside: string } | null {
  for (const one of names) {
    const inside = folders.get(one);
    if (inside !== undefined) return { name: one, inside };
    const name = above(one).find((folder) => files.has(folder));
    if (name !== undefined) return { name, inside: one };
  }
  return null;
}

/** The problem with a row, in words; null = it is a task for such sandboxes, with these files. */
export function whatIsWrong(
  line: string,
  sandbox: Pick<ProgramSandbox, 'pool' | 'image'>,
  common: CommonFiles,
): string | null {
  let raw: unknown;
  try {
    raw = JSON.parse(line);
  } catch {
    return 'no JSON';
  }
  if (typeof raw !== 'object' || raw === null || Array.isArray(raw)) return 'no object';
  const unsafe = unsafeIn(raw, [], 0); // first: what is too deep can be neither parsed nor shown
  if (unsafe !== null) return unsafe;
  const parsed = Row.safeParse(raw);
  if (!parsed.success) return problemOf(parsed.error.issues[0]!, raw);
  const row = parsed.data;
  if (row.prompt === undefined && row.task === undefined)
    return `neither "prompt" nor "task", only ${Object.keys(raw).slice(0, 5).join(', ') || 'an empty object'}`;
  return problemOfFiles(row, common) ?? problemOfImage(row, sandbox);
}

/** A field, what is expected there, and what was found. */
function saying(at: readonly PropertyKey[], expected: string, found: unknown): string {
  return `${spelt(at)}: expected ${expected}; found ${shown(found)}`;
}

type Issue = Pick<z.core.$ZodIssue, 'path'> & { readonly errors?: readonly (readonly z.core.$ZodIssue[])[] };

/** In our words: those of the innermost field that the issue is about. */
function problemOf(issue: Issue, row: object): string {
  const at = innermost(issue);
  const [first, name] = at;
  const isPath = (first === 'files' || first === 'score_files') && typeof name === 'string' && at.length === 2;
  if (isPath && !isInsideWorkFolder(name)) return `${spelt([first])}: expected ${path}; found ${shown(name)}`;
  const [known, expected] = expectedAt(at);
  return saying(known, expected, valueAt(row, known));
}

/** Of several forms that a value may have, the one that it follows the furthest. */
function innermost({ path: at, errors = [] }: Issue): readonly PropertyKey[] {
  const within = errors.flatMap((issues) => issues.slice(0, 1)).map((issue) => innermost(issue as Issue));
  const deepest = within.toSorted((one, other) => other.length - one.length)[0] ?? [];
  return [...at, ...deepest];
}

const notEmpty = 'a text that is not empty';
const path = 'a path below the work folder, such as "src/main.py"';
const files = { whole: 'a table of files, {"PATH": "TEXT"}', part: 'the text of the file, or {"base64": "…"} with its bytes' }; // prettier-ignore
const words: Readonly<Record<keyof typeof Row.shape, { readonly whole: string; readonly part?: string }>> = {
  prompt: { whole: `${notEmpty}, or a list of messages`, part: 'a message with a role and a content' },
  task: { whole: notEmpty },
  answer: { whole: 'a text, a number, true or false' },
  files,
  score_files: files,
  info: { whole: 'a table' },
  image: { whole: notEmpty },
};
const wordsOfMessage: Readonly<Record<string, string>> = {
  role: `one of ${roles.map((role) => `"${role}"`).join(', ')}`,
  content: 'a text, or a list of parts',
};

/** The deepest part of a way whose expected value has words, with them. */
function expectedAt(at: readonly PropertyKey[]): readonly [readonly PropertyKey[], string] {
  const [first, , third] = at;
  const { whole, part = whole } = words[first as keyof typeof words];
  const ofMessage = first === 'prompt' && typeof third === 'string' ? wordsOfMessage[third] : undefined;
  if (ofMessage !== undefined) return [at.slice(0, 3), ofMessage];
  return at.length > 1 ? [at.slice(0, 2), part] : [at, whole];
}

function valueAt(row: object, at: readonly PropertyKey[]): unknown {
  return at.reduce<unknown>((value, key) => (value as Readonly<Record<PropertyKey, unknown>> | undefined)?.[key], row);
}

/** Programs, templates and file systems do not take deeper values, or these texts, as they are. */
const levelsMax = 64;

function unsafeIn(value: unknown, at: readonly PropertyKey[], level: number): string | null {
  if (typeof value === 'string') return unsafeText(value, at);
  if (typeof value !== 'object' || value === null) return null;
  if (level >= levelsMax) return `${spelt(at.slice(0, 1))}: expected at most ${levelsMax} levels; found more`;
  for (const [key, item] of Object.entries(value)) {
    if (key === '__proto__') return `${spelt(at)}: expected another key than "__proto__", which no program keeps`;
    const wrong = unsafeKey(key, at) ?? unsafeIn(item, [...at, Array.isArray(value) ? Number(key) : key], level + 1);
    if (wrong !== null) return wrong;
  }
  return null;
}

function unsafeKey(key: string, at: readonly PropertyKey[]): string | null {
  if (!key.includes('\0') && isUnicode(key)) return null;
  return `${spelt(at)}: expected keys without a zero character and without half a surrogate pair; found ${shown(key)}`;
}

function unsafeText(value: string, at: readonly PropertyKey[]): string | null {
  const [first] = at;
  const instead = first === 'files' || first === 'score_files' ? ': such bytes are written as {"base64": "…"}' : '';
  const zero = value.indexOf('\0');
  if (zero >= 0)
    return `${spelt(at)}: expected a text without a zero character${instead}; found one at position ${zero}`;
  if (isUnicode(value)) return null;
  return `${spelt(at)}: expected a text that UTF-8 can say${instead}; found half of a surrogate pair`;
}

function problemOfFiles({ files, score_files: scoreFiles }: TaskRow, { begins, scored }: CommonFiles): string | null {
  let sizeBytes = 0;
  let count = 0;
  for (const [key, table] of [
    ['files', files],
    ['score_files', scoreFiles],
  ] as const) {
    const names = Object.keys(table ?? {});
    // A file of the score may replace one that was there before, and no folder.
    const all = key === 'files' ? names : [...Object.keys(files ?? {}), ...names];
    const common = key === 'files' ? begins : scored;
    const [own, others] = [fileAndFolder(treeOf(all), all), fileAndFolder(common, names)];
    const both = own ?? others;
    if (both !== null) {
      const from = own === null ? ', with the files that [env.sandbox] and [env.score] name' : '';
      return `${key}: expected ${shown(both.name)} to be a file or a folder; found both, since ${shown(both.inside)} lies in it${from}`;
    }
    count += names.length;
    sizeBytes += Object.values(table ?? {}).reduce((sum, file) => sum + bytesOf(file).byteLength, 0);
  }
  if (count > sandboxFilesMax) return `files: expected at most ${sandboxFilesMax}; found ${count}`;
  return sizeBytes > taskFileBytesMax ? `files: expected at most ${taskFileBytesMax} bytes in all; found ${sizeBytes}` : null; // prettier-ignore
}

function above(name: string): string[] {
  const parts = name.split('/').slice(0, -1);
  return parts.map((_, i) => parts.slice(0, i + 1).join('/'));
}

function problemOfImage(
  { image }: TaskRow,
  { pool: { provider }, image: usual }: Pick<ProgramSandbox, 'pool' | 'image'>,
): string | null {
  const { takesImage, needsImage } = sandboxTraits(provider);
  const isNamed = image !== undefined && image !== null;
  if (isNamed && !takesImage)
    return saying(['image'], `none: a sandbox of kind "${provider.kind}" has the programs of its machine`, image);
  if (!isNamed && usual === null && needsImage)
    return saying(['image'], 'the image of its container, or one for all tasks, in [env.sandbox]', image);
  return null;
}

export function bytesOf(content: z.infer<typeof contents>): Uint8Array {
  return typeof content === 'string' ? Buffer.from(content) : Buffer.from(content.base64, 'base64');
}

function spelt(at: readonly PropertyKey[]): string {
  const [first, ...rest] = at;
  if (first === undefined) return 'the row';
  const ways = rest.map((key) => (typeof key === 'number' ? `[${key}]` : `[${shown(key)}]`));
  return `${String(first)}${ways.join('')}`.replaceAll(/\["(\w+)"\]/g, '.$1');
}

const shownChars = 80;

function shown(value: unknown): string {
  if (value === undefined) return 'nothing';
  const json = JSON.stringify(value);
  return json.length > shownChars ? `${json.slice(0, shownChars)}…` : json;
}
