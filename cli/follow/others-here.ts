import { setTimeout as delay } from 'node:timers/promises';
import type { Client } from '@temporalio/client';
import type { Clock } from '../output/clock.ts';
import { runStandings } from '../temporal/report-runs.ts';

/** Interval between looks at the list of runs. */
const lookMs = 2_000;
/** Time for the commands that watched the runs to ask the workers for their last lines. */
const lastLinesMs = 8_000;

/**
 * Waits until no other run uses the processes of this command, or until `left`, before they are ended. Paused runs are
 * not waited for: they continue only when a user resumes them.
 */
export async function untilOthersEnd(
  client: Client,
  ours: string,
  { say }: Pick<Clock, 'say'>,
  left: AbortSignal,
  pauses = { lookMs, lastLinesMs },
): Promise<void> {
  const since = new Date();
  let told = '';
  for (;;) {
    const others = await goingOn(client, since, ours);
    if (others?.length === 0 || left.aborted) break;
    const names = others?.join(', ') ?? told;
    if (names !== told) say(`${names}: still running here. Ctrl-C ends that, too; nothing committed is lost`);
    told = names;
    await delay(pauses.lookMs, undefined, { signal: left }).catch(() => undefined); // left: said above
  }
  if (told !== '') await delay(pauses.lastLinesMs, undefined, { signal: left }).catch(() => undefined); // left: they are not waited for
}

/** null when the server does not answer: it is being restarted. */
async function goingOn(client: Client, since: Date, ours: string): Promise<string[] | null> {
  try {
    const standings = await runStandings(client, since);
    return [...standings].flatMap(([run, { state }]) => (state === 'running' && run !== ours ? [run] : []));
  } catch {
    return null;
  }
}
