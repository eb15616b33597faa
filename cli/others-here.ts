import { setTimeout as delay } from 'node:timers/promises';
import type { Client } from '@temporalio/client';
import type { Clock } from './clock.ts';
import { runStandings } from './report-runs.ts';

/** How often the list of runs is looked at. */
const lookMs = 2_000;
/** How long the commands that watched them have to ask the workers for their last lines. */
const lastLinesMs = 8_000;

/**
 * Waits, before the processes of a command whose run has ended are ended, until no other run is trained by them, or `left`.
 * One that is paused is not waited for: it goes on when somebody says so.
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

/** Null when the server does not say: it is being restarted. */
async function goingOn(client: Client, since: Date, ours: string): Promise<string[] | null> {
  try {
    const standings = await runStandings(client, since);
    return [...standings].flatMap(([run, { state }]) => (state === 'running' && run !== ours ? [run] : []));
  } catch {
    return null;
  }
}
