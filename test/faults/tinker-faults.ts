/** Rows of runs that train and sample on a Tinker server. */
import assert from 'node:assert/strict';
import { setTimeout as delay } from 'node:timers/promises';
import { decodeRows } from '../../store/objects.ts';
import { layout } from '../../runs/layout.ts';
import { zombie } from './clock-faults.ts';
import type { Column } from './columns.ts';
import { judgeByWeights } from './judge.ts';
import { kill, loseHolder } from './process-faults.ts';
import { atWork, type Judged, type Row, type Rows, type Struck } from './row.ts';

/** Requests under way then find no server. */
const awayMs = 1_000;

const onTinker = { stage: 'tinker', action: 'hold' } as const;

/** Inside of a step there. */
const gaps = ['forward_backward', 'optim_step', 'save_weights', 'load_weights'] as const satisfies readonly Column[];

const killed = (role: string, ...columns: readonly Column[]): Row => ({
  ...onTinker,
  ...atWork(...columns),
  strike: ({ stage }) => kill(stage, role),
});

const neverLoaded =
  'a server that holds one model trains it in place: a checkpoint is loaded only after a fault, and the gap is then that of the other columns';

/** The same on a server that holds one model, which is trained in place. */
const onOne = { stage: 'tinker, one model', action: 'hold', cannot: { load_weights: neverLoaded } } as const;
const inPlace = ['forward_backward', 'optim_step', 'save_weights'] as const satisfies readonly Column[];

const oneModelFaults = {
  'Tinker server with one model killed': {
    ...onOne,
    ...atWork('warm-up', 'generate', ...inPlace, 'train', 'trained', 'commit', 'broadcast', 'eval'),
    strike: killServer,
    judge: judgeRestored,
    losesNothing: true,
  },
  'Tinker session lost (one model)': {
    ...onOne,
    ...atWork('warm-up', 'generate', ...inPlace, 'train', 'eval'),
    strike: endSessions,
    judge: judgeRestored,
    losesNothing: true,
  },
  'GPU worker killed (one Tinker model)': {
    ...onOne,
    ...atWork('warm-up', ...inPlace, 'train'),
    strike: ({ stage }) => kill(stage, 'train worker'),
    losesNothing: true,
  },
  'GPU worker lost, another one takes over (one Tinker model)': {
    ...onOne,
    ...atWork(...inPlace),
    stage: 'tinker, one model, two GPU workers',
    strike: loseHolder,
    losesNothing: true,
  },
  'rollout worker killed (one Tinker model)': {
    ...onOne,
    ...atWork('generate', 'eval'),
    strike: ({ stage }) => kill(stage, 'rollout worker'),
  },
  'zombie (one Tinker model)': { ...onOne, ...atWork(...inPlace), strike: zombie },
} satisfies Rows;

export const tinkerFaults = {
  'Tinker server killed': {
    ...onTinker,
    ...atWork('warm-up', 'generate', ...gaps, 'train', 'trained', 'commit', 'broadcast', 'eval'),
    strike: killServer,
    judge: judgeRestored,
    losesNothing: true,
  },
  'Tinker session lost': {
    ...onTinker,
    ...atWork('warm-up', 'generate', ...gaps, 'train', 'eval'),
    strike: endSessions,
    judge: judgeRestored,
    losesNothing: true,
  },
  'GPU worker killed (Tinker)': { ...killed('train worker', 'warm-up', ...gaps, 'train'), losesNothing: true },
  'GPU worker lost, another one takes over (Tinker)': {
    ...onTinker,
    ...atWork('forward_backward', 'optim_step', 'save_weights'),
    stage: 'tinker, two GPU workers',
    strike: loseHolder,
    losesNothing: true,
  },
  'rollout worker killed (Tinker)': killed('rollout worker', 'generate', 'load_weights', 'eval'),
  'orchestrator worker killed (Tinker)': { ...killed('orchestrator worker', ...gaps), losesNothing: true },
  'Temporal server killed (Tinker)': killed('Temporal server', ...gaps),
  'activity fails (Tinker)': {
    ...onTinker,
    ...atWork(...gaps),
    action: 'fail',
    strike: () => Promise.resolve(),
    losesNothing: true,
  },
  'zombie (Tinker)': { ...onTinker, ...atWork('forward_backward', 'optim_step', 'save_weights'), strike: zombie },
  ...oneModelFaults,
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

/** Like a server that took the worker for dead: heartbeats are answered with 410, and its models are not loaded. */
async function endSessions({ stage }: Struck): Promise<void> {
  const { tinker } = stage.surroundings;
  assert.ok(tinker, 'the stage has a Tinker server');
  const answer = await fetch(`${tinker.url}/stand_in`, { method: 'POST', body: JSON.stringify({ endSessions: true }) });
  assert.equal(answer.status, 200);
}

/**
 * Judged like other cells; and a step whose model was lost half-way was begun again from the checkpoint before it,
 * once.
 */
async function judgeRestored(judged: Judged): Promise<void> {
  judgeByWeights(judged);
  const { run, column } = judged;
  if (column !== 'forward_backward' && column !== 'optim_step') return;
  const rows = decodeRows<Record<string, number>>((await run.store.read(layout.metrics()))!, layout.metrics());
  assert.equal(
    rows.reduce((sum, row) => sum + (row['engine_restores'] ?? 0), 0),
    1,
  );
}
