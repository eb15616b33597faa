/** Rows in which GPU workers train several runs: what one leaves in a worker reaches no other. */
import assert from 'node:assert/strict';

import { loseHolder } from './process-faults.ts';
import { stepsOfRun, type Row, type Rows, type Struck } from './row.ts';
import type { StagedRun } from './stage.ts';

type Overrides = Readonly<Record<string, string>>;

const anotherModel: Overrides = { model: 'preset:chars-0.4m' };
const adapters: Overrides = { 'lora.r': '4', 'lora.alpha': '8' };
/** Nothing but the warm-up. */
const supervised: Overrides = { 'max-steps': '0', 'sft.steps': '80' };

const where: Pick<Row, 'columns' | 'gaps'> = {
  columns: {
    only: ['warm-up', 'train', 'trained'],
    because: 'what a GPU worker holds is the same there as after the step',
  },
};

export const neighbourFaults = {
  'GPU worker lost, one that trained another model takes over (real engine)': takenOverFrom(anotherModel),
  'GPU worker lost, one that trained adapters takes over (real engine)': takenOverFrom(adapters),
  'GPU worker lost, one that trained all weights takes over adapters (real engine)': {
    ...takenOverFrom({}),
    overrides: adapters,
  },
  'GPU worker lost, one that was supervised takes over (real engine)': takenOverFrom(supervised),
  'another model trained in between, on the same GPU worker (real engine)': {
    stage: 'real',
    action: 'hold',
    strike: trainAnotherBetween,
    columns: { only: ['train'], because: 'the run has ended when the other model is trained' },
  },
} satisfies Rows;

/** While the run is held the other GPU worker trains a neighbour to its end; then the run moves there. */
function takenOverFrom(neighbour: Overrides): Row {
  return {
    stage: 'real, two GPU workers',
    action: 'hold',
    losesNothing: true,
    ...where,
    strike: async (struck: Struck) => {
      await trainBeside(struck, 'neighbour', neighbour);
      await loseHolder(struck);
    },
  };
}

/** The run, another model, and the run once more under another name: that one is compared. */
async function trainAnotherBetween(struck: Struck): Promise<StagedRun> {
  const { stage, run, release } = struck;
  release();
  await run.handle.result();
  await trainBeside(struck, 'other', anotherModel);
  return stage.start(`again-${run.name}`.slice(0, 64), { steps: stepsOfRun, overrides: run.overrides });
}

async function trainBeside({ stage, run }: Struck, name: string, overrides: Overrides): Promise<void> {
  const neighbour = await stage.start(`${name}-${run.name}`.slice(0, 64), { steps: stepsOfRun, overrides });
  const { ledger } = await neighbour.handle.result();
  assert.ok(ledger.isSound, JSON.stringify(ledger));
}
