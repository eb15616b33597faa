import { decideRung } from '../../core/sweep/halving.ts';
import type { SweepInput, SweepStatus } from '../../core/sweep/sweep.ts';
import { SweepState } from '../../core/sweep/sweep-state.ts';
import { rungValue } from '../../runs/metrics/rung-value.ts';

/** How a sweep stands by what its runs have committed: what its workflow would find if it were begun again. */
export async function storedSweep(input: SweepInput): Promise<SweepStatus> {
  const status = await statusOf(input);
  return status.phase === 'finished' ? status : { ...status, phase: 'not running' };
}

async function statusOf(input: SweepInput): Promise<SweepStatus> {
  const state = new SweepState(input, null);
  for (;;) {
    const step = state.rungStep;
    const measured = await Promise.all(
      state.waiting.map(async (run) => {
        const asked = { run: { name: run.name, store: input.store }, metric: input.metric, step };
        return { run, ...(await rungValue(asked)) };
      }),
    );
    for (const { run, ...found } of measured) {
      const { step: made, value } = found;
      if (made === null) continue;
      if (made >= step && value !== null) state.measured(run, { ...found, step: made });
      else state.madeSoFar(run, made);
    }
    if (state.waiting.length > 0) return state.status();
    const eta = state.isLastRung ? null : (input.halving?.eta ?? null);
    if (state.decide(decideRung(state.results(), input.metric.goal, eta))) return state.status();
  }
}
