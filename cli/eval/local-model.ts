import { createHash } from 'node:crypto';
import { createReadStream, existsSync, statSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { environmentForAll, selectEnvironment } from '../../core/child-environment.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import { linesOfServerOf, writeGrants } from '../../engine/grants.ts';
import { startGuard } from '../../workers/guard.ts';
import { choosePort } from '../../workers/ports.ts';
import { policyUrlAt, programArguments } from '../../workers/roles.ts';
import { SupervisedProcess } from '../../workers/supervised-process.ts';
import { storedSpec } from '../../runs/stored-spec.ts';
import { requireCommit, storeOf } from '../../runs/run-access.ts';
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
  if (ref === undefined) {
    throw new RatchetError(
      'Unsupported',
      `${run} was begun by a version of Ratchet whose commits do not name their settings; train it once more, and evaluate a later step.`,
    );
  }
  const handle: RunHandle = { ...place, lineage, spec: ref, attempt: 1 };
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

/** Whether a model's name is a folder here with a model in it. */
export function isModelFolder(model: string): boolean {
  const folder = path.resolve(model);
  return existsSync(path.join(folder, 'config.json')) && statSync(folder).isDirectory();
}

/**
 * What an evaluation calls a folder's model: where it is from, and the sha256 of its weights. Folders of two runs may both be
 * called step_100, and other weights may lie in one folder tomorrow: neither may become the same evaluation.
 */
export async function nameOfFolder(folder: string): Promise<string> {
  const absolute = path.resolve(folder);
  const [run, weights, step] = absolute.split(path.sep).slice(-3);
  const ofRun = weights === 'weights' && step?.startsWith('step_') ? `${run}-` : '';
  return `${ofRun}${path.basename(absolute)}-${(await digestOfFolder(absolute)).slice(0, 8)}`;
}

/** Of all files of weights, and of what says how they are computed. */
async function digestOfFolder(folder: string): Promise<string> {
  const digest = createHash('sha256');
  const names = (await readdir(folder)).filter((name) => name.endsWith('.safetensors') || name === 'config.json');
  for (const name of names.sort()) {
    digest.update(`${name}\n`);
    for await (const chunk of createReadStream(path.join(folder, name))) digest.update(chunk as Buffer);
  }
  return digest.digest('hex');
}

export interface ServedModel {
  /** Of its API. */
  readonly url: string;
  /** Under which name it answers. */
  readonly model: string;
  stop(): Promise<void>;
}

/** An OpenAI-compatible server over a folder of a model, started again should it die. */
export async function serveModel(
  folder: string,
  model: string,
  { projectFolder, log }: { readonly projectFolder: string; readonly log: (line: string) => void },
): Promise<ServedModel> {
  const absolute = path.resolve(projectFolder, folder);
  if (!isModelFolder(absolute)) {
    throw new RatchetError(
      'ConfigInvalid',
      `--serve ${folder}: expected a folder with config.json and safetensors, of a model or a checkpoint.`,
    );
  }
  const port = await choosePort(0);
  const guard = startGuard();
  const server = new SupervisedProcess(
    {
      name: 'model server',
      command: process.execPath,
      args: programArguments('../engine/server/main').concat(
        ['--port', String(port), '--threads', '1'],
        ['--allow-root', absolute, '--load', `${model}=${absolute}`],
      ),
      env: selectEnvironment([...environmentForAll, 'RATCHET_*'], process.env),
      folder: projectFolder,
      rank: 'role',
      ready: { line: 'policy server listening' },
    },
    { guard, logFolder: path.join(projectFolder, '.ratchet', 'logs'), log },
  );
  log(`serving ${folder} at ${policyUrlAt(port)}/v1`);
  try {
    await server.start();
  } catch (error) {
    guard.close();
    throw error;
  }
  writeGrants(projectFolder, linesOfServerOf(process.pid, policyUrlAt(port)));
  return {
    url: `${policyUrlAt(port)}/v1`,
    model,
    stop: async () => {
      await server.stop(stopGraceMs);
      guard.close();
    },
  };
}

const stopGraceMs = 2_000;
