import { readdir, stat } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { RatchetError } from '../../core/errors.ts';
import { runNamePattern } from '../../core/names.ts';
import { lineagesOf, type RunPlace, storeOf } from '../../runs/run-access.ts';
import type { FoundEvaluations, FoundEvaluation } from '../../runs/evaluations/evaluation.ts';
import { findEvaluations, defaultFolders } from '../../runs/evaluations/folders.ts';
import { runEvaluations, type RunEvaluation } from '../../runs/evaluations/run-evaluations.ts';
import { findRunFolder } from '../stored/run-place.ts';
import { lineageOfStep } from '../../runs/run-records.ts';

interface Wanted {
  /** URI of the folder of runs, as in `--store`. */
  readonly store?: string | undefined;
  /** Restricts the search to this environment. */
  readonly env?: string | undefined;
}

/**
 * Evaluations named by `PATH|RUN[@step]`: those in and below a folder, or those of one version of a run, by default the
 * newest evaluated one. Throws when there is none, with what was expected and what was found.
 */
export async function namedEvaluations(name: string, wanted: Wanted): Promise<FoundEvaluation[]> {
  const found = (await byShortName(name, wanted)) ?? (await byPlace(name, wanted));
  if (wanted.env === undefined) return found;
  const chosen = found.filter(({ environment }) => environment === wanted.env);
  if (chosen.length > 0) return chosen;
  const environments = [...new Set(found.map(({ environment }) => environment))].join(', ');
  throw new RatchetError('ConfigInvalid', `--env ${wanted.env}: ${name} was evaluated on ${environments}.`);
}

async function byPlace(name: string, wanted: Wanted): Promise<FoundEvaluation[]> {
  const kind = await kindOf(name.startsWith('file:') ? fileURLToPath(name) : name);
  return 'run' in kind ? ofRun(kind, wanted) : ofFolder(kind.folder);
}

/**
 * The evaluation with this id, or the newest of `ENV--MODEL`, in the default folders; null without one, or when the
 * name is a folder or a run here.
 */
async function byShortName(name: string, { store }: Wanted): Promise<FoundEvaluation[] | null> {
  const isPlace = (await stat(path.resolve(name)).catch(() => null)) !== null;
  if (store !== undefined || isPlace || (await isRun(path.resolve('outputs', name)))) return null;
  const all = await Promise.all((await defaultFolders(process.cwd())).map((folder) => findEvaluations(folder)));
  const { evaluations } = joined(all);
  const first = evaluations.find(({ id }) => id === name) ?? evaluations.find(({ where }) => groupOf(where) === name);
  return first === undefined ? null : [first];
}

/** `ENV--MODEL` of `…/evals/ENV--MODEL/ID`. */
function groupOf(where: string): string {
  return path.basename(path.dirname(where));
}

/**
 * The newest other evaluation of the same environment in the default folders, preferably of another model; both by
 * their names here. null when there is no other.
 */
export async function besideEvaluation(
  folder: string,
): Promise<{ readonly own: string; readonly other: string } | null> {
  const all = await Promise.all((await defaultFolders(process.cwd())).map((folder) => findEvaluations(folder)));
  const { evaluations } = joined(all);
  const own = evaluations.find(({ where }) => path.resolve(where) === path.resolve(folder));
  if (own === undefined) return null;
  const others = evaluations.filter((one) => one !== own && one.environment === own.environment);
  const other = others.find(({ model }) => model !== own.model) ?? others[0];
  return other === undefined ? null : { own: own.where, other: other.where };
}

/** All evaluations of a folder, of a run, or of the default folders. */
export async function allEvaluations(name: string | undefined, { store }: Wanted): Promise<FoundEvaluations> {
  if (name === undefined) return defaultEvaluations();
  const kind = await kindOf(name);
  if ('run' in kind) {
    const place = await runPlace(kind, store);
    const found = await allEvaluationsOf(place);
    if (kind.step === null) return found;
    return { ...found, evaluations: found.evaluations.filter(({ step }) => step === kind.step) };
  }
  return withRuns(await findEvaluations(kind.folder), kind.folder);
}

async function defaultEvaluations(): Promise<FoundEvaluations> {
  const folders = await defaultFolders(process.cwd());
  const all = await Promise.all(folders.map(async (folder) => withRuns(await findEvaluations(folder), folder)));
  return joined(all);
}

/** Adds the evaluations of runs whose folders are in this one. */
async function withRuns(found: FoundEvaluations, folder: string): Promise<FoundEvaluations> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
  const names = entries.filter((entry) => entry.isDirectory()).map(({ name }) => name);
  const runs: string[] = [];
  for (const name of names) if (runNamePattern.test(name) && (await isRun(path.join(folder, name)))) runs.push(name);
  const store = pathToFileURL(folder).href;
  return joined([found, ...(await Promise.all(runs.map((name) => allEvaluationsOf({ name, store }))))]);
}

function joined(all: readonly FoundEvaluations[]): FoundEvaluations {
  return {
    evaluations: all.flatMap(({ evaluations }) => evaluations),
    incomplete: all.flatMap(({ incomplete }) => incomplete),
  };
}

