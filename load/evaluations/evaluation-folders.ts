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
import type { RolloutRow } from '../../core/rl/rollout/rollout.ts';
import type { EvaluationSpec } from '../../config/evaluations/eval-file.ts';
import { resolveStoreUri } from '../../store/index.ts';
import { rowOfOthers } from '../../store/objects.ts';
import { readRegularText } from '../../host/regular-file.ts';

/**
 * Folder of evaluations, as in verifiers: `outputs/evals/ENV--MODEL/ID/`, below the environment's own folder if it has
 * one.
 */
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

/** Circumstances that decide a planned evaluation's place. */
interface Placing {
  readonly projectFolder: string;
  /** Which existing evaluations may be continued. */
  readonly goOn: NonNullable<EvaluationFileInput['goOn']>;
  readonly newId: string;
  /** Folders taken by other evaluations of the same file. */
  readonly taken: ReadonlySet<string>;
  /** Whether another workflow is at work on it. */
  readonly isHeld: (workflowId: string) => Promise<boolean>;
}

/** Place for results: an existing unfinished evaluation, or a new one. */
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

/** Place of a new or an existing evaluation. */
export function placeIn(folder: string, id: string): EvaluationPlace {
  return { store: resolveStoreUri(folder, folder), name: id, prefix: '' };
}

export function newEvaluationId(): string {
  return randomUUID().slice(0, 8);
}

/** An evaluation found in a folder, according to its own files. */
interface FoundEvaluation {
  readonly id: string;
  /** null = of verifiers' own, or damaged. */
  readonly stored: StoredEvaluation | null;
  /** Summary of its newest attempt; null when that has not ended. */
  readonly summary: EvaluationResult | null;
  /** Contents of metadata.json; null without one. */
  readonly metadata: RolloutRow | null;
  /** Finished rollouts without failure, in an evaluation by verifiers. */
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
  const metadata = await read<RolloutRow>('metadata.json').catch(() => null); // damaged, so it cannot be continued
  if (attempts.length === 0) {
    const results = await readRegularText(path.join(own, 'results.jsonl'), undefined, opening).catch(() => null);
    if (metadata === null || results === null) return null;
    const theirs = [...goodRowsByExample(results, rowOfOthers).values()].flat().length;
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

/** Whether it is the same evaluation, unfinished: its processes ended, or it was cancelled. */
function isInterrupted({ stored, summary }: FoundEvaluation, input: Omit<EvaluationInput, 'results'>): boolean {
  return summary === null && stored !== null && isSame(stored, input);
}

/**
 * Whether it is the same evaluation and has work left: failed rollouts to repeat, or fewer examples than requested now.
 */
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

/** vf-eval's own; its progress is determined when it is opened. */
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
