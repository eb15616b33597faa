import { parseExact, stringifyExact } from '../../../core/exact-json.ts';
import type { JsonValue } from '../../../core/json-value.ts';
import { tasksBytesMax } from '../../../core/limits.ts';
import { present } from '../../../core/present.ts';
import type { WrittenMessage } from '../../../core/rl/rollout/message-parts.ts';
import type { AgentProgram, ProgramSandbox, TaskSource } from '../../../core/settings/programs.ts';
import { sha256 } from '../../../store/file-store.ts';
import { findCachedDataset, partName } from '../../hub/get-dataset.ts';
import { hubSettings } from '../../hub/hub-settings.ts';
import { readRowLines, type RowLines, UnreadableRows } from '../../rows/read-row-lines.ts';
import { howToBeTold, tellsContent } from '../../untold.ts';
import type { DatasetRow } from '../datasets.ts';
import { bytesOf, type CommonFiles, type TaskRow, treeOf, whatIsWrong } from './task-rows.ts';

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

const noFiles: CommonFiles = { begins: treeOf([]), scored: treeOf([]) };
const rowShape =
  '{"prompt": …} or {"task": …}, a text, or messages; and where there are any "answer", "files": {"PATH": "TEXT"}, "score_files", "info", "image"';
/** Most problems reported for one source. */
const problemsMax = 10;

/**
 * All tasks of a source, each checked: for sandboxes of its kind, with the files that all of them get. Throws
 * `UnsuitableTasks` with the file and line of each that is wrong.
 */
export async function readTasks(
  source: TaskSource,
  sandbox: Pick<ProgramSandbox, 'pool' | 'image'>,
  common: CommonFiles = noFiles,
): Promise<Tasks> {
  const rows: string[] = [];
  const problems: string[] = [];
  let bytesLeft = tasksBytesMax;
  for (const file of filesOf(source)) {
    const { lines, sizeBytes } = await linesOf(file, bytesLeft);
    bytesLeft -= sizeBytes;
    for (const [index, line] of lines.entries()) {
      if (line.trim() === '') continue;
      const wrong = whatIsWrong(line, sandbox, common);
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
      return taskOf(parseExact(row) as TaskRow);
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

function taskOf(row: TaskRow): Task {
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

function taskFiles(table: TaskRow['files']): TaskFile[] {
  return Object.entries(table ?? {}).map(([name, content]) => ({ path: name, bytes: bytesOf(content) }));
}

/** The example of a task, as runs and evaluations show it. */
export function rowOfTask({ prompt, answer, info }: Task): DatasetRow {
  return { prompt, answer, ...present({ info }) };
}

/** A task as a file: JSON as it was written, with its position. */
export function taskJson(id: number, row: Task['told']): Uint8Array {
  return Buffer.from(`${stringifyExact({ id, ...row })}\n`);
}

/** How many of the tasks are held out, from their end. */
export function heldOutOf(tasks: number, { evalShare }: Pick<AgentProgram, 'evalShare'>): number {
  return Math.round(tasks * evalShare);
}
