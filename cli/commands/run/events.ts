import { setTimeout as delay } from 'node:timers/promises';
import type { WorkflowHandle } from '@temporalio/client';
import { Command, Option } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { eventsKept } from '../../../core/limits.ts';
import { type Changed, changedKinds, changeLine, whoAsked } from '../../../core/rl/changes.ts';
import type { RunEvent } from '../../../workflows/control/messages.ts';
import { findRun, temporalHere } from '../../../workers/temporal/client.ts';
import { onOneLine } from '../../output/plain-text.ts';
import { rootMessage } from '../../../workers/temporal/root-message.ts';
import { requirePairs } from '../../typed/option-pairs.ts';
import { storeOption } from '../../typed/store-option.ts';
import { withTemporal } from '../../temporal/with-temporal.ts';
import { print, printAside, printJson } from '../../output/print.ts';

export const eventsCommand = new Command('events')
  .description('what happened in a run, oldest first; it keeps the last few hundred')
  .argument('<run>', 'its name; with --changes and --of the name of something else')
  .option('-f, --follow', 'continue until the run ends or you press Ctrl-C')
  .option('--since <n>', 'those after event number n', '0')
  .option('--changes', 'who changed what and when: everything that was asked of the run, from its folder')
  .addOption(
    new Option(
      '--of <kind>',
      'with --changes: of what; a search and an evaluation are named by their id or folder (default: run)',
    ).choices(changedKinds),
  )
  .option(...storeOption)
  .option('--json', 'one JSON object per event and line: sequence, time, kind, step, text, values')
  .action(async (run, options) => {
    if (!/^\d+$/.test(options.since)) {
      throw new RatchetError(
        'ConfigInvalid',
        `--since: expected the number of an event, got ${JSON.stringify(options.since)}.`,
      );
    }
    if (options.changes === true) return printChanges(run, options);
    if (await printFromServer(run, options)) return;
    const { findStoredPlace } = await import('../../stored/stored-runs.ts');
    const { storedEvents } = await import('../../stored/stored-events.ts');
    const place = await findStoredPlace(run, options.store);
    if (place === null) await withTemporal((client) => findRun(client, run)); // throws with a message that says what is missing
    else {
      printAside(`${run} is on no Temporal server here: its folder tells steps, evaluations and checkpoints`);
      printEvents(await storedEvents(place), options);
    }
  });

requirePairs(eventsCommand, { beside: [['--of', '--changes']], apart: [['--since', '--changes']] });

/** All changes that are in the store: a workflow keeps its newest events only. */
async function printChanges(name: string, { store, json, of: typed }: EventsOptions): Promise<void> {
  const of = typed ?? 'run';
  const { changesNamed } = await import('../../stored/find-changed.ts');
  const { changes, damaged } = await changesNamed(of, name, store).catch((error: unknown) => {
    const isNoRun = error instanceof RatchetError && error.code === 'RunNotFound' && typed === undefined;
    if (!isNoRun) throw error;
    const hint = `Where ${name} is something else than a run: --of ${changedKinds.filter((kind) => kind !== 'run').join(', --of ')}.`;
    throw new RatchetError(error.code, `${error.message} ${hint}`, { cause: error });
  });
  if (changes.length === 0 && json !== true)
    print(
      of === 'sweep' || of === 'pool' || of === 'schedule'
        ? `no change of a ${of} ${name} is in ${store ?? './outputs'}; --store names another place of ${of === 'schedule' ? 'runs' : 'its runs'}`
        : `${name}: nothing was asked of it yet`,
    );
  for (const why of damaged) printAside(`a change was not read: ${why}`);
  for (const change of changes) {
    if (json) printJson({ ...change, who: whoAsked(change) });
    else {
      const step = change.step === null ? '' : `step ${change.step}`;
      print(`${timeText(change.time)}  ${step.padEnd(10)}  ${onOneLine(changeLine(change))}`);
    }
  }
}

/** False when there is no server, or it does not know the run. */
async function printFromServer(run: string, options: EventsOptions): Promise<boolean> {
  if ((await temporalHere(process.cwd())) === null) return false;
  return withTemporal(async (client) => {
    const handle = await findRun(client, run).catch((error: unknown) => {
      if (error instanceof RatchetError && error.code === 'RunNotFound') return null;
      throw error;
    });
    if (handle) await follow(run, handle, options);
    return handle !== null;
  });
}

interface EventsOptions {
  readonly follow?: boolean;
  readonly since: string;
  readonly json?: boolean;
  readonly store?: string;
  readonly changes?: boolean;
  readonly of?: Changed['kind'];
}

const pollMs = 500;
/** A run that has ended is replayed to answer. */
const answerWithinMs = 30_000;

async function follow(run: string, handle: WorkflowHandle, options: EventsOptions): Promise<void> {
  let seen = Number(options.since);
  let isFirst = true;
  for (;;) {
    // Asked before its events: those of its last moment are then among them.
    const isRunning = options.follow ? await runs(handle) : false;
    const fresh = await eventsAfter(handle, seen, options.follow === true);
    const [oldest] = fresh;
    if (isFirst && oldest && oldest.sequence > seen + 1)
      printAside(
        `A workflow keeps its newest ${eventsKept} events: ${seen + 1} to ${oldest.sequence - 1} are not among them. Every step and evaluation: npx ratchet-rl metrics ${run} --all`,
      );
    isFirst = false;
    printEvents(fresh, options);
    seen = fresh.at(-1)?.sequence ?? seen;
    if (!isRunning) return;
    await delay(pollMs);
  }
}

function printEvents(events: readonly RunEvent[], { json, since }: EventsOptions): void {
  for (const event of events) {
    if (event.sequence <= Number(since)) continue;
    if (json) printJson(event);
    else print(lineOf(event));
  }
}

/** While following, asks a server or orchestrator that is being restarted again. */
async function eventsAfter(handle: WorkflowHandle, seen: number, isFollowed: boolean): Promise<readonly RunEvent[]> {
  try {
    const ask = () => handle.query<readonly RunEvent[], [number]>('events', seen);
    return await handle.client.withDeadline(Date.now() + answerWithinMs, ask);
  } catch (error) {
    if (isFollowed) return [];
    const why = rootMessage(error);
    throw new RatchetError(
      'ServerUnavailable',
      `${handle.workflowId} does not tell its events: ${why} An orchestrator has to be there to answer for it (ratchet dev, or ratchet worker --role orchestrator).`,
      { cause: error },
    );
  }
}

async function runs(handle: WorkflowHandle): Promise<boolean> {
  try {
    return (await handle.describe()).status.name === 'RUNNING';
  } catch {
    return true; // no orchestrator answers now; asked again
  }
}

/** An event is one line, so that the lines are as many as the events. */
export function lineOf({ sequence, time, kind, text }: RunEvent): string {
  return `${String(sequence).padStart(5)}  ${timeText(time)}  ${kind.padEnd(10)}  ${onOneLine(text)}`;
}

function timeText(time: string): string {
  return time.slice(0, 19).replace('T', ' ');
}
