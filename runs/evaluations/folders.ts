import { readdir, stat } from 'node:fs/promises';
import path from 'node:path';
import { readMetadata } from '../../core/eval/result-metadata.ts';
import { metadataOfConfig } from './episodes.ts';
import { type FoundEvaluations, type FoundEvaluation, namesFromFolder } from './evaluation.ts';
import { readRegularText } from '../../host/regular-file.ts';

/** Evaluations in folders, from `vf-eval`, `prime eval run`, `ratchet eval run`, and verifiers' v1. */

/** Depth of the search below a folder: `environments/ENV/outputs/evals/ENV--MODEL/ID`, a rescore of it below that, and one more. */
const depthMax = 11;
/** Below an evaluation: the same rollouts with other rewards (`rescoreKeys`). */
const rescoresFolder = 'rescores';
/** Folders that are never searched. */
const skipped = new Set([
  'node_modules',
  '.git',
  '.venv',
  '.ratchet',
  '__pycache__',
  'weights',
  'rollouts',
  'pendingAt',
  'batches',
]);

/** Folders below a project in which verifiers and Ratchet put evaluations. */
export async function defaultFolders(project: string): Promise<string[]> {
  const environments = await foldersIn(path.join(project, 'environments'));
  const below = environments.map((name) => path.join(project, 'environments', name, 'outputs'));
  return [path.join(project, 'outputs'), ...below];
}

/** All evaluations in a folder and below it, the newest first. Runs' folders are left to `runEvaluations`. */
export async function findEvaluations(folder: string, shownFrom = process.cwd()): Promise<FoundEvaluations> {
  const found: FoundEvaluation[] = [];
  const incomplete: FoundEvaluations['incomplete'][number][] = [];
  const changed = new Map<FoundEvaluation, number>();
  const visit = async (place: string, depth: number): Promise<void> => {
    const entries = await readdir(place, { withFileTypes: true }).catch(() => []);
    const names = new Set(entries.filter((entry) => !entry.isDirectory()).map(({ name }) => name));
    if (depth > 0 && names.has('run.json')) return;
    const opened = await openFolder(place, names, shownFrom);
    const why = typeof opened === 'string' ? opened : null;
    if (opened !== null && typeof opened !== 'string') {
      const file = await stat(path.join(place, opened.file)).catch(() => null);
      if (file === null)
        incomplete.push({ where: shown(place, shownFrom), why: `${opened.file}, which leads to no file` });
      else {
        found.push(opened);
        changed.set(opened, file.mtimeMs);
      }
    } else if (why !== null) incomplete.push({ where: shown(place, shownFrom), why });
    if (depth === depthMax) return;
    const below = entries.filter((entry) => entry.isDirectory() && !skipped.has(entry.name));
    const folders = opened === null ? below : below.filter(({ name }) => name === rescoresFolder);
    await Promise.all(folders.map(({ name }) => visit(path.join(place, name), depth + 1)));
  };
  await visit(folder, 0);
  return {
    evaluations: found.sort((a, b) => changed.get(b)! - changed.get(a)! || a.where.localeCompare(b.where)),
    incomplete: incomplete.sort((a, b) => a.where.localeCompare(b.where)),
  };
}

type FolderEvaluation = FoundEvaluation & { readonly file: string };

/** Null: no evaluation; a text: one of which something is missing. */
async function openFolder(
  folder: string,
  names: ReadonlySet<string>,
  shownFrom: string,
): Promise<FolderEvaluation | string | null> {
  if (names.has('traces.jsonl')) return openEpisodes(folder, shownFrom);
  const [hasRows, hasMetadata] = [names.has('results.jsonl'), names.has('metadata.json')];
  if (!hasRows && !(hasMetadata && path.basename(path.dirname(folder)).includes('--'))) return null;
  if (!hasRows) return 'metadata.json without results.jsonl';
  if (!hasMetadata) return 'results.jsonl without metadata.json';
  const metadata = readMetadata(await readJson(folder, 'metadata.json'));
  if (metadata === null) return 'metadata.json is not a JSON object';
  const named = namesFromFolder(path.basename(path.dirname(folder)));
  return {
    environment: metadata.environment || named.environment || '?',
    model: metadata.model || named.model || '?',
    id: path.basename(folder),
    where: shown(folder, shownFrom),
    metadata,
    step: metadata.step,
    of: 'evaluation',
    file: 'results.jsonl',
    rows: () => Promise.resolve(path.join(folder, 'results.jsonl')),
  };
}

async function openEpisodes(folder: string, shownFrom: string): Promise<FolderEvaluation | string> {
  const metadata = readMetadata(metadataOfConfig(await readJson(folder, 'configs/resolved/eval.json')));
  if (metadata === null) return 'traces.jsonl without configs/resolved/eval.json';
  const named = namesFromFolder(path.basename(folder));
  return {
    environment: metadata.environment || named.environment || '?',
    model: metadata.model || '?',
    id: path.basename(folder).split('--').at(-1)!,
    where: shown(folder, shownFrom),
    metadata,
    step: null,
    of: 'evaluation',
    file: 'traces.jsonl',
    rows: () => Promise.resolve(path.join(folder, 'traces.jsonl')),
  };
}

async function readJson(folder: string, name: string): Promise<unknown> {
  try {
    return JSON.parse(await readRegularText(path.join(folder, name), undefined, { within: [folder] })) as unknown;
  } catch {
    return null; // missing, or not JSON: reported by the caller
  }
}

async function foldersIn(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
  return entries.filter((entry) => entry.isDirectory()).map(({ name }) => name);
}

function shown(folder: string, from: string): string {
  const relative = path.relative(from, folder);
  return relative === '' ? '.' : relative.startsWith('..') ? folder : relative;
}
