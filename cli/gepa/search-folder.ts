import { existsSync } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { firstLineage, promptBranchWorkflowId, promptSearchWorkflowId } from '../../core/names.ts';
import { readRegularText } from '../../engine/regular-file.ts';

/** A candidate as its row of `results.jsonl` tells it. */
export interface ShownCandidate {
  readonly prompt: string;
  readonly parents: readonly number[];
  /** [validation example]; null = not scored. */
  readonly scores: readonly (number | null)[];
}

/** The folder of a search, ours or verifiers' own. */
export interface SearchFolder {
  readonly folder: string;
  readonly environment: string;
  readonly model: string;
  readonly reflectionModel: string;
  readonly best: number;
  readonly calls: number | null;
  readonly maxCalls: number | null;
  /** null where the search has not said: it goes on, or was begun by another program. */
  readonly stopReason: string | null;
  readonly comparison: {
    readonly examples: number;
    readonly before: number | null;
    readonly after: number | null;
  } | null;
  /** Of a branch: winner and prompt in use on the newest version of its run. */
  readonly trial: (NonNullable<SearchFolder['comparison']> & { readonly version: string }) | null;
  readonly candidates: readonly ShownCandidate[];
}

/** null where there are no candidates in it. */
export async function readSearchFolder(folder: string): Promise<SearchFolder | null> {
  const rows = await readRegularText(path.join(folder, 'results.jsonl')).catch(() => null);
  if (rows === null) return null;
  const infos = rows
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => asRecord(asRecord(JSON.parse(line))['info']))
    .filter((info) => info['sample_type'] === 'gepa_candidate');
  if (infos.length === 0) return null;
  const metadata = asRecord(JSON.parse(await readRegularText(path.join(folder, 'metadata.json')).catch(() => '{}')));
  const config = asRecord(metadata['config']);
  const own = asRecord(metadata['ratchet']);
  const trial = await readRegularText(path.join(folder, 'trial.json')).catch(() => null);
  const size = Math.max(...infos.flatMap((info) => Object.keys(asRecord(info['val_subscores'])).map(Number)), -1) + 1;
  const best = infos.findIndex((info) => info['is_best'] === true);
  return {
    folder,
    environment: textIn(metadata['env_id']),
    model: textIn(metadata['model']),
    reflectionModel: textIn(metadata['reflection_model']),
    best: Math.max(0, best),
    calls: numberIn(metadata['total_metric_calls']),
    maxCalls: numberIn(config['max_metric_calls']),
    stopReason: typeof own['stop_reason'] === 'string' ? own['stop_reason'] : null,
    comparison: (own['comparison'] as SearchFolder['comparison'] | undefined) ?? null,
    trial: trial === null ? null : (JSON.parse(trial) as SearchFolder['trial']),
    candidates: infos.map((info) => {
      const scores = asRecord(info['val_subscores']);
      return {
        prompt: textIn(info['system_prompt']),
        parents: (info['parent_candidate_idxs'] as number[] | undefined) ?? [],
        scores: Array.from({ length: size }, (_, i) => numberIn(scores[String(i)])),
      };
    }),
  };
}

/** The folder that a name stands for: itself, or the search of this id, or the newest of an environment or of a run's branches. */
export async function findSearchFolder(name: string, projectFolder: string): Promise<string> {
  const direct = path.resolve(projectFolder, name);
  if (existsSync(path.join(direct, 'results.jsonl'))) return direct;
  const all = await searchesOf(projectFolder);
  const below = all.filter(({ folder }) => folder.startsWith(`${direct}${path.sep}`));
  const named = all.filter(({ folder }) => namesOf(folder, projectFolder).includes(name));
  const ofRun = all.filter(({ folder }) => isBranchOf(folder, name, projectFolder));
  const [newest] = [...below, ...named, ...ofRun].sort((a, b) => b.at - a.at);
  if (newest !== undefined) return newest.folder;
  const known = all.slice(0, 5).map(({ folder }) => `\n  ${path.relative(projectFolder, folder)}`);
  const there =
    known.length === 0
      ? ' There is none in outputs/gepa, environments/*/outputs/gepa or outputs/*/gepa.'
      : ` There are:${known.join('')}`;
  throw new RatchetError(
    'ConfigInvalid',
    `${name}: expected the folder of a search, its id, an environment that has been searched for, or a run that branched (one that lies in a bucket is not looked into).${there}`,
  );
}

/** What a search answers to: its id, its workflow, what was searched for, also as the file of an environment ("./shout.ts"). */
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

async function searchesOf(projectFolder: string): Promise<{ readonly folder: string; readonly at: number }[]> {
  const environments = path.join(projectFolder, 'environments');
  const bases = [
    path.join(projectFolder, 'outputs', 'gepa'),
    ...(await foldersIn(environments)).map((folder) => path.join(folder, 'outputs', 'gepa')),
  ];
  const groups = (await Promise.all([...bases, ...(await branchBases(projectFolder))].map(foldersIn))).flat();
  const folders = (await Promise.all(groups.map(foldersIn))).flat();
  const found = folders.filter((folder) => existsSync(path.join(folder, 'results.jsonl')));
  const dated = found.map(async (folder) => ({ folder, at: (await stat(path.join(folder, 'results.jsonl'))).mtimeMs }));
  return (await Promise.all(dated)).sort((a, b) => b.at - a.at);
}

/** Where the branches of runs lie: of the first lineage, and of later ones. */
async function branchBases(projectFolder: string): Promise<string[]> {
  const runs = await foldersIn(path.join(projectFolder, 'outputs'));
  const lineages = (await Promise.all(runs.map((run) => foldersIn(path.join(run, 'lineages'))))).flat();
  return [...runs.filter((run) => existsSync(path.join(run, 'run.json'))), ...lineages].map((folder) =>
    path.join(folder, 'gepa'),
  );
}

function isBranchOf(folder: string, run: string, projectFolder: string): boolean {
  return folder.startsWith(`${path.join(projectFolder, 'outputs', run)}${path.sep}`);
}

/** As its workflow is called; null where it is no branch's. */
function branchName(folder: string, projectFolder: string): string | null {
  const [run, ...rest] = path.relative(path.join(projectFolder, 'outputs'), folder).split(path.sep);
  const lineage = rest[0] === 'lineages' ? rest[1]! : firstLineage;
  const [gepa, search = '', version = ''] = rest[0] === 'lineages' ? rest.slice(2) : rest;
  const found = /^step_(\d+)(?:\.r(\d+))?$/.exec(version);
  if (run === undefined || gepa !== 'gepa' || found === null) return null;
  const environment = search.slice(0, search.lastIndexOf('--'));
  return promptBranchWorkflowId(run, environment, lineage, { step: Number(found[1]), replay: Number(found[2] ?? 0) });
}

async function foldersIn(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
  return entries.filter((entry) => entry.isDirectory()).map((entry) => path.join(folder, entry.name));
}

function asRecord(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
}

function textIn(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

function numberIn(value: unknown): number | null {
  return typeof value === 'number' ? value : null;
}
