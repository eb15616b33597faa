import path from 'node:path';
import { z } from 'zod';
import { parseExact, stringifyExact } from '../../../core/exact-json.ts';
import type { JsonValue } from '../../../core/json-value.ts';
import { taskFileBytesMax, tasksBytesMax } from '../../../core/limits.ts';
import { present } from '../../../core/present.ts';
import type { WrittenMessage } from '../../../core/rl/rollout/message-parts.ts';
import type { TaskSource } from '../../../core/settings/programs.ts';
import { sha256 } from '../../../store/file-store.ts';
import { findCachedDataset, partName } from '../../hub/get-dataset.ts';
import { hubSettings } from '../../hub/hub-settings.ts';
import { readRowLines, type RowLines, UnreadableRows } from '../../rows/read-row-lines.ts';
import { howToBeTold, tellsContent } from '../../untold.ts';
import type { DatasetRow } from '../datasets.ts';

/** A row of an agent's tasks. */
export interface Task {
  readonly prompt: DatasetRow['prompt'];
  readonly answer: string;
  readonly info: Readonly<Record<string, unknown>> | undefined;
  /** Of a container, in place of the file's. */
  readonly image: string | undefined;
  /** Put into the work folder of its sandbox, and those when the program has ended. */
  readonly files: readonly TaskFile[];
  readonly scoreFiles: readonly TaskFile[];
  /** The row as the program reads it: without `answer` and `score_files`. */
  readonly told: Readonly<Record<string, JsonValue>>;
  /** The row as the scoring command reads it. */
  readonly row: Readonly<Record<string, JsonValue>>;
}

/** `path`: relative to the work folder. */
export interface TaskFile {
  readonly path: string;
  readonly bytes: Uint8Array;
}

export interface Tasks {
  readonly length: number;
  /** By position, from 0. */
  at(index: number): Task;
  /** Digest over all rows, hex. */
  readonly sha256: string;
}

/** Tasks that cannot be used, in the words of a problem with a setting. */
export class UnsuitableTasks extends Error {
  readonly said: { readonly expected: string; readonly received: string; readonly suggestion?: string };

  constructor(said: UnsuitableTasks['said'], cause?: unknown) {
    super(`expected ${said.expected}; got ${said.received}`, { cause });
    this.said = said;
  }
}

/** Where files of a row may go: below the work folder, spelt without detours. */
export function isInsideWorkFolder(name: string): boolean {
  const isPlain = name !== '' && !name.includes('\0') && !name.includes('\\') && !path.posix.isAbsolute(name);
  return isPlain && path.posix.normalize(name) === name && !name.startsWith('..') && !name.endsWith('/');
}

const contents = z.union([z.string(), z.strictObject({ base64: z.base64() })]);
const fileTable = z.record(z.string().refine(isInsideWorkFolder), contents);
const message = z.looseObject({ role: z.enum(['system', 'user', 'assistant', 'tool']) });
const Row = z.looseObject({
  prompt: z.union([z.string().min(1), z.array(message).min(1)]).optional(),
  task: z.string().min(1).optional(),
  answer: z.union([z.string(), z.number(), z.boolean()]).nullish(),
  files: fileTable.nullish(),
  score_files: fileTable.nullish(),
  info: z.record(z.string(), z.unknown()).nullish(),
  image: z.string().min(1).nullish(),
});

const rowShape =
  '{"prompt": …} or {"task": …}, a text, or messages; and where there are any "answer", "files": {"PATH": "TEXT"}, "score_files", "info", "image"';
/** Most problems reported for one source. */
const problemsMax = 10;

/** All tasks of a source, each checked. Throws `UnsuitableTasks` with the file and line of each that is wrong. */
export async function readTasks(source: TaskSource): Promise<Tasks> {
  const rows: string[] = [];
  const problems: string[] = [];
  let bytesLeft = tasksBytesMax;
  for (const file of filesOf(source)) {
    const { lines, sizeBytes } = await linesOf(file, bytesLeft);
    bytesLeft -= sizeBytes;
    for (const [index, line] of lines.entries()) {
      if (line.trim() === '') continue;
      const wrong = whatIsWrong(line);
      if (wrong === null) rows.push(line);
      else problems.push(`  ${file}:${index + 1}: ${tellsContent() ? wrong : 'another'}`);
    }
  }
  if (problems.length > 0) {
    const more = problems.length > problemsMax ? [`  … and ${problems.length - problemsMax} more`] : [];
    const received = ['', ...problems.slice(0, problemsMax), ...more].join('\n');
    const suggestion = tellsContent() ? {} : { suggestion: howToBeTold };
    throw new UnsuitableTasks({ expected: `in each row ${rowShape}`, received, ...suggestion });
  }
  if (rows.length === 0)
    throw new UnsuitableTasks({ expected: `at least one row with ${rowShape}`, received: `${source.path}, which is empty` }); // prettier-ignore
  return {
    length: rows.length,
    sha256: sha256(Buffer.from(rows.join('\n'))),
    at(index) {
      const row = rows[index];
      if (row === undefined) throw new RangeError(`Task ${index} of ${rows.length}.`);
      return taskOf(parseExact(row) as z.infer<typeof Row>);
    },
  };
}

