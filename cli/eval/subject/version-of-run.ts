import type { JsonValue } from '../../../config/run-spec.ts';
import { samplingOver } from '../../../config/evaluations/sampling-over.ts';
import type { EvaluatedModel } from '../../../core/eval/evaluation.ts';
import type { RunHandle } from '../../../core/rl/run-state.ts';
import { begunAtOf } from '../../../runs/run-access.ts';
import { storedSpec } from '../../../runs/forms/stored-spec.ts';
import { committedVersion } from '../../stored/open-version.ts';
import { findRunFolder, readStep } from '../../stored/run-place.ts';
import { headStep } from '../../../runs/run-records.ts';

/** A committed version of a run, as an evaluation names it. */
export async function versionOfRun(
  run: string,
  {
    step,
    store,
    sampling,
  }: {
    readonly step?: string | undefined;
    readonly store?: string | undefined;
    readonly sampling: Readonly<Record<string, JsonValue>>;
  },
): Promise<Extract<EvaluatedModel, { kind: 'version' }>> {
  const place = await findRunFolder(run, store);
  const number = step === undefined ? await headStep(place) : readStep(step);
  const { lineage, commit } = await committedVersion(place, number);
  const { policy, spec: ref } = commit;
  const handle: RunHandle = { ...place, lineage, spec: ref, attempt: 1, ...(await begunAtOf(place)) };
  const { spec } = await storedSpec(place);
  return {
    kind: 'version',
    model: `${run}@${number}`,
    run: handle,
    policy,
    sampling: samplingOver(spec.eval?.sampling ?? spec.sampling, sampling),
  };
}
