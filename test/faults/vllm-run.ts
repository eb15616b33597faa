/** Runs of cells that sample from a vLLM, the stand-in, which the supervisor starts from their file; the embedded engine trains them. */
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { loadRunConfig } from '../../load/load-run-config.ts';
import type { Role } from '../../workers/stack/supervisor.ts';
import { vllmRole } from '../../workers/stack/vllm-role.ts';
import { writeStandInPython } from '../stand-ins/vllm/python.ts';
import { heartbeatTimeoutMs, type RunOptions } from './fake-run.ts';
import type { StageKind, Surroundings } from './stage-kinds.ts';

export const vllmName = 'vllm server';

/** In place of 15 s: how soon the supervisor finds that an engine is dead. */
const aliveEveryMs = 500;

export const vllmAdapters: StageKind = ofWeights('[lora]\nr = 4\n');
export const vllmFullWeights: StageKind = ofWeights('');

/** Few turns at once, so that a part of a chunk is stored while others are sampled. */
function ofWeights(more: string): StageKind {
  const run = ({ steps }: RunOptions): string => `
model = "preset:reverse-text-vllm-0.2m"
max_steps = ${steps}
batch_size = 32
rollouts_per_example = 4
learning_rate = 1e-3
max_async_level = 0
heartbeat_timeout = ${heartbeatTimeoutMs / 1000}
[sampling]
max_tokens = 6
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 4 }
[sft]
steps = 40
batch_size = 16
${more}
[trainer]
advantage = "std_normalized"
[checkpoints]
interval = 2
keep_last = 2
[inference]
kind = "vllm"
max_concurrent = 4
[inference.vllm]
dtype = "float32"
max_model_len = 64
`;
  return { engine: 'vllm', run, changeRole: looksOften, surround: (folder) => prepare(folder, run) };
}

async function prepare(folder: string, run: StageKind['run']): Promise<Surroundings> {
  const sampledLog = path.join(folder, 'sampled');
  const program = writeStandInPython(folder, ['--sampled-log', sampledLog, '--token-ms', '20']);
  const overrides = { 'inference.program': program };
  await writeFile(path.join(folder, 'vllm.toml'), run({ steps: 1, log: '' }));
  const { spec } = await loadRunConfig('vllm.toml', { projectFolder: folder, overrides });
  return { sampledLog, overrides, vllm: () => vllmRole(spec, folder) };
}

function looksOften(role: Role): Role {
  return role.name === vllmName ? { ...role, alive: { ...role.alive!, everyMs: aliveEveryMs } } : role;
}
