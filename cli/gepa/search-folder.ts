import { existsSync } from 'node:fs';
import { lstat, readdir } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { firstLineage, promptBranchWorkflowId, promptSearchWorkflowId } from '../../core/names.ts';
import { decodeJson, decodeRows, isRecord, type Shape } from '../../backends/store/objects.ts';
import { readRegular } from '../../engine/regular-file.ts';

const resultsName = 'results.jsonl';

/** A candidate as its row of `results.jsonl` tells it. */
interface ShownCandidate {
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

/** null where there are no candidates in it. What is there and cannot be read is refused by its file and line. */
export async function readSearchFolder(folder: string): Promise<SearchFolder | null> {
  const [rows, about, tried] = await Promise.all(
    [resultsName, 'metadata.json', 'trial.json'].map((name) => bytesOf(path.join(folder, name))),
  );
  if (!rows) return null;
  const infos = decodeRows<{ readonly info?: unknown }>(rows, path.join(folder, resultsName), rowShape)
    .map(({ info }) => info)
    .filter(isCandidate);
  if (infos.length === 0) return null;
  const metadata = about
    ? decodeJson<Record<string, unknown>>(about, path.join(folder, 'metadata.json'), metadataShape)
    : {};
  const config = asRecord(metadata['config']);
  const own = asRecord(metadata['ratchet']);
  const size = Math.max(...infos.flatMap(({ val_subscores: scores = {} }) => Object.keys(scores).map(Number)), -1) + 1;
  const best = infos.findIndex((info) => info.is_best === true);
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
    trial: tried ? decodeJson(tried, path.join(folder, 'trial.json'), trialShape) : null,
    candidates: infos.map(
      ({ system_prompt: prompt, parent_candidate_idxs: parents = [], val_subscores: scores = {} }) => ({
        prompt: textIn(prompt),
        parents,
        scores: Array.from({ length: size }, (_, i) => numberIn(scores[String(i)])),
      }),
    ),
  };
}

/** What is read of a candidate's row, once `rowShape` has looked at it. */
interface CandidateInfo {
  readonly is_best?: unknown;
  readonly system_prompt?: unknown;
  readonly parent_candidate_idxs?: readonly number[];
  readonly val_subscores?: Readonly<Record<string, unknown>>;
}

/** More validation examples than anybody scores; each is a place in a list. */
const examplesMax = 1_000_000;

function isCandidate(info: unknown): info is CandidateInfo {
  return asRecord(info)['sample_type'] === 'gepa_candidate';
}

const rowShape: Shape = ({ info }) => {
  if (!isCandidate(info)) return {};
  const { parent_candidate_idxs: parents, val_subscores: scores } = info as Record<string, unknown>;
  const isExample = (key: string): boolean => /^\d+$/.test(key) && Number(key) < examplesMax;
  return {
    '"parent_candidate_idxs", a list of numbers':
      parents === undefined || (Array.isArray(parents) && parents.every((one) => typeof one === 'number')),
    '"val_subscores", a table by the number of the example':
      scores === undefined || (isRecord(scores) && Object.keys(scores).every(isExample)),
  };
};

const metadataShape: Shape = ({ ratchet }) => ({
  '"ratchet.comparison" with "examples", "before" and "after"': isComparison(asRecord(ratchet)['comparison'] ?? null),
});

const trialShape: Shape = (trial) => ({
  '"examples", "before", "after" and "version"': isComparison(trial) && typeof trial['version'] === 'string',
});

function isComparison(value: unknown): boolean {
  if (value === null) return true;
  const { examples, before, after } = asRecord(value);
  const isScore = (score: unknown): boolean => score === null || typeof score === 'number';
  return typeof examples === 'number' && isScore(before) && isScore(after);
}

/** null for a file that is not there. */
async function bytesOf(file: string): Promise<Buffer | null> {
  return readRegular(file).catch((error: unknown) => {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return null;
    throw error;
  });
}

/** The folder that a name stands for: itself, or the search of this id, or the newest of an environment or of a run's branches. */
export async function findSearchFolder(name: string, projectFolder: string): Promise<string> {
  const direct = path.resolve(projectFolder, name);
  if (await isThere(path.join(direct, resultsName))) return direct;
  const { all, without } = await searchesOf(projectFolder);
  const isMeant = (folder: string): boolean =>
    folder.startsWith(`${direct}${path.sep}`) ||
    namesOf(folder, projectFolder).includes(name) ||
    isBranchOf(folder, name, projectFolder);
  const newest = all.find(({ folder }) => isMeant(folder));
  if (newest !== undefined) return newest.folder;
  const unwritten = without.find((folder) => folder === direct || isMeant(folder));
  if (unwritten !== undefined)
    throw new RatchetError(
      'ConfigInvalid',
      `${path.join(unwritten, resultsName)}: expected the candidates of ${name}, found nothing. A search writes it when it ends; of one that has ended, restore it from a copy.`,
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
      const results = await lstat(path.join(folder, resultsName)).catch(() => null);
      return { folder, at: results?.mtimeMs ?? null };
    }),
  );
  const all = dated.flatMap(({ folder, at }) => (at === null ? [] : [{ folder, at }]));
  const without = dated.filter(({ folder, at }) => at === null && existsSync(path.join(folder, 'search')));
  return { all: all.sort((a, b) => b.at - a.at), without: without.map(({ folder }) => folder) };
}

/** Where the branches of runs lie: of the first lineage, and of later ones. */
async function branchBases(projectFolder: string): Promise<string[]> {
  const runs = await foldersIn(path.join(projectFolder, 'outputs'));
  const lineages = (await Promise.all(runs.map((run) => foldersIn(path.join(run, 'lineages'))))).flat();
  return [...runs, ...lineages].map((folder) => path.join(folder, 'gepa'));
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

/** Also as a link that leads nowhere: whoever reads it says so. */
async function isThere(file: string): Promise<boolean> {
  return (await lstat(file).catch(() => null)) !== null;
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