function filesOf({ path: name, hub }: TaskSource): readonly string[] {
  if (hub === undefined) return [name];
  const found = findCachedDataset({ cache: hubSettings().cache }, { id: name, ...hub });
  if (found !== null) return found.files;
  const { subset, split } = hub;
  const options = `${subset === null ? '' : ` --subset ${subset}`}${split === 'train' ? '' : ` --split ${split}`}`;
  throw new UnsuitableTasks({
    expected: 'a dataset that is here',
    received: `${name} (${partName(hub)}), which is not in ${hubSettings().cache}`,
    suggestion: `fetch it: npx ratchet-rl model get --dataset ${name}${options}`,
  });
}

async function linesOf(file: string, bytesMax: number): Promise<RowLines> {
  try {
    return await readRowLines(file, bytesMax);
  } catch (cause) {
    if (!(cause instanceof UnreadableRows)) throw cause;
    throw new UnsuitableTasks({ expected: 'a file with rows of JSON, or of Parquet', received: cause.message }, cause);
  }
}

/** The problem with a row, in words; null = it is a task. */
function whatIsWrong(line: string): string | null {
  let raw: unknown;
  try {
    raw = JSON.parse(line);
  } catch {
    return 'no JSON';
  }
  if (typeof raw !== 'object' || raw === null || Array.isArray(raw)) return 'no object';
  const parsed = Row.safeParse(raw);
  if (!parsed.success) return problemOf(parsed.error.issues[0]!);
  const { prompt, task, files, score_files: scoreFiles } = parsed.data;
  if (prompt === undefined && task === undefined)
    return `neither "prompt" nor "task", only ${Object.keys(raw).slice(0, 5).join(', ') || 'an empty object'}`;
  const sizeBytes = [...Object.values(files ?? {}), ...Object.values(scoreFiles ?? {})].reduce(
    (sum, file) => sum + bytesOf(file).byteLength,
    0,
  );
  return sizeBytes > taskFileBytesMax ? `files of ${sizeBytes} bytes, more than ${taskFileBytesMax}` : null;
}

function problemOf({ path: at, message: said }: z.core.$ZodIssue): string {
  const [first, name] = at.map(String);
  const isPath = (first === 'files' || first === 'score_files') && name !== undefined && at.length === 2;
  if (isPath && !isInsideWorkFolder(name))
    return `${first}: ${JSON.stringify(name)}, expected a path below the work folder, such as "src/main.py"`;
  return `${at.map(String).join('.')}: ${said}`;
}

function taskOf(row: z.infer<typeof Row>): Task {
  const { answer, files, score_files: scoreFiles, info, image, prompt, task } = row;
  const { answer: _, score_files: __, ...told } = row;
  return {
    prompt: (prompt ?? task)! as string | readonly WrittenMessage[],
    answer: answer === undefined || answer === null ? '' : String(answer),
    info: info ?? undefined,
    image: image ?? undefined,
    files: taskFiles(files),
    scoreFiles: taskFiles(scoreFiles),
    told: told as Task['told'],
    row: row as Task['row'],
  };
}

function taskFiles(table: z.infer<typeof fileTable> | null | undefined): TaskFile[] {
  return Object.entries(table ?? {}).map(([name, content]) => ({ path: name, bytes: bytesOf(content) }));
}

function bytesOf(content: z.infer<typeof contents>): Uint8Array {
  return typeof content === 'string' ? Buffer.from(content) : Buffer.from(content.base64, 'base64');
}

/** The example of a task, as runs and evaluations show it. */
export function rowOfTask({ prompt, answer, info }: Task): DatasetRow {
  return { prompt, answer, ...present({ info }) };
}

/** A task as a file: JSON as it was written, with its position. */
export function taskJson(id: number, row: Task['told']): Uint8Array {
  return Buffer.from(`${stringifyExact({ id, ...row })}\n`);
}
