import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import path from 'node:path';
import type {
  EvaluationFileInput,
  EvaluationInput,
  EvaluationPlace,
  EvaluationResult,
  StoredEvaluation,
} from '../../core/eval/evaluation.ts';
import { identityOf } from '../../core/eval/same-evaluation.ts';
import { differencesFromMetadata, goodRowsByExample } from '../../core/eval/verifiers-results.ts';
import { RatchetError } from '../../core/errors.ts';
import { runNamePattern, unnumberedName } from '../../core/names.ts';
import type { RolloutRow } from '../../core/rl/rollout.ts';
import type { EvaluationSpec } from '../../config/eval-file.ts';
import { resolveStoreUri } from '../store/index.ts';
import { readRegularText } from '../../engine/regular-file.ts';

/** Where evaluations lie, as verifiers has them: `outputs/evals/ENV--MODEL/ID/`, below the environment's own folder where there is one. */
function evaluationsFolder(
  { environment, outputDir }: Pick<EvaluationSpec, 'environment' | 'outputDir'>,
  model: string,
  projectFolder: string,
): string {
  const module = environment.id.split('/').at(-1)!.split('@', 1)[0]!.replaceAll('-', '_');
  const own = path.resolve(projectFolder, environment.folder, module);
  const isOwn = /^\w+$/.test(module) && existsSync(own);
  const base = outputDir === null ? (isOwn ? path.join(own, 'outputs') : 'outputs') : outputDir;
  return path.resolve(
    projectFolder,
    base,
    'evals',
    `${unnumberedName(environment.name, environment.id)}--${model.replaceAll('/', '--')}`,
  );
}

/** How a planned evaluation comes to its place. */
interface Placing {
  readonly projectFolder: string;
  /** Which of those that lie there it may go on with. */
  readonly goOn: NonNullable<EvaluationFileInput['goOn']>;
  /** Of a new one. */
  readonly newId: string;
  /** Folders of others of the same file. */
  readonly taken: ReadonlySet<string>;
  /** Whether this workflow is at work on it, and is not the one that asks. */
  readonly isHeld: (workflowId: string) => Promise<boolean>;
}

/** Where results go: to an evaluation that lies there and is not finished, or anew. */
export async function choosePlace(
  { spec, input }: { readonly spec: EvaluationSpec; readonly input: Omit<EvaluationInput, 'results'> },
  { projectFolder, goOn: asked, newId, taken, isHeld }: Placing,
): Promise<{ readonly place: EvaluationPlace; readonly goesOn: boolean }> {
  const { resume } = spec;
  if (resume !== null && resume !== 'newest') return { place: placeAt(resume.path, projectFolder), goesOn: true };
  const folder = evaluationsFolder(spec, input.model.model, projectFolder);
  const goOn = resume === 'newest' ? 'unfinished' : asked;
  const fits = goOn === 'unfinished' ? isUnfinished : isInterrupted;
  for (const found of goOn === 'never' ? [] : await evaluationsIn(folder)) {
    const place = placeIn(folder, found.id);
    if (!fits(found, input) || taken.has(placeName(place))) continue;
    const holder = found.stored?.request.split('/', 1)[0];
    if (holder !== undefined && (await isHeld(holder))) continue;
    return { place, goesOn: true };
  }
  return { place: placeIn(folder, newId), goesOn: false };
}

export function placeName({ store, name, prefix }: EvaluationPlace): string {
  return `${store}${name}/${prefix}`;
}

/** A new evaluation's place, or that of one that lies there. */
export function placeIn(folder: string, id: string): EvaluationPlace {
  return { store: resolveStoreUri(folder, folder), name: id, prefix: '' };
}

export function newEvaluationId(): string {
  return randomUUID().slice(0, 8);
}

/** One that lies in a folder, as far as its own files tell. */
interface FoundEvaluation {
  readonly id: string;
  /** null = of verifiers' own, or damaged. */
  readonly stored: StoredEvaluation | null;
  /** Of its newest attempt; null = that has not come to its end. */
  readonly summary: EvaluationResult | null;
  /** What metadata.json says; null where there is none. */
  readonly metadata: RolloutRow | null;
  /** Of verifiers' own: rollouts that are finished, and did not fail. */
  readonly theirs: number;
  readonly changedAt: number;
}