type Kind =
  | { readonly folder: string }
  | { readonly run: string; readonly store: string | null; readonly step: number | null };

async function kindOf(name: string): Promise<Kind> {
  const at = /^(.*)@(?:step_|v)?(\d+)$/.exec(name);
  for (const [place, step] of [[name, null], ...(at ? [[at[1]!, Number(at[2])] as const] : [])] as const) {
    const folder = path.resolve(place);
    const found = await stat(folder).catch(() => null);
    if (!found) continue;
    if (found.isFile()) {
      if (/^(results\.jsonl|metadata\.json|traces\.jsonl)$/.test(path.basename(folder)))
        return { folder: path.dirname(folder) };
      throw new RatchetError(
        'ConfigInvalid',
        `${place} is a file. Expected the folder of an evaluation (results.jsonl and metadata.json), or a run.`,
      );
    }
    if (await isRun(folder)) {
      return { run: path.basename(folder), store: pathToFileURL(path.dirname(folder)).href, step };
    }
    // A run may have the name of a folder, such as an environment's.
    const ofRun = runNamePattern.test(place) ? path.resolve('outputs', place) : null;
    if (ofRun !== null && (await isRun(ofRun))) {
      return { run: place, store: pathToFileURL(path.dirname(ofRun)).href, step };
    }
    if (step === null) return { folder };
  }
  const [run, step] = at ? [at[1]!, Number(at[2])] : [name, null];
  if (runNamePattern.test(run)) return { run, store: null, step };
  throw new RatchetError(
    'ConfigInvalid',
    `${name} is not there. Expected a folder of an evaluation (outputs/evals/ENV--MODEL/ID), its ENV--MODEL or ID (npx ratchet-rl eval list), or a run with or without a step (my-run, my-run@20).`,
  );
}

async function isRun(folder: string): Promise<boolean> {
  return (await stat(path.join(folder, 'run.json')).catch(() => null))?.isFile() ?? false;
}

async function runPlace({ run, store: known }: { run: string; store: string | null }, store: string | undefined) {
  if (known !== null) return { name: run, store: known };
  return findRunFolder(run, store).catch((error: unknown) => {
    if (!(error instanceof RatchetError) || error.code !== 'RunNotFound') throw error;
    throw new RatchetError(
      'RunNotFound',
      `${run} is no folder here, no evaluation (npx ratchet-rl eval list), and no run: ${error.message}`,
      { cause: error },
    );
  });
}

/** Evaluations of all lineages, including the rounds sampled for training. */
export async function allEvaluationsOf(place: RunPlace): Promise<FoundEvaluations<RunEvaluation>> {
  return runEvaluations(storeOf(place), await lineagesOf(place), { training: true });
}

async function ofRun(kind: { run: string; store: string | null; step: number | null }, { store }: Wanted) {
  const place = await runPlace(kind, store);
  const all = await allEvaluationsOf(place);
  const evaluations = all.evaluations.filter(({ of }) => of === 'evaluation');
  const current = await onItsWay(place, evaluations);
  const steps = [...new Set(evaluations.map(({ step }) => step))].sort((a, b) => a - b);
  const step = kind.step ?? current.at(-1)?.step ?? steps.at(-1);
  const there = steps.length === 0 ? 'no evaluation has ended' : `steps ${steps.join(', ')} were evaluated`;
  const from = current.filter((one) => one.step === step);
  const chosen = from.length > 0 ? from : evaluations.filter((one) => one.step === step);
  if (chosen.length > 0) return chosen;
  const wanted = kind.step === null ? 'an evaluation' : `an evaluation of step ${kind.step}`;
  throw new RatchetError(
    'RunNotFound',
    `Expected ${wanted} of run ${place.name}; in ${storeOf(place).uri} ${there}. [eval] in a run file evaluates while it trains.`,
  );
}

/** Evaluations of the lineages that led to the run's position. */
async function onItsWay(place: RunPlace, evaluations: readonly RunEvaluation[]): Promise<RunEvaluation[]> {
  if (evaluations.every(({ lineage }) => lineage === evaluations[0]!.lineage)) return [...evaluations];
  const lineages = new Map<number, string>();
  for (const { step } of evaluations) {
    if (!lineages.has(step)) lineages.set(step, await lineageOfStep(place, step));
  }
  return evaluations.filter(({ step, lineage }) => lineage === lineages.get(step));
}

async function ofFolder(folder: string): Promise<FoundEvaluation[]> {
  const { evaluations, incomplete } = await findEvaluations(folder);
  if (evaluations.length > 0) return [...evaluations];
  const here = (await readdir(folder)).sort();
  const lies =
    incomplete.length > 0
      ? incomplete.map(({ where, why }) => `${where} has ${why}`).join('; ')
      : here.length === 0
        ? 'it is empty'
        : `there is ${here.slice(0, 8).join(', ')}${here.length > 8 ? ', …' : ''}`;
  throw new RatchetError(
    'ConfigInvalid',
    `${path.relative(process.cwd(), folder) || '.'} holds no evaluation. Expected results.jsonl and metadata.json (or traces.jsonl and configs/resolved/eval.json) in it or below it; ${lies}.`,
  );
}
