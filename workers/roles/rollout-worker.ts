import type { Worker, WorkerOptions } from '@temporalio/worker';
import { createRolloutActivities } from '../../activities/of-rollout-worker.ts';
import { workerSlots } from '../../play/slots.ts';
import { loadTokenizer } from '../../engine/model/tokenizer/load-tokenizer.ts';
import { inferenceFor, type WorkerSettings } from './worker-settings.ts';
import type { StoreView } from '../../activities/around/store-view.ts';
import { GatedSlots } from './gated-slots.ts';
import { PlaySlots } from './play-slots.ts';
import { type OpenedWorker, runTogether } from './run-worker.ts';
import { fewSlots } from './few-slots.ts';
import { withinLoad } from './load-slots.ts';

interface RolloutParts {
  readonly common: WorkerOptions;
  readonly view: StoreView;
  readonly open: (options: WorkerOptions) => Promise<Worker>;
}

/** Worker that generates rollouts for all runs, as many as it has room for. */
export async function openRolloutWorker(
  settings: WorkerSettings,
  { common, open, view }: RolloutParts,
): Promise<OpenedWorker> {
  if (settings.maxRollouts !== undefined) workerSlots.limit = settings.maxRollouts;
  return runTogether([
    await open({
      ...common,
      activities: createRolloutActivities({ inference: inferenceFor(settings), tokenizer: loadTokenizer }),
      tuner: {
        ...fewSlots,
        activityTaskSlotSupplier: withinLoad(new GatedSlots(new PlaySlots(workerSlots), view), settings.loadTarget),
      },
    }),
  ]);
}
