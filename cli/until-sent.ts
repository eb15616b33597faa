import { setTimeout as delay } from 'node:timers/promises';
import { readSinkStates } from '../runs/run-sinks.ts';
import { openRunStore } from '../backends/store/index.ts';
import type { RunSpec } from '../config/run-spec.ts';
import type { Audience } from './audience.ts';

/** How often one looks how far W&B is. */
const pollMs = 250;
/** How long the end of our processes waits for W&B to have everything; what it lacks then it gets when they start again. */
const patienceMs = 60_000;

/** Waits, before the processes that feed it are ended, until W&B has the metrics of a run that is over. */
export async function untilSent(spec: RunSpec, { say }: Pick<Audience, 'say'>, left: AbortSignal): Promise<void> {
  if (!spec.wandb || spec.wandb.mode === 'disabled') return;
  const store = openRunStore(spec.store.uri, spec.name);
  const until = performance.now() + patienceMs;
  for (;;) {
    const { wandb } = await readSinkStates(store);
    const isOver = performance.now() > until || left.aborted;
    if (wandb?.isDone) return say(`W&B     ${wandb.place ?? ''}`);
    if (wandb?.failing || isOver) {
      const why = wandb?.failing ?? 'it was not waited for any longer';
      const sent = wandb ? `${wandb.next} of ${wandb.rows} rows sent` : 'nothing sent';
      return say(`W&B     ${sent}: ${why}. The rest is sent when processes run here again (npx ratchet dev).`);
    }
    await delay(pollMs, undefined, { signal: left }).catch(() => undefined); // interrupted: said above
  }
}
