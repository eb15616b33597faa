import { existsSync, statSync } from 'node:fs';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { environmentForAll, selectEnvironment } from '../../core/child-environment.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';
import { type JsonValue, SamplingSpec } from '../../core/spec/run-spec.ts';
import { startGuard } from '../../workers/guard.ts';
import { choosePort } from '../../workers/ports.ts';
import { policyUrlAt, program } from '../../workers/roles.ts';
import { SupervisedProcess } from '../../workers/supervised-process.ts';
import { storedSpec } from '../../activities/fork-run.ts';
import { requireCommit, storeOf } from '../../activities/run-access.ts';
import { weightsFolder } from '../../backends/store/weights-folder.ts';
import type { EvaluatedModel } from '../../core/eval/evaluation.ts';
import { findRunFolder, readStep } from '../run-place.ts';
import { headStep, lineageOfStep } from '../run-records.ts';

/** A committed version of a run, as an evaluation names it. */
export async function versionOfRun(
  run: string,
  { step, store, sampling }: { readonly step?: string | undefined; readonly store?: string | undefined; readonly sampling: Readonly<Record<string, JsonValue>> }, // prettier-ignore
): Promise<Extract<EvaluatedModel, { kind: 'version' }>> {
  const place = await findRunFolder(run, store);
  const number = step === undefined ? await headStep(place) : readStep(step);
  const lineage = await lineageOfStep(place, number);
  const { commit } = await requireCommit({ ...place, lineage }, number).catch((cause: unknown) => {
    throw new RatchetError('RunNotFound', `Step ${number} of ${run} is not committed. \`ratchet status ${run}\` says where it stands.`, { cause }); // prettier-ignore
  });
  const { policy, spec: ref } = commit;
  if (ref === undefined) {
    throw new RatchetError('Unsupported', `${run} was begun by a version of Ratchet whose commits do not name their settings; train it once more, and evaluate a later step.`); // prettier-ignore
  }
  const handle: RunHandle = { ...place, lineage, spec: ref, attempt: 1 };
  const { spec } = await storedSpec(place);
  if (!(await storeOf(place).list(policy.weights)).includes(policy.file.key)) {
    throw new RatchetError(
      'RunNotFound',
      `The weights of step ${number} are not in ${storeOf(place).uri} (any more, or yet). \`ratchet checkpoints ${run}\` lists those that are kept.`,
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
  return weightsFolder(storeOf(run), policy.weights);
}

/** Request fields that have a meaning for a sampler of our own. */
const fieldNames: Readonly<Record<string, keyof SamplingSpec>> = {
  max_tokens: 'maxTokens',
  max_completion_tokens: 'maxTokens',
  temperature: 'temperature',
  top_p: 'topP',
  top_k: 'topK',
  min_p: 'minP',
  min_tokens: 'minTokens',
  repetition_penalty: 'repetitionPenalty',
  presence_penalty: 'presencePenalty',
  frequency_penalty: 'frequencyPenalty',
  stop: 'stop',
  seed: 'seed',
};

/** The run's own sampling, and over it what was asked for, in the names of requests. A temperature of 0 is greedy. */
export function samplingOver(own: SamplingSpec, fields: Readonly<Record<string, JsonValue>>): SamplingSpec {
  const { extra_body: extra = {}, ...rest } = fields;
  const given = { ...rest, ...(typeof extra === 'object' && !Array.isArray(extra) ? extra : {}) };
  const over: Record<string, JsonValue> = {};
  for (const [name, value] of Object.entries(given)) {
    if (value === null || (name === 'n' && value === 1)) continue;
    const field = name === 'chat_template_kwargs' ? 'templateArguments' : fieldNames[name];
    if (field === undefined) {
      throw new RatchetError(
        'ConfigInvalid',
        `sampling ${name}: a version of a run is sampled token by token; expected ${Object.keys(fieldNames).join(', ')} or chat_template_kwargs.`,
      );
    }
    over[field] = field === 'stop' && typeof value === 'string' ? [value] : field === 'topK' && Number(value) <= 0 ? null : value; // prettier-ignore
  }
  const { temperature = own.temperature, ...others } = over;
  const read = SamplingSpec.safeParse({ ...own, ...others, temperature: Number(temperature) || 1 });
  if (!read.success || Number(temperature) < 0) {
    throw new RatchetError('ConfigInvalid', `sampling ${JSON.stringify(fields)}: ${read.error?.issues[0]?.path.join('.') ?? 'temperature'} is out of range.`); // prettier-ignore
  }
  return { ...read.data, temperature: Number(temperature) };
}

/** Whether a model's name is a folder here with a model in it. */
export function isModelFolder(model: string): boolean {
  const folder = path.resolve(model);
  return existsSync(path.join(folder, 'config.json')) && statSync(folder).isDirectory();
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
    throw new RatchetError('ConfigInvalid', `--serve ${folder}: expected a folder with config.json and safetensors, of a model or a checkpoint.`); // prettier-ignore
  }
  const port = await choosePort(0);
  const guard = startGuard();
  const server = new SupervisedProcess(
    {
      name: 'model server',
      command: process.execPath,
      args: program('../engine/server/main').concat(
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
