import type { JsonValue } from '../../config/run-spec.ts';
import { samplingOver } from '../../config/sampling-over.ts';
import type { EvaluatedModel } from '../../core/eval/evaluation.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';
import { begunAtOf } from '../../runs/run-access.ts';
import { storedSpec } from '../../runs/stored-spec.ts';
import { committedVersion, folderOfPolicy } from '../open-version.ts';
import { findRunFolder, readStep } from '../run-place.ts';
import { headStep } from '../run-records.ts';

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

/** The folder of that version's weights, on this machine. */
export function folderOfVersion({ run, policy }: Extract<EvaluatedModel, { kind: 'version' }>): Promise<string> {
  return folderOfPolicy(run, policy);
}
