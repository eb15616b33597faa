import { copyFile, mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { firstLineage } from '../../core/names.ts';
import { type RunPlace, storeOf } from '../../runs/run-access.ts';
import { allEvaluationsOf } from '../eval/find.ts';

/**
 * Writes the rollouts sampled for training in the format of verifiers' evaluations,
 * `evals/ENV--RUN/step_N.groups_A-B/{results.jsonl,metadata.json}` below a folder, for its viewers and other readers.
 * Exports one step, or all stored ones; rounds written before stay. Returns the number of rounds there now.
 */
export async function exportRollouts(place: RunPlace, folder: string, step: number | null): Promise<number> {
  const { evaluations } = await allEvaluationsOf(place);
  const rounds = evaluations.filter((one) => one.of === 'training' && (step === null || one.step === step));
  if (rounds.length === 0) {
    const of = step === null ? '' : ` for step ${step}`;
    throw new RatchetError(
      'RunNotFound',
      `Nothing that was sampled${of} is stored of ${place.name}: there is nothing to export.`,
    );
  }
  const store = storeOf(place);
  for (const { environment, id, lineage, where, rows } of rounds) {
    const name = lineage === firstLineage ? id : `${lineage}.${id}`;
    const target = path.join(folder, 'evals', `${environment}--${place.name.replaceAll('/', '--')}`, name);
    await mkdir(target, { recursive: true });
    await copyFile(await rows(), path.join(target, 'results.jsonl'));
    const metadata = await store.read(`${where.slice(store.uri.length)}metadata.json`);
    if (metadata) await writeFile(path.join(target, 'metadata.json'), metadata);
  }
  return rounds.length;
}
