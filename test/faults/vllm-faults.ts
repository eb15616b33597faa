/** Rows of runs that sample from a vLLM which the supervisor started. */
import assert from 'node:assert/strict';
import { setTimeout as delay } from 'node:timers/promises';
import { allColumns, type Column } from './columns.ts';
import { kill } from './process-faults.ts';
import type { Row, Rows, Struck } from './row.ts';
import { vllmName } from './vllm-run.ts';

const lookMs = 20;

const withAdapters = { stage: 'vllm', action: 'hold' } as const;
const withFullWeights = { stage: 'vllm, full weights', action: 'hold' } as const;

const given = ['load_lora_adapter', 'canary'] as const satisfies readonly Column[];

const amidWork = {
  only: ['generate', ...given, 'broadcast', 'eval'],
  because: 'nothing is asked of the vLLM then; see the row of the same name without it',
} as const satisfies Row['columns'];

const inBroadcast = {
  only: [...given],
  because: 'the same as without a vLLM: nothing is asked of it by what fails there',
} as const satisfies Row['columns'];

const onlyWhole = {
  only: ['generate', 'reload_weights', 'canary', 'broadcast'],
  because: 'what a vLLM does then is the same with adapters: see the rows above',
} as const satisfies Row['columns'];

const exchanged = 'adapters are loaded beside the weights, which stay as they are: see the rows of full weights';

const killed = (role: string): Row => ({
  ...withAdapters,
  columns: amidWork,
  strike: ({ stage }) => kill(stage, role),
});

const wholeKilled = (role: string): Row => ({
  ...withFullWeights,
  columns: onlyWhole,
  strike: ({ stage }) => kill(stage, role),
});

export const vllmFaults = {
  'vLLM killed': {
    ...withAdapters,
    strike: killVllm,
    columns: { only: allColumns.filter((column) => column !== 'reload_weights'), because: exchanged },
    losesNothing: true,
  },
  'vLLM engine dead behind a healthy /health': {
    ...withAdapters,
    strike: killEngine,
    columns: amidWork,
    losesNothing: true,
  },
  'rollout worker killed (vLLM)': killed('rollout worker'),
  'GPU worker killed (vLLM)': { ...killed('train worker'), losesNothing: true },
  'orchestrator worker killed (vLLM)': { ...killed('orchestrator worker'), losesNothing: true },
  'Temporal server killed (vLLM)': killed('Temporal server'),
  'activity fails (vLLM)': { ...withAdapters, action: 'fail', columns: inBroadcast, strike: () => Promise.resolve() },
  'vLLM killed (full weights)': { ...withFullWeights, strike: killVllm, columns: onlyWhole, losesNothing: true },
  'orchestrator worker killed (vLLM, full weights)': { ...wholeKilled('orchestrator worker'), losesNothing: true },
  'rollout worker killed (vLLM, full weights)': wholeKilled('rollout worker'),
} satisfies Rows;

/** All of its processes; while it is away the run goes on where it can. */
async function killVllm({ stage, release, harmEnds }: Struck): Promise<void> {
  const restarts = (): number => stage.stack.restarts()[vllmName] ?? 0;
  const before = restarts();
  process.kill(-stage.pid(vllmName), 'SIGKILL');
  release();
  while (restarts() === before) await delay(lookMs);
  harmEnds();
}

/** Until the supervisor has found out and started another one. */
async function killEngine({ stage, release, harmEnds }: Struck): Promise<void> {
  const { vllm } = stage;
  assert.ok(vllm, 'the stage has a vLLM');
  const restarts = (): number => stage.stack.restarts()[vllmName] ?? 0;
  const before = restarts();
  const answer = await fetch(`${vllm.url}/stand_in`, { method: 'POST', body: JSON.stringify({ isEngineDead: true }) });
  assert.equal(answer.status, 200);
  release();
  assert.equal((await fetch(`${vllm.url}/health`)).status, 200, 'its health says nothing of it');
  while (restarts() === before) await delay(lookMs);
  harmEnds();
}
