import { existsSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  environmentForAll,
  environmentForVerifiers,
  secretVariable,
  selectEnvironment,
  temporalSecrets,
} from '../core/child-environment.ts';
import { RatchetError } from '../core/errors.ts';
import { answerOf } from '../backends/child-progress.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { needsFullWeights, vllmArguments, type VllmSpec } from '../config/vllm-spec.ts';
import { lookAtEngine } from '../backends/inference/index.ts';
import { openModel, saveModelFolder } from '../engine/index.ts';
import { makeSecret, secretFileOf } from '../engine/project-secret.ts';
import { requireOwnFiles } from '../engine/model/model-repository.ts';
import { choosePort } from './ports.ts';
import { shellWord } from './service.ts';
import type { Role } from './supervisor.ts';

/** The port that vLLM has by itself; another is chosen when it is taken. */
const usualPort = 8000;
/** Loading and compiling a large model. */
const readyMsMax = 30 * 60_000;
/** Between looks whether its engine lives, and how many in a row may find it dead. */
const lookEveryMs = 15_000;
const deadLooksMax = 3;

export interface StartedVllm {
  readonly role: Role;
  readonly url: string;
}

/** The vLLM that a run file asks for; null where it names servers that run, or another kind. Throws what keeps it from being started. */
export async function vllmRole(spec: RunSpec, projectFolder: string): Promise<StartedVllm | null> {
  const { inference } = spec;
  if (inference.kind !== 'vllm' || inference.url !== null || inference.endpoints !== null) return null;
  const { vllm, apiKeyVar } = inference;
  const start = await findVllm(vllm, projectFolder);
  const key = apiKeyVar === null ? null : requireKey(apiKeyVar);
  const port = await choosePort(vllm.port ?? usualPort);
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
    // In its environment alone: other users read arguments.
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

/** vLLM asks for its key below /v1 alone. With this code of ours it asks for it on every route, those that exchange weights included. */
const guardArguments = ['--middleware', 'ratchet_vllm.RequireKey'];
const guardFolder = fileURLToPath(new URL('../python', import.meta.url));

/** Environment variables beside the key: GPUs, the weight routes, and the path of the guard in front of them. */
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

/** How it would be started, as a line for a shell. Null where none would be. Throws what keeps it from being started. */
export async function vllmCommandLine(spec: RunSpec, projectFolder: string): Promise<string | null> {
  const { inference } = spec;
  if (inference.kind !== 'vllm' || inference.url !== null || inference.endpoints !== null) return null;
  const { vllm, apiKeyVar } = inference;
  const { command, args } = await findVllm(vllm, projectFolder);
  if (apiKeyVar !== null) requireKey(apiKeyVar);
  const environment = Object.entries(vllmEnvironment(vllm)).map(([name, value]) => `${name}=${shellWord(value)}`);
  const secret = `"$(cat ${shellWord(secretFileOf(projectFolder))})"`;
  const keys = [
    `VLLM_API_KEY=${apiKeyVar === null ? secret : `"$${apiKeyVar}"`}`,
    ...(apiKeyVar === null ? [`${secretVariable}=${secret}`] : []),
  ];
  const given = vllmArguments(vllm, vllm.port ?? usualPort);
  const words = [command, ...args, modelPlace(spec, projectFolder), ...given, ...guardArguments];
  return [...environment, ...keys, ...words.map(shellWord)].join(' ');
}

/** The program of a run that would start a vLLM of its own; null where it is looked for in the usual places, or none is started. */
export function programOf({ inference }: RunSpec): string | null {
  return inference.kind === 'vllm' && inference.url === null && inference.endpoints === null
    ? inference.vllm.program
    : null;
}

/** As {@link vllmCommandLine}, or in its place why it cannot be started. */
export async function describeVllmStart(spec: RunSpec, projectFolder: string): Promise<string | null> {
  try {
    return await vllmCommandLine(spec, projectFolder);
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    return error.message;
  }
}

/** The Python, or the program `vllm`, that would be started where a file names none; null where there is none. */
export async function pythonWithVllm(projectFolder: string): Promise<string | null> {
  try {
    return (await findVllm({ program: null }, projectFolder)).command;
  } catch (error) {
    if (error instanceof RatchetError) return null;
    throw error;
  }
}

/** What starts vLLM, up to its model: an interpreter that has it, or its own program. */
async function findVllm(
  { program }: Pick<VllmSpec, 'program'>,
  projectFolder: string,
): Promise<{ readonly command: string; readonly args: readonly string[] }> {
  const ownEnvironment = process.env['VIRTUAL_ENV'];
  const candidates =
    program !== null
      ? [path.isAbsolute(program) || !program.includes('/') ? program : path.resolve(projectFolder, program)]
      : [
          ...(ownEnvironment ? [path.join(ownEnvironment, 'bin/python')] : []),
          path.join(projectFolder, '.venv/bin/python'),
          'python3',
          'python',
        ];
  for (const command of candidates) {
    // One process for its API: several would each know the adapters alone that they were given themselves.
    if (path.basename(command) === 'vllm' && existsSync(command))
      return { command, args: ['serve', '--api-server-count', '1'] };
    if (await hasVllm(command)) return { command, args: ['-m', 'vllm.entrypoints.openai.api_server', '--model'] };
  }
  throw new RatchetError(
    'ServerUnavailable',
    `[inference] kind = "vllm" without url: Ratchet starts one, and found no Python with vLLM (looked at ${candidates.join(', ')}).\n` +
      '  install it      uv venv .venv && uv pip install --python .venv/bin/python vllm      (without a GPU see docs/guide/vllm.md)\n' +
      '  or say where    [inference] program = "/path/to/venv/bin/python"\n' +
      '  or use another  [inference] url = "http://HOST:PORT" of a vLLM that runs',
  );
}

/** Looked up, not imported: that takes as long as starting it. */
const hasModule = 'import importlib.util as u; print(u.find_spec("vllm") is not None)';

/** False if vLLM or Python is missing. */
async function hasVllm(command: string): Promise<boolean> {
  const answer = await answerOf(command, ['-c', hasModule], selectEnvironment(environmentForAll, process.env));
  return answer?.trim() === 'True';
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
