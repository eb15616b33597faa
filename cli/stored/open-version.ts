import { existsSync } from 'node:fs';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { verifyVersion } from '../../store/version-files.ts';
import { weightsFolder } from '../../store/weights-folder.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { StepCommit } from '../../core/rl/run-state.ts';
import { loadModelFolder, type ModelFolder, withChatTemplate } from '../../engine/index.ts';
import { begunAtOf, readCommit, type RunPlace, storeOf } from '../../runs/run-access.ts';
import { storedSpec } from '../../runs/forms/stored-spec.ts';
import { storedTemplate } from '../../runs/forms/stored-template.ts';
import { findRunFolder, readStep } from './run-place.ts';
import { headStep, lineageOfStep } from '../../runs/run-records.ts';

interface Place {
  readonly name: string;
  readonly store: string;
}

/** A version of a run, its weights in a folder on this machine. */
interface RunVersion {
  readonly place: RunPlace;
  readonly step: number;
  readonly spec: RunSpec;
  readonly folder: string;
  /** Loads a folder's model with the run's chat template, which contains the date the run began on. */
  readonly load: (folder: string) => Promise<ModelFolder>;
}

/** Splits RUN@STEP; `step` comes from an option. */
export function namedVersion(
  named: string,
  step: string | undefined,
): { readonly run: string; readonly step: string | undefined } {
  const [, run = named, at] = /^(.+)@v?(\d+)$/.exec(named) ?? [];
  if (at !== undefined && step !== undefined)
    throw new RatchetError('ConfigInvalid', `--step: expected nothing beside ${named}, which names a step.`);
  return { run, step: step ?? at };
}

/** `step` as typed; by default the newest. */
export async function openRunVersion(
  run: string,
  { step: typed, store }: { readonly step?: string | undefined; readonly store?: string | undefined },
): Promise<RunVersion> {
  const place = await findRunFolder(run, store);
  const step = typed === undefined ? await headStep(place) : readStep(typed);
  const { spec } = await storedSpec(place);
  const { begunAt: templateTime } = await begunAtOf(place);
  const template = await storedTemplate(place, spec);
  return {
    place,
    step,
    spec,
    folder: await versionFolder(place, step),
    load: async (folder) => {
      const model = await loadModelFolder(folder, { templateTime });
      return template === null ? model : withChatTemplate(model, template, { templateTime });
    },
  };
}

/** The folder on this machine with the weights of a committed step, each compared with its sha256. */
export async function versionFolder(place: Place, step: number): Promise<string> {
  const { commit } = await committedVersion(place, step);
  return folderOfPolicy(place, commit.policy);
}

/** The same for a commit's version. Its bytes may have changed since they were stored. */
export async function folderOfPolicy(place: Place, policy: StepCommit['policy']): Promise<string> {
  const store = storeOf(place);
  await verifyVersion(store, policy);
  return weightsFolder(store, policy.weights);
}

/** Commit of a step with its lineage, if its weights are still stored. */
export async function committedVersion(
  place: Place,
  step: number,
): Promise<{ readonly lineage: string; readonly commit: StepCommit }> {
  const store = storeOf(place);
  const lineage = await lineageOfStep(place, step);
  const found = await readCommit({ ...place, lineage }, step);
  if (found === null) {
    throw new RatchetError(
      'RunNotFound',
      `Step ${step} of ${place.name} is not committed. \`npx ratchet-rl status ${place.name}\` says how far it is.`,
    );
  }
  const { commit } = found;
  const { weights, file } = commit.policy;
  if (!(await store.list(weights)).includes(file.key)) {
    const steps = (await store.list('weights/')).flatMap(
      (key) => /^weights\/step_(\d+)\/.*\.safetensors$/.exec(key)?.[1] ?? [],
    );
    const there = [...new Set(steps.map(Number))].sort((a, b) => a - b).join(', ');
    throw new RatchetError(
      'RunNotFound',
      `The weights of step ${step} are not in ${store.uri} (any more, or yet). Those that are: ${there || 'none'}. [checkpoints] keep_interval keeps some for good.`,
    );
  }
  return { lineage, commit };
}

/** Whether a folder has weights, of a model or of an adapter. */
export function isModelFolder(folder: string): boolean {
  return ['config.json', 'adapter_config.json'].some((file) => existsSync(path.join(folder, file)));
}
