import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { loadEvaluationFile } from '../../backends/configs/load-evaluations.ts';
import type { EvaluateNewestInput } from '../../workflows/evaluate-newest.ts';
import { storedSpec } from '../../runs/stored-spec.ts';
import { linesOfStore } from '../../backends/store/index.ts';
import { grantNamed, namedByEnvironments, namedByModel, serversIn } from '../../backends/configs/grant.ts';
import { findRunFolder } from '../run-place.ts';

export interface ScheduleOptions {
  readonly every?: string;
  readonly cron?: readonly string[];
  readonly run?: string;
  readonly onRegression: EvaluateNewestInput['onRegression'];
  readonly name?: string;
  readonly catchUp: string;
  readonly store?: string;
}

/** What is wrong with the file is said now, and not in an hour. */
export async function inputOf(
  file: string | undefined,
  { run, onRegression, store }: ScheduleOptions,
): Promise<EvaluateNewestInput> {
  if (file !== undefined) {
    const over = run === undefined ? {} : { model: run, provider: 'local' };
    const projectFolder = process.cwd();
    const { evaluations } = await loadEvaluationFile(file, { projectFolder, over });
    const named = evaluations.flatMap(({ spec, input: { environment, model } }) => [
      spec.model.endpointsPath,
      ...namedByEnvironments([environment]),
      // Of a run it is the run's own servers that are asked.
      ...(run === undefined ? namedByModel(model) : []),
    ]);
    grantNamed(projectFolder, [file, ...named]);
  }
  if (run === undefined && onRegression !== 'flag') {
    throw new RatchetError(
      'ConfigInvalid',
      `--on-regression ${onRegression}: of a run that --run names; without one there is nothing to ${onRegression}.`,
    );
  }
  const place = run === undefined ? null : await findRunFolder(run, store);
  if (place !== null) {
    const { spec } = await storedSpec(place);
    grantNamed(process.cwd(), [...serversIn(spec), ...linesOfStore(place.store)]);
  }
  return { config: file === undefined ? null : path.resolve(file), run: place, onRegression };
}
