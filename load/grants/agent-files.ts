import type { CodeRef, EnvironmentSpec } from '../../config/run-spec.ts';
import type { ProgramSpec } from '../../config/settings/agents.ts';
import type { KeyPath } from '../../config/toml/positions.ts';
import { readCopiedFiles, Uncopied } from '../../backends/environments/agent/copied-files.ts';
import { readTasks, UnsuitableTasks } from '../../backends/environments/agent/tasks.ts';
import { trustedData } from '../../host/trusted-files.ts';
import { type Folders, resolvePath } from '../paths.ts';
import { Refused, type Tried } from '../refused.ts';
import { readCode } from './named-code.ts';

/** Files that agents of a run file name: tasks, files of sandboxes, functions that score. Nothing of them is run here. */

interface ReadAgents<Trained, Evaluated> {
  readonly trained: Trained[];
  readonly evaluated: Evaluated[];
  /** Files that were read, with their digests. */
  readonly files: readonly Pick<CodeRef, 'path' | 'sha256'>[];
  /** Functions that score, and providers of sandboxes, which a run executes. */
  readonly functions: readonly CodeRef[];
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
  const read = async <Entry extends WithProgram>(entry: Entry, ...at: KeyPath[]): Promise<Entry> => {
    if (entry.program === undefined) return entry;
    const program = await readProgram(entry.program, folders, (key, look) =>
      tried(
        at.map((table) => [...table, ...key]),
        look,
      ),
    );
    const { tasks, evalTasks, sandbox, score } = program;
    const sources = [tasks, evalTasks].filter((source) => source !== null && source.hub === undefined);
    files.push(...[...sources, sandbox.files, score.files].filter((file) => file !== null));
    if (score.function !== null) functions.push(score.function);
    if (sandbox.pool.provider.kind === 'module') functions.push(sandbox.pool.provider.import);
    return { ...entry, program };
  };
  return {
    trained: await Promise.all(trained.map((entry, i) => read(entry, ['env', i]))),
    // defaults to the trained environments
    evaluated: await Promise.all(evaluated.map((entry, i) => read(entry, ['eval', 'env', i], ['env', i]))),
    files,
    functions: [...new Map(functions.map((ref) => [ref.path, ref])).values()],
  };
}

type Look = <T>(key: KeyPath, look: () => Promise<T>) => Promise<T | null>;

async function readProgram(program: ProgramSpec, folders: Folders, look: Look): Promise<ProgramSpec> {
  const { tasks, evalTasks, sandbox, score } = program;
  const source = async (written: ProgramSpec['tasks'], key: string) =>
    (await look([key], () => readSource(written, folders))) ?? written;
  const copied = async (written: ProgramSpec['sandbox']['files'], table: string) =>
    written && ((await look([table, 'files'], () => readFiles(written, folders))) ?? written);
  const scored = score.function;
  const code = scored && (await look(['score', 'function'], () => readCode(scored, folders.folder)));
  const { provider } = sandbox.pool;
  const own = provider.kind === 'module' && (await look(['sandbox', 'import'], () => readCode(provider.import, folders.folder))); // prettier-ignore
  return {
    ...program,
    tasks: await source(tasks, 'tasks'),
    evalTasks: evalTasks && (await source(evalTasks, 'eval_tasks')),
    sandbox: {
      ...sandbox,
      files: await copied(sandbox.files, 'sandbox'),
      pool: own ? { ...sandbox.pool, provider: { ...provider, import: own } } : sandbox.pool,
    },
    score: { ...score, files: await copied(score.files, 'score'), function: scored && { ...scored, ...code } },
  };
}

async function readSource(written: ProgramSpec['tasks'], folders: Folders): Promise<ProgramSpec['tasks']> {
  const path = written.hub === undefined ? trustedData(resolvePath(written.path, folders), 'The tasks') : written.path;
  try {
    return { ...written, path, sha256: (await readTasks({ ...written, path })).sha256 };
  } catch (cause) {
    if (cause instanceof UnsuitableTasks) throw new Refused(cause.said, cause);
    throw cause;
  }
}

function readFiles(
  written: NonNullable<ProgramSpec['sandbox']['files']>,
  folders: Folders,
): Promise<NonNullable<ProgramSpec['sandbox']['files']>> {
  const path = trustedData(resolvePath(written.path, folders), 'Files of a sandbox');
  try {
    return Promise.resolve({ path, sha256: readCopiedFiles(path).sha256 });
  } catch (cause) {
    if (!(cause instanceof Uncopied)) throw cause;
    throw new Refused({ expected: 'a file, or a folder with the files of a sandbox', received: cause.message }, cause);
  }
}
