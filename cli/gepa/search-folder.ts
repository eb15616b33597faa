import { existsSync } from 'node:fs';
import { lstat, readdir } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { firstLineage, promptBranchWorkflowId, promptSearchWorkflowId } from '../../core/names.ts';
import { readRegular } from '../../host/regular-file.ts';
import { searchFiles, type SearchResults, searchResultsIn } from '../../runs/searches/search-results.ts';

/** A search with the folder that it was read from. */
export interface SearchFolder extends SearchResults {
  readonly folder: string;
}

/** null without candidates. Throws for files that cannot be read, with file and line. */
export async function readSearchFolder(folder: string): Promise<SearchFolder | null> {
  const [rows, about, trial] = await Promise.all(
    [searchFiles.rows, searchFiles.about, searchFiles.trial].map((name) => bytesOf(folder, name)),
  );
  const found = searchResultsIn({ rows: rows!, about: about!, trial: trial! }, `${folder}${path.sep}`);
  return found && { folder, ...found };
}

/** null for a file that is not there. */
async function bytesOf(folder: string, name: string): Promise<Buffer | null> {
  return readRegular(path.join(folder, name), undefined, { within: [folder] }).catch((error: unknown) => {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return null;
    throw error;
  });
}

/**
 * Folder by a name: the folder itself, the search of this id, or the newest of an environment or of a run's branches.
 * `alsoBegun`: also one that has not written its candidates yet.
 */
export async function findSearchFolder(
  name: string,
  projectFolder: string,
  { alsoBegun = false }: { readonly alsoBegun?: boolean } = {},
): Promise<string> {
  const direct = path.resolve(projectFolder, name);
  if (await isThere(path.join(direct, searchFiles.rows))) return direct;
  if (alsoBegun && (await isThere(path.join(direct, 'search')))) return direct;
  const { all, without } = await searchesOf(projectFolder);
  const isMeant = (folder: string): boolean =>
    folder.startsWith(`${direct}${path.sep}`) ||
    namesOf(folder, projectFolder).includes(name) ||
    isBranchOf(folder, name, projectFolder);
  const newest = all.find(({ folder }) => isMeant(folder));
  if (newest !== undefined) return newest.folder;
  const unwritten = without.find((folder) => folder === direct || isMeant(folder));
  if (unwritten !== undefined && alsoBegun) return unwritten;
  if (unwritten !== undefined)
    throw new RatchetError(
      'ConfigInvalid',
      `${path.join(unwritten, searchFiles.rows)}: expected the candidates of ${name}, found nothing. A search writes it when it ends; of one that has ended, restore it from a copy.`,
    );
  const known = all.slice(0, 5).map(({ folder }) => `\n  ${path.relative(projectFolder, folder)}`);
  const there =
    known.length === 0
      ? ' There is none in outputs/gepa, environments/*/outputs/gepa or outputs/*/gepa.'
      : ` There are:${known.join('')}`;
  throw new RatchetError(
    'ConfigInvalid',
    `${name}: expected the folder of a search, its id, an environment that has been searched for, or a run that branched (one that is in a bucket is not looked into).${there}`,
  );
}

/** Names under which a search is found: its id, its workflow, and its environment, also as a file ("./shout.ts"). */
function namesOf(folder: string, projectFolder: string): (string | null)[] {
  const [id, group] = [path.basename(folder), path.basename(path.dirname(folder))];
  const environment = group.split('--', 1)[0]!;
  return [
    branchName(folder, projectFolder),
    id,
    group,
    environment,
    `./${environment}.ts`,
    promptSearchWorkflowId(environment, id),
  ];
}

/** The newest first; and folders of searches that have not written their candidates, or lost them. */
async function searchesOf(
  projectFolder: string,
): Promise<{ readonly all: readonly { readonly folder: string; readonly at: number }[]; readonly without: string[] }> {
  const environments = path.join(projectFolder, 'environments');
  const bases = [
    path.join(projectFolder, 'outputs', 'gepa'),
    ...(await foldersIn(environments)).map((folder) => path.join(folder, 'outputs', 'gepa')),
  ];
  const groups = (await Promise.all([...bases, ...(await branchBases(projectFolder))].map(foldersIn))).flat();
  const folders = (await Promise.all(groups.map(foldersIn))).flat();
  const dated = await Promise.all(
    folders.map(async (folder) => {
      const results = await lstat(path.join(folder, searchFiles.rows)).catch(() => null);
      return { folder, at: results?.mtimeMs ?? null };
    }),
  );
  const all = dated.flatMap(({ folder, at }) => (at === null ? [] : [{ folder, at }]));
  const without = dated.filter(({ folder, at }) => at === null && existsSync(path.join(folder, 'search')));
  return { all: all.sort((a, b) => b.at - a.at), without: without.map(({ folder }) => folder) };
}

/** Folders of searches that runs started: in the first lineage, and in later ones. */
async function branchBases(projectFolder: string): Promise<string[]> {
  const runs = await foldersIn(path.join(projectFolder, 'outputs'));
  const lineages = (await Promise.all(runs.map((run) => foldersIn(path.join(run, 'lineages'))))).flat();
  return [...runs, ...lineages].map((folder) => path.join(folder, 'gepa'));
}

function isBranchOf(folder: string, run: string, projectFolder: string): boolean {
  return folder.startsWith(`${path.join(projectFolder, 'outputs', run)}${path.sep}`);
}

/** Workflow id of a search that a run started; null for other searches. */
function branchName(folder: string, projectFolder: string): string | null {
  const [run, ...rest] = path.relative(path.join(projectFolder, 'outputs'), folder).split(path.sep);
  const lineage = rest[0] === 'lineages' ? rest[1]! : firstLineage;
  const [gepa, search = '', version = ''] = rest[0] === 'lineages' ? rest.slice(2) : rest;
  const found = /^step_(\d+)(?:\.r(\d+))?$/.exec(version);
  if (run === undefined || gepa !== 'gepa' || found === null) return null;
  const environment = search.slice(0, search.lastIndexOf('--'));
  return promptBranchWorkflowId(run, environment, lineage, { step: Number(found[1]), replay: Number(found[2] ?? 0) });
}

/** True also for a broken link, so that reading it reports the problem. */
async function isThere(file: string): Promise<boolean> {
  return (await lstat(file).catch(() => null)) !== null;
}

async function foldersIn(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
  return entries.filter((entry) => entry.isDirectory()).map((entry) => path.join(folder, entry.name));
}