/** All of a folder, the newest first. */
export async function evaluationsIn(folder: string): Promise<FoundEvaluation[]> {
  const names = (await readdir(folder).catch(() => [])).filter((name) => runNamePattern.test(name));
  const found = await Promise.all(names.map(async (id) => lookAt(folder, id)));
  return found.filter((one) => one !== null).sort((a, b) => b.changedAt - a.changedAt);
}

async function lookAt(folder: string, id: string): Promise<FoundEvaluation | null> {
  const own = path.join(folder, id);
  const opening = { within: [own] };
  const changedAt = await stat(path.join(own, 'metadata.json')).then(
    ({ mtimeMs }) => mtimeMs,
    () => 0,
  );
  const attempts = (await readdir(path.join(own, 'evaluation')).catch(() => []))
    .map((name) => Number(/^attempt_(\d+)\.json$/.exec(name)?.[1] ?? 0))
    .filter((number) => number > 0);
  const read = async <T>(name: string): Promise<T | null> => {
    const text = await readRegularText(path.join(own, name), undefined, opening).catch(() => null);
    return text === null ? null : (JSON.parse(text) as T);
  };
  const metadata = await read<RolloutRow>('metadata.json').catch(() => null); // damaged: it is none to go on with
  if (attempts.length === 0) {
    const results = await readRegularText(path.join(own, 'results.jsonl'), undefined, opening).catch(() => null);
    if (metadata === null || results === null) return null;
    const theirs = [...goodRowsByExample(results).values()].flat().length;
    return { id, stored: null, summary: null, metadata, theirs, changedAt };
  }
  const newest = Math.max(...attempts);
  return {
    id,
    stored: await read<StoredEvaluation>(`evaluation/attempt_${newest}.json`),
    summary: await read<EvaluationResult>(`evaluation/summary_${newest}.json`),
    metadata,
    theirs: 0,
    changedAt,
  };
}

/** Whether it is the same evaluation, and has not come to its end: its processes were ended, or it was cancelled. */
function isInterrupted({ stored, summary }: FoundEvaluation, input: Omit<EvaluationInput, 'results'>): boolean {
  return summary === null && stored !== null && isSame(stored, input);
}

/** The same, or one that has rollouts to play again, or fewer examples than are asked for now. */
function isUnfinished(found: FoundEvaluation, input: Omit<EvaluationInput, 'results'>): boolean {
  const { stored, summary, metadata, theirs } = found;
  if (stored === null) return metadata !== null && isTheirs(metadata, input) && theirs < wantedOf(metadata, input);
  if (!isSame(stored, input)) return false;
  return summary === null || summary.failed > 0 || isMore(stored, input.numExamples);
}

function isSame({ input: before }: StoredEvaluation, input: Omit<EvaluationInput, 'results'>): boolean {
  return identityOf(before) === identityOf({ ...input, results: before.results });
}

function wantedOf(metadata: RolloutRow, { numExamples, rolloutsPerExample }: Omit<EvaluationInput, 'results'>): number {
  return (numExamples < 0 ? Number(metadata['num_examples']) : numExamples) * rolloutsPerExample;
}

/** vf-eval's own; how far it came is found out when it is opened. */
function isTheirs(metadata: RolloutRow, input: Omit<EvaluationInput, 'results'>): boolean {
  const examples = input.numExamples < 0 ? Infinity : input.numExamples;
  return differencesFromMetadata(metadata, input, examples, null).length === 0;
}

function isMore({ examples, input }: StoredEvaluation, numExamples: number): boolean {
  return numExamples < 0 ? input.numExamples >= 0 : numExamples > examples;
}

/** The place that `--resume PATH` names. */
function placeAt(written: string, projectFolder: string): EvaluationPlace {
  const folder = path.resolve(projectFolder, written);
  const id = path.basename(folder);
  if (!existsSync(folder) || !runNamePattern.test(id)) {
    throw new RatchetError(
      'ConfigInvalid',
      `--resume ${written}: expected the folder of an evaluation (outputs/evals/ENV--MODEL/ID), ${existsSync(folder) ? 'found another one' : 'there is none'}.`,
    );
  }
  return placeIn(path.dirname(folder), id);
}
