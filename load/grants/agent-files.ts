import { realpath } from 'node:fs/promises';
import path from 'node:path';
import type { CodeRef, EnvironmentSpec } from '../../config/run-spec.ts';
import type { ProgramSpec } from '../../config/settings/agents.ts';
import type { KeyPath } from '../../config/toml/positions.ts';
import { readCopiedFiles, Uncopied } from '../../backends/environments/agent/copied-files.ts';
import { type CommonFiles, fileAndFolder, treeOf } from '../../backends/environments/agent/task-rows.ts';
import { heldOutOf, readTasks, UnsuitableTasks } from '../../backends/environments/agent/tasks.ts';
import { realOr } from '../../host/file-owners.ts';
import { trustedData } from '../../host/trusted-files.ts';
import { type Folders, resolvePath } from '../paths.ts';
import { Refused, type Tried } from '../refused.ts';
import { isBelow } from '../sent-files.ts';
import { readCode } from './named-code.ts';

/** Files that agents of a run file name: tasks, files of sandboxes, functions that score. Nothing of them is run here. */

interface ReadAgents<Trained, Evaluated> {
  readonly trained: Trained[];
  readonly evaluated: Evaluated[];
  /** Files that were read, with their digests. */
  readonly files: readonly Pick<CodeRef, 'path' | 'sha256'>[];
  /** Functions that score, and providers of sandboxes, which a run executes; those that could be read. */
  readonly functions: readonly CodeRef[];
  readonly warnings: readonly string[];
}

type WithProgram = Pick<EnvironmentSpec, 'program'>;

/** The environments of a run with absolute paths and digests of their agents' files. */
export async function readAgents<Trained extends WithProgram, Evaluated extends WithProgram>(
  { trained, evaluated }: { readonly trained: readonly Trained[]; readonly evaluated: readonly Evaluated[] },
  folders: Folders,
  tried: Tried,
): Promise<ReadAgents<Trained, Evaluated>> {
  const files: Pick<CodeRef, 'path' | 'sha256'>[] = [];
  const functions: CodeRef[] = [];
  const outside = new Set<string>();
  const read = async <Entry extends WithProgram>(
    entry: Entry,
    isTrained: boolean,
    ...at: KeyPath[]
  ): Promise<Entry> => {
    if (entry.program === undefined) return entry;
    const look: Look = (key, looking) =>
      tried(
        at.map((table) => [...table, ...key]),
        looking,
      );
    const { program, counts } = await readProgram(entry.program, folders, look);
    const key = program.evalShare === 0 ? 'tasks' : 'eval_share';
    await look([key], async () => requireTasks(program, counts, isTrained));
    const { tasks, evalTasks, sandbox, score } = program;
    const sources = [tasks, ...(evalTasks ? [evalTasks] : [])].filter(({ hub }) => hub === undefined);
    const copied = [sandbox.files, score.files].flatMap((file) => file ?? []);
    files.push(...sources, ...copied);
    for (const file of copied) if (file.sha256 !== null && isOutside(file.path, folders)) outside.add(file.path);
    const { provider } = sandbox.pool;
    const code = [score.function, provider.kind === 'module' ? provider.import : null];
    functions.push(...code.flatMap((ref) => (ref && ref.sha256 !== null ? [ref] : [])));
    return { ...entry, program };
  };
  return {
    trained: await Promise.all(trained.map((entry, i) => read(entry, true, ['env', i]))),
    // defaults to the trained environments
    evaluated: await Promise.all(evaluated.map((entry, i) => read(entry, false, ['eval', 'env', i], ['env', i]))),
    files,
    functions: [...new Map(functions.map((ref) => [ref.path, ref])).values()],
    warnings: [...outside].map(copiesFromOutside),
  };
}

type Look = <T>(key: KeyPath, look: () => Promise<T>) => Promise<T | null>;

/** Tasks of a program; null where they could not be read. */
interface Counts {
  readonly tasks: number | null;
  /** Also null where it names no tasks that are held out. */
  readonly evalTasks: number | null;
}

