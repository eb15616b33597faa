import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import { loadEvaluationFile } from '../../load/evaluations/load-evaluations.ts';
import type { EvaluateNewestInput } from '../../workflows/evaluate-newest.ts';
import { storedSpec } from '../../runs/forms/stored-spec.ts';
import { linesOfStore } from '../../store/index.ts';
import { grantNamed, namedByEnvironments, namedByInference, namedByModel } from '../../load/grants/grant.ts';
import { askGrants } from '../start/ask-grants.ts';
import { poolOf } from '../typed/pool-option.ts';
import { findRunFolder, isTypedStore } from '../stored/run-place.ts';
import { linesOfFoundStore } from './subject/named-models.ts';

export interface ScheduleOptions {
  readonly every?: string;
  readonly cron?: readonly string[];
  readonly run?: string;
  readonly onRegression: EvaluateNewestInput['onRegression'];
  readonly name?: string;
  readonly catchUp: string;
  readonly store?: string;
  readonly grant?: readonly string[];
  readonly pool?: string;
}

interface Scheduled {
  readonly input: EvaluateNewestInput;
  /** Whose rollout workers play: the typed one, else the run's; null for none. */
  readonly pool: string | null;
  readonly start: ReturnType<typeof poolOf>['start'];
}

/** Validates the file now, not at the first scheduled time. */
export async function inputOf(
  file: string | undefined,
  { run, onRegression, store, grant, pool: typedPool }: ScheduleOptions,
): Promise<Scheduled> {
  if (run === undefined && onRegression !== 'flag') {
    throw new RatchetError(
      'ConfigInvalid',
      `--on-regression ${onRegression}: of a run that --run names; without one there is nothing to ${onRegression}.`,
    );
  }
  const projectFolder = process.cwd();
  const typed = file === undefined ? [] : await linesOfFile(file, run);
  let pool = typedPool;
  const place = run === undefined ? null : await findRunFolder(run, store);
  if (place !== null) {
    const { spec } = await storedSpec(place);
    pool ??= spec.queue?.pool;
    const environments = file === undefined ? (spec.eval?.environments ?? []) : [];
    const endpoints = 'endpoints' in spec.inference ? [spec.inference.endpoints].filter((ref) => ref !== null) : [];
    const lines = [...namedByEnvironments(environments), ...namedByInference(spec), ...linesOfFoundStore(place, store)];
    await askGrants(place, { lines, environments, endpoints }, { grant });
    if (isTypedStore(place, store)) typed.push(...linesOfStore(place.store));
  }
  grantNamed(projectFolder, typed);
  const input = { config: file === undefined ? null : path.resolve(file), run: place, onRegression };
  return { input, pool: pool ?? null, start: poolOf(present({ pool })).start };
}

async function linesOfFile(file: string, run: string | undefined): Promise<string[]> {
  const over = run === undefined ? {} : { model: run, provider: 'local' };
  const { evaluations } = await loadEvaluationFile(file, { projectFolder: process.cwd(), over });
  const named = evaluations.flatMap(({ spec, input: { environment, model } }) => [
    spec.model.endpointsPath,
    ...namedByEnvironments([environment]),
    // A version of a run is sampled on the run's own servers.
    ...(run === undefined ? namedByModel(model) : []),
  ]);
  return [file, ...named];
}
