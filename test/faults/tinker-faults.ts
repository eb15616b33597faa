/** Rows of runs that train and sample on a Tinker server. */
import assert from 'node:assert/strict';
import { setTimeout as delay } from 'node:timers/promises';
import { zombie } from './clock-faults.ts';
import type { Column } from './columns.ts';
import { kill } from './process-faults.ts';
import type { Row, Rows, Struck } from './row.ts';

/** What is under way then is asked for at a server that is not there. */
const awayMs = 1_000;

const onTinker = { stage: 'tinker', action: 'hold' } as const;

const gaps = ['forward_backward', 'optim_step', 'save_weights', 'load_weights'] as const satisfies readonly Column[];

const amidWork = {
  only: ['warm-up', 'generate', ...gaps, 'train', 'trained', 'checkpoint', 'eval'],
  because: 'nothing is under way at the server then; see the row of the same name without it',
} as const satisfies Row['columns'];

const inStep = {
  only: [...gaps],
  because: 'the same as without a Tinker server: nothing is asked of it by whom this strikes',
} as const satisfies Row['columns'];

const killed = (role: string): Row => ({ ...onTinker, columns: amidWork, strike: ({ stage }) => kill(stage, role) });

export const tinkerFaults = {
  'Tinker server killed': { ...onTinker, strike: killServer, losesNothing: true },
  'Tinker session lost': { ...onTinker, strike: endSessions, losesNothing: true },
  'GPU worker killed (Tinker)': { ...killed('train worker'), losesNothing: true },
  'rollout worker killed (Tinker)': killed('rollout worker'),
  'orchestrator worker killed (Tinker)': { ...killed('orchestrator worker'), losesNothing: true },
  'Temporal server killed (Tinker)': killed('Temporal server'),
  'activity fails (Tinker)': { ...onTinker, action: 'fail', columns: inStep, strike: () => Promise.resolve() },
  'zombie (Tinker)': { ...onTinker, columns: inStep, strike: zombie },
} satisfies Rows;

/** Started again on its folder: sessions and checkpoints are there, models are not. */
async function killServer({ stage, release, harmEnds }: Struck): Promise<void> {
  const { tinker } = stage.surroundings;
  assert.ok(tinker, 'the stage has a Tinker server');
  await tinker.kill();
  release();
  await delay(awayMs);
  await tinker.start();
  harmEnds();
}

/** As a server that took the worker for dead: heartbeats are answered 410, and its models are not loaded. */
async function endSessions({ stage }: Struck): Promise<void> {
  const { tinker } = stage.surroundings;
  assert.ok(tinker, 'the stage has a Tinker server');
  const answer = await fetch(`${tinker.url}/stand_in`, { method: 'POST', body: JSON.stringify({ endSessions: true }) });
  assert.equal(answer.status, 200);
}
