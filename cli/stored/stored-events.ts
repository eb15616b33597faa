import { changeLine, whoAsked } from '../../core/rl/changes.ts';
import { readChanges } from '../../runs/changes.ts';
import { layout } from '../../runs/layout.ts';
import { curvesOf } from '../../runs/metrics/curves.ts';
import { readMetrics } from '../../runs/metrics/metrics.ts';
import { stepRecords } from '../../runs/metrics/step-records.ts';
import { currentLineage, type RunPlace, storeOf } from '../../runs/run-access.ts';
import type { RunEvent } from '../../workflows/control/messages.ts';

/** Events shown by commits, evaluations, checkpoints and recorded changes; only the Temporal server knows the others. */
export async function storedEvents(place: RunPlace): Promise<RunEvent[]> {
  const lineage = await currentLineage(place);
  const [records, { evals }, checkpoints, times, { changes }] = await Promise.all([
    stepRecords(place),
    curvesOf({ ...place, lineage }, Infinity),
    storeOf(place).list(layout.allCheckpoints(lineage)),
    timesOf(place),
    readChanges({ ...place, kind: 'run' }),
  ]);
  const sealed = new Set(checkpoints.filter((key) => key.endsWith('/manifest.json')));
  const events = records.flatMap(({ step, lineage: of, metrics }): Omit<RunEvent, 'sequence'>[] => {
    const time = times.get(`${of}/${step}`) ?? '';
    const figures = { reward: metrics['train/reward'], loss: metrics['train/loss'], step_s: metrics['time/step'] };
    const values = Object.fromEntries(Object.entries(figures).filter((one): one is [string, number] => one[1] != null));
    const said = [
      `step ${step}`,
      ...(values['reward'] === undefined ? [] : [`reward ${values['reward'].toFixed(3)}`]),
      ...(values['loss'] === undefined ? [] : [`loss ${values['loss'].toFixed(3)}`]),
      ...(values['step_s'] === undefined ? [] : [`step ${values['step_s'].toFixed(2)}s`]),
    ];
    const trained: Omit<RunEvent, 'sequence'>[] =
      'train/reward' in metrics ? [{ time, kind: 'step', step, text: said.join('  '), values }] : [];
    const evaluated = evals
      .filter((one) => one.step === step)
      .map(({ environment, reward, greedyReward }): Omit<RunEvent, 'sequence'> => ({
        time,
        kind: 'eval',
        step,
        text: `eval v${step} ${environment}: reward ${reward?.toFixed(3) ?? '–'}${greedyReward === null ? '' : `  greedy ${greedyReward.toFixed(3)}`}`,
        values: { environment, ...(reward === null ? {} : { reward }) },
      }));
    const kept: Omit<RunEvent, 'sequence'>[] = sealed.has(`${layout.checkpoint(lineage, step)}manifest.json`)
      ? [{ time, kind: 'checkpoint', step, text: `checkpoint ${step} sealed`, values: {} }]
      : [];
    return [...trained, ...evaluated, ...kept];
  });
  const asked = changes.map((change): Omit<RunEvent, 'sequence'> => ({
    time: change.time,
    kind: 'change',
    step: change.step ?? 0,
    text: changeLine(change),
    values: { who: whoAsked(change), what: change.what },
  }));
  return inOrder(events, asked).map((event, i) => ({ sequence: i + 1, ...event }));
}

/** Events are in their order already, and some have no time: each change comes before the first that is later. */
function inOrder<Event extends { readonly time: string }>(events: readonly Event[], asked: readonly Event[]): Event[] {
  const left = [...asked];
  const found = events.flatMap((event) => {
    const next = left.findIndex(({ time }) => time > event.time);
    const before = event.time === '' ? [] : left.splice(0, next < 0 ? left.length : next);
    return [...before, event];
  });
  return [...found, ...left];
}

/** When each step was committed, by `lineage/step`. */
async function timesOf(place: RunPlace): Promise<Map<string, string>> {
  const rows = await readMetrics(storeOf(place));
  return new Map(
    rows.flatMap(({ lineage, step, time }) =>
      typeof time === 'string' ? [[`${lineage}/${step}`, time] as const] : [],
    ),
  );
}
