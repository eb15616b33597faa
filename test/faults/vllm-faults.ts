/** Rows of runs that sample from a vLLM which the supervisor started. */
import assert from 'node:assert/strict';
import { bearer } from '../../engine/server/gate.ts';
import { makeSecret } from '../../host/project-secret.ts';
import type { Column } from './columns.ts';
import { kill } from './process-faults.ts';
import { atWork, type Row, type Rows, type Struck } from './row.ts';
import { vllmName } from './vllm-run.ts';
import { until } from '../eventually.ts';

const lookMs = 20;

const withAdapters = {
  stage: 'vllm',
  action: 'hold',
  cannot: { reload_weights: 'adapters are trained: the weights below them are exchanged once, before the first step' },
} as const satisfies Partial<Row>;
const withFullWeights = {
  stage: 'vllm, full weights',
  action: 'hold',
  cannot: { load_lora_adapter: 'all weights are trained: there is no adapter' },
} as const satisfies Partial<Row>;

const killed = (role: string, ...columns: readonly Column[]): Row => ({
  ...withAdapters,
  ...atWork(...columns),
  strike: ({ stage }) => kill(stage, role),
});

export const vllmFaults = {
  'vLLM killed': {
    ...withAdapters,
    ...atWork('generate', 'train', 'load_lora_adapter', 'canary', 'broadcast', 'eval'),
    strike: killVllm,
    losesNothing: true,
  },
  'vLLM engine dead behind a healthy /health': {
    ...withAdapters,
    ...atWork('generate', 'load_lora_adapter', 'canary'),
    strike: killEngine,
    losesNothing: true,
  },
  'rollout worker killed (vLLM)': killed('rollout worker', 'generate', 'eval'),
  'GPU worker killed (vLLM)': { ...killed('train worker', 'load_lora_adapter', 'canary'), losesNothing: true },
  'orchestrator worker killed (vLLM)': {
    ...killed('orchestrator worker', 'load_lora_adapter', 'canary', 'broadcast'),
    losesNothing: true,
  },
  'Temporal server killed (vLLM)': killed('Temporal server', 'load_lora_adapter', 'canary'),
  'activity fails (vLLM)': {
    ...withAdapters,
    ...atWork('load_lora_adapter', 'canary'),
    action: 'fail',
    strike: () => Promise.resolve(),
    losesNothing: true,
  },
  'vLLM killed (full weights)': {
    ...withFullWeights,
    ...atWork('generate', 'reload_weights', 'canary', 'broadcast'),
    strike: killVllm,
    losesNothing: true,
  },
  'orchestrator worker killed (vLLM, full weights)': {
    ...killed('orchestrator worker', 'reload_weights', 'canary'),
    ...withFullWeights,
    losesNothing: true,
  },
  'rollout worker killed (vLLM, full weights)': { ...killed('rollout worker', 'generate'), ...withFullWeights },
} satisfies Rows;

/** Ends all of its processes; while it is away the run continues as far as possible. */
async function killVllm({ stage, release, harmEnds }: Struck): Promise<void> {
  const restarts = (): number => stage.stack.restarts()[vllmName] ?? 0;
  const before = restarts();
  process.kill(-stage.pid(vllmName), 'SIGKILL');
  release();
  await until('another vLLM', () => restarts() > before, { everyMs: lookMs });
  harmEnds();
}

/** Until the supervisor has found out and started another one. */
async function killEngine({ stage, release, harmEnds }: Struck): Promise<void> {
  const { vllm } = stage;
  assert.ok(vllm, 'the stage has a vLLM');
  const restarts = (): number => stage.stack.restarts()[vllmName] ?? 0;
  const before = restarts();
  const answer = await fetch(`${vllm.url}/stand_in`, {
    method: 'POST',
    headers: { authorization: bearer(makeSecret(stage.folder)) }, // its key, as it was started for this project
    body: JSON.stringify({ isEngineDead: true }),
  });
  assert.equal(answer.status, 200);
  release();
  assert.equal((await fetch(`${vllm.url}/health`)).status, 200, 'its health says nothing of it');
  await until('another vLLM', () => restarts() > before, { everyMs: lookMs });
  harmEnds();
}
