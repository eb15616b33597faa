import { setTimeout as delay } from 'node:timers/promises';
import { readSinkStates } from '../../runs/metrics/run-sinks.ts';
import { openRunStore } from '../../store/index.ts';
import type { SinkState } from '../../core/rl/metric-rows.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { Audience } from './audience.ts';

/** Interval between looks at their progress. */
const pollMs = 250;
/** Time that our processes get to send everything; the rest is sent when processes start again. */
const patienceMs = 60_000;

/** Waits, before the processes that feed them are ended, until W&B and MLflow have the metrics of a run that is over. */
export async function untilSent(spec: RunSpec, { say }: Pick<Audience, 'say'>, left: AbortSignal): Promise<void> {
  const waiting = new Map<string, string>();
  if (spec.wandb && spec.wandb.mode !== 'disabled') waiting.set('wandb', 'W&B     ');
  if (spec.mlflow) waiting.set('mlflow', 'MLflow  ');
  if (waiting.size === 0) return;
  const store = openRunStore(spec.store.uri, spec.name);
  const until = performance.now() + patienceMs;
  for (;;) {
    const states = await readSinkStates(store);
    const isOver = performance.now() > until || left.aborted;
    for (const [name, title] of waiting) {
      const state = states[name];
      if (!state?.isDone && !state?.failing && !isOver) continue;
      waiting.delete(name);
      say(`${title}${state?.isDone ? (state.place ?? '') : whatIsLeft(state)}`);
    }
    if (waiting.size === 0) return;
    await delay(pollMs, undefined, { signal: left }).catch(() => undefined); // interrupted: said above
  }
}

function whatIsLeft(state: SinkState | undefined): string {
  const why = state?.failing ?? 'it was not waited for any longer';
  const sent = state ? `${state.next} of ${state.rows} rows sent` : 'nothing sent';
  return `${sent}: ${why}. The rest is sent when processes run here again (npx ratchet-rl dev).`;
}