async function readProgram(
  program: ProgramSpec,
  folders: Folders,
  look: Look,
): Promise<{ readonly program: ProgramSpec; readonly counts: Counts }> {
  const { tasks, evalTasks, sandbox, score } = program;
  const copied = async (written: ProgramSpec['sandbox']['files'], table: string): Promise<ReadFiles> =>
    (written && (await look([table, 'files'], () => readFiles(written, folders)))) ?? { files: written, names: [] };
  const [inSandbox, inScore] = [await copied(sandbox.files, 'sandbox'), await copied(score.files, 'score')];
  const common = { begins: treeOf(inSandbox.names), scored: treeOf([...inSandbox.names, ...inScore.names]) };
  await look(['score', 'files'], async () => requireApart(common, inScore.names));
  const source = async (written: ProgramSpec['tasks'], key: string) =>
    (await look([key], () => readSource(written, folders, sandbox, common))) ?? { source: written, count: null };
  const scored = score.function;
  const code = scored && (await look(['score', 'function'], () => readCode(scored, folders.folder)));
  const { provider } = sandbox.pool;
  const own = provider.kind === 'module' && (await look(['sandbox', 'import'], () => readCode(provider.import, folders.folder))); // prettier-ignore
  const [train, held] = [await source(tasks, 'tasks'), evalTasks && (await source(evalTasks, 'eval_tasks'))];
  return {
    counts: { tasks: train.count, evalTasks: held && held.count },
    program: {
      ...program,
      tasks: train.source,
      evalTasks: held && held.source,
      sandbox: {
        ...sandbox,
        files: inSandbox.files,
        pool: own ? { ...sandbox.pool, provider: { ...provider, import: own } } : sandbox.pool,
      },
      score: { ...score, files: inScore.files, function: scored && { ...scored, ...code } },
    },
  };
}

/** A share of few tasks may be none of them, or all. */
function requireTasks(program: ProgramSpec, { tasks }: Counts, isTrained: boolean): void {
  if (tasks === null || program.evalTasks !== null) return;
  const held = heldOutOf(tasks, program);
  const share = `${program.evalShare} of ${tasks} ${tasks === 1 ? 'task' : 'tasks'}, which is`;
  if (isTrained && held === tasks)
    throw new Refused({ expected: 'a share that leaves a task to train on', received: `${share} all of them` });
  if (held > 0 || (isTrained && program.evalShare === 0)) return;
  throw new Refused({
    expected: 'eval_tasks, or an eval_share of at least one task: held-out tasks for its evaluation',
    received: program.evalShare === 0 ? 'neither' : `${share} none`,
  });
}

async function readSource(
  written: ProgramSpec['tasks'],
  folders: Folders,
  sandbox: ProgramSpec['sandbox'],
  common: CommonFiles,
): Promise<{ readonly source: ProgramSpec['tasks']; readonly count: number }> {
  const file = written.hub === undefined ? trustedData(resolvePath(written.path, folders), 'The tasks') : written.path;
  try {
    const { sha256, length } = await readTasks({ ...written, path: file }, sandbox, common);
    return { source: { ...written, path: file, sha256 }, count: length };
  } catch (cause) {
    if (cause instanceof UnsuitableTasks) throw new Refused(cause.said, cause);
    throw cause;
  }
}

type Copied = NonNullable<ProgramSpec['sandbox']['files']>;

/** Files of a sandbox with their names in it; none where they could not be read. */
interface ReadFiles {
  readonly files: Copied | null;
  readonly names: readonly string[];
}

/** Files of the score come to those of the sandbox, in the same folder. */
function requireApart({ begins }: CommonFiles, names: readonly string[]): void {
  const both = fileAndFolder(begins, names);
  if (both === null) return;
  throw new Refused({
    expected: `${JSON.stringify(both.name)} to be a file or a folder`,
    received: `both, since ${JSON.stringify(both.inside)} lies in it, with the files that [env.sandbox] names`,
  });
}

/**
 * Files that the program of a sandbox gets, which may come from elsewhere only by an absolute path: a person sees it, and
 * has to grant it where a stored run names it.
 */
async function readFiles(written: Copied, folders: Folders): Promise<ReadFiles> {
  const file = trustedData(resolvePath(written.path, folders), 'Files of a sandbox');
  const refused = (received: string, cause?: unknown): Refused =>
    new Refused({ expected: 'a file, or a folder with the files of a sandbox', received }, cause);
  const real = await realpath(file).catch(() => file); // what is missing is told below
  const leadsOut = !path.isAbsolute(written.path) && [file, real].some((place) => isOutside(place, folders));
  if (leadsOut) throw outOfProject(written.path, real);
  if (isBelow(real, await realpath(folders.projectFolder)))
    throw refused(`${file}, which holds the whole project, with its runs and what .ratchet keeps`);
  try {
    const { files, sha256 } = readCopiedFiles(file);
    return { files: { path: file, sha256 }, names: files.map(({ path: name }) => name) };
  } catch (cause) {
    if (!(cause instanceof Uncopied)) throw cause;
    throw refused(cause.message, cause);
  }
}

function outOfProject(written: string, real: string): Refused {
  return new Refused({
    expected: 'a file or a folder in the project, or beside or below the config',
    received: `${JSON.stringify(written)}, which leads to ${real}`,
    suggestion: 'if these files are meant, name them by their absolute path',
  });
}

/** Neither in the project nor below the config. */
function isOutside(file: string, { folder, projectFolder }: Folders): boolean {
  return ![folder, projectFolder].some((root) => isBelow(root, file) || isBelow(realOr(root, root), file));
}

function copiesFromOutside(file: string): string {
  return `programs in sandboxes of this run get files from outside the project: ${file}. Look at them before you start a config that is not yours.`;
}
