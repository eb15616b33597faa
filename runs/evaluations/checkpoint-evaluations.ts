import { createHash } from 'node:crypto';
import type { EvaluationInput } from '../../core/eval/evaluation.ts';
import { onlineEvaluation } from './online-evaluation.ts';
import { identityOf } from '../../core/eval/same-evaluation.ts';
import { samplingOver } from '../../config/evaluations/sampling-over.ts';
import { selectSteps, type StepChoice } from '../../core/eval/select-steps.ts';
import { RatchetError } from '../../core/errors.ts';
import { layout, lineageOf } from '../layout.ts';
import { versionName } from '../../core/names.ts';
import type { PolicyVersion, Prompts, RunHandle } from '../../core/rl/run-state.ts';
import type { JsonValue, RunSpec } from '../../config/run-spec.ts';
import { sealedFor } from '../versions/checkpoints.ts';
import { storedSpec } from '../forms/stored-spec.ts';
import { currentLineage, requireCommit, type RunPlace } from '../run-access.ts';

/** Evaluations to carry out on each checkpoint. */
export type CheckpointSubject =
  /** The run's own `[eval]`, with some settings replaced; evaluations that the run has done itself are not repeated. */
  | { readonly kind: 'own'; readonly settings: OwnSettings }
  /** Evaluations from a file or a command line; the model named in them is ignored. */
  | { readonly kind: 'planned'; readonly evaluations: readonly Omit<EvaluationInput, 'results'>[] };

interface OwnSettings {
  readonly numExamples?: number | undefined;
  readonly rolloutsPerExample?: number | undefined;
  /** Sampling fields of the request. */
  readonly sampling?: Readonly<Record<string, JsonValue>> | undefined;
}

interface CheckpointEvaluation {
  readonly step: number;
  readonly environment: string;
  /** Name of its workflow among those of other checkpoints: `words.v50`. */
  readonly name: string;
  readonly input: EvaluationInput;
  /** Workflow of the run itself that does the same evaluation; null without one. */
  readonly online: string | null;
}

export interface CheckpointPlan {
  readonly evaluations: readonly CheckpointEvaluation[];
  /** Requested steps without a checkpoint. */
  readonly missing: readonly number[];
  /** Steps of all sealed checkpoints. */
  readonly sealed: readonly number[];
}

interface SealedVersion {
  readonly step: number;
  readonly policy: PolicyVersion;
  readonly handle: RunHandle;
  /** Prompts in use at its commit. */
  readonly prompts: Prompts | undefined;
}

/** One evaluation for each chosen checkpoint and environment, each in its own folder below the run's. */
export async function planCheckpoints(
  place: RunPlace,
  choice: StepChoice,
  subject: CheckpointSubject,
): Promise<CheckpointPlan> {
  const { spec } = await storedSpec(place);
  const versions = await sealedVersions(place);
  const sealed = versions.map(({ step }) => step);
  const { chosen, missing } = selectSteps(sealed, choice);
  const evaluations = versions
    .filter(({ step }) => chosen.includes(step))
    .flatMap((version) =>
      subject.kind === 'own' ? own(version, spec, subject.settings) : planned(version, spec, subject.evaluations),
    );
  return { evaluations, missing, sealed };
}

/** The newest sealed checkpoint; throws `RunNotFound` without one. */
export async function newestSealed(place: RunPlace): Promise<number> {
  const newest = (await sealedFor({ ...place, lineage: await currentLineage(place) })).at(-1);
  if (newest) return newest.step;
  throw new RatchetError(
    'RunNotFound',
    `The run ${place.name} has no sealed checkpoint yet; there will be one of v0 first.`,
  );
}

async function sealedVersions(place: RunPlace): Promise<SealedVersion[]> {
  const lineage = await currentLineage(place);
  const versions = new Map<number, SealedVersion>();
  for (const sealed of await sealedFor({ ...place, lineage })) {
    const { commit } = await requireCommit({ ...place, lineage: sealed.lineage }, sealed.step);
    const { policy, spec, step, state } = commit;
    const handle = { ...place, lineage: lineageOf(policy.weights), spec, attempt: 1 };
    versions.set(step, { step, policy, handle, prompts: state.prompts });
  }
  return [...versions.values()].sort((a, b) => a.step - b.step);
}

function own(
  { step, policy, handle, prompts }: SealedVersion,
  spec: RunSpec,
  settings: OwnSettings,
): CheckpointEvaluation[] {
  const { numExamples, rolloutsPerExample, sampling } = settings;
  const isAsTheRun = numExamples === undefined && rolloutsPerExample === undefined && sampling === undefined;
  if (spec.eval === null) {
    throw new RatchetError(
      'ConfigInvalid',
      `The run ${handle.name} has no [eval] of its own: say what its checkpoints are evaluated on, --env ID.`,
    );
  }
  return spec.eval.environments.map((entry) => {
    const fallback = entry.sampling ?? spec.eval?.sampling ?? spec.sampling;
    const changed = {
      ...entry,
      numExamples: numExamples ?? entry.numExamples,
      rolloutsPerExample: rolloutsPerExample ?? entry.rolloutsPerExample,
      sampling: sampling === undefined ? entry.sampling : samplingOver(fallback, sampling),
    };
    const { workflowId, input } = onlineEvaluation({ run: handle, spec, policy, prompts }, changed, 'sampled', null);
    const name = `${entry.name}.${nameOf(policy)}`;
    if (isAsTheRun) return { step, environment: entry.name, name, input, online: workflowId };
    return { step, environment: entry.name, name, input: atOwnPlace(input, handle, policy), online: null };
  });
}

function planned(
  { step, policy, handle }: SealedVersion,
  spec: RunSpec,
  evaluations: readonly Omit<EvaluationInput, 'results'>[],
): CheckpointEvaluation[] {
  return evaluations.map((evaluation) => {
    const { environment, model: asked } = evaluation;
    const fields = asked.kind === 'endpoint' ? asked.sampling : {};
    const sampling = samplingOver(spec.eval?.sampling ?? spec.sampling, fields);
    const model = { kind: 'version' as const, model: handle.name, run: handle, policy, sampling };
    const input = { ...evaluation, model, seed: spec.seed, about: { ...evaluation.about, step } };
    const name = `${environment.name}.${nameOf(policy)}`;
    return { step, environment: environment.name, name, input: atOwnPlace(input, handle, policy), online: null };
  });
}

/** Evaluations with different settings get different folders; the same settings always get the same one. */
function atOwnPlace(
  input: Omit<EvaluationInput, 'results'>,
  { name, store }: RunHandle,
  policy: PolicyVersion,
): EvaluationInput {
  const { step, replay = 0 } = policy;
  const results = { store, name, prefix: '' };
  const model = input.model.kind === 'version' ? { ...input.model, policy: { ...policy, digest: '' } } : input.model;
  const same = `${identityOf({ ...input, model, results })} ${input.numExamples}`;
  const variant = createHash('sha256').update(same).digest('hex').slice(0, 8);
  const environment = input.environment.name;
  const prefix = layout.evaluation(lineageOf(policy.weights), environment, name, step, { replay, variant });
  return { ...input, results: { ...results, prefix } };
}

function nameOf(policy: PolicyVersion): string {
  const lineage = lineageOf(policy.weights);
  return `${lineage === 'main' ? '' : `${lineage}.`}${versionName(policy)}`;
}
