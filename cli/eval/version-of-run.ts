import { RatchetError } from '../../core/errors.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import { storedSpec } from '../../runs/stored-spec.ts';
import { begunAtOf, requireCommit, storeOf } from '../../runs/run-access.ts';
import { verifyVersion } from '../../backends/store/version-files.ts';
import { weightsFolder } from '../../backends/store/weights-folder.ts';
import type { EvaluatedModel } from '../../core/eval/evaluation.ts';
import { samplingOver } from '../../config/sampling-over.ts';
import { findRunFolder, readStep } from '../run-place.ts';
import { headStep, lineageOfStep } from '../run-records.ts';

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
  const lineage = await lineageOfStep(place, number);
  const { commit } = await requireCommit({ ...place, lineage }, number).catch((cause: unknown) => {
    throw new RatchetError(
      'RunNotFound',
      `Step ${number} of ${run} is not committed. \`npx ratchet status ${run}\` says how far it is.`,
      { cause },
    );
  });
  const { policy, spec: ref } = commit;
  const handle: RunHandle = { ...place, lineage, spec: ref, attempt: 1, ...(await begunAtOf(place)) };
  const { spec } = await storedSpec(place);
  if (!(await storeOf(place).list(policy.weights)).includes(policy.file.key)) {
    throw new RatchetError(
      'RunNotFound',
      `The weights of step ${number} are not in ${storeOf(place).uri} (any more, or yet). \`npx ratchet checkpoints ${run}\` lists those that are kept.`,
    );
  }
  return {
    kind: 'version',
    model: `${run}@${number}`,
    run: handle,
    policy,
    sampling: samplingOver(spec.eval?.sampling ?? spec.sampling, sampling),
  };
}

/** The folder of that version's weights, on this machine. */
export async function folderOfVersion({ run, policy }: Extract<EvaluatedModel, { kind: 'version' }>): Promise<string> {
  await verifyVersion(storeOf(run), policy); // a byte of it may have changed since it was stored
  return weightsFolder(storeOf(run), policy.weights);
}
