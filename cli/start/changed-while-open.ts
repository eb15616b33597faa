import type { RunSpec } from '../../config/run-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import { type LiveSetting, liveSettings } from '../../core/rl/live-settings.ts';
import { type Difference, differencesBetween, showSetting } from '../../runs/run-identity.ts';
import type { OpenRunSettings } from './open-run-settings.ts';

/** Differences between a run file and the open run that was started from it. */
interface Changes {
  /** Settings of the run that the open run does not follow. */
  readonly ofRun: readonly Change[];
  /** Settings that affect only its processes and their paths. */
  readonly ofProcesses: readonly Difference[];
  /** The settings that the open run was started with cannot be read here. */
  readonly areUnknown: boolean;
}

interface Change extends Difference {
  /** `ratchet set` gave this setting another value, which stays when the run is restarted. */
  readonly isSet: boolean;
}

/**
 * Compares the requested settings with those of an open run. Differences that come from another version of Ratchet do not count: a setting
 * has changed if the run file, read by today's code, gives another value than before.
 */
export async function changesSince(open: OpenRunSettings, now: RunSpec): Promise<Changes> {
  const { stored, sent, overrides } = open;
  const found = stored ? differencesBetween(now, stored) : [];
  if (stored && found.length === 0) return { ofRun: [], ofProcesses: [], areUnknown: false };
  const asSent = await sent();
  const written = asSent && differencesBetween(now, asSent);
  const changed = stored
    ? found.filter(({ at, isOfCode }) => isOfCode || !written || written.some((each) => isSamePart(each.at, at)))
    : (written ?? []);
  const ofRun = changed
    .filter(({ isOfProcesses }) => !isOfProcesses)
    .map((each): Change => {
      const set = each.live && overrides[liveSettings[each.live].key];
      return set == null ? { ...each, isSet: false } : { ...each, was: set, isSet: true };
    })
    .filter(({ isSet, was, now: asked }) => !isSet || was !== asked);
  const ofProcesses = changed.filter(({ isOfProcesses }) => isOfProcesses);
  return { ofRun, ofProcesses, areUnknown: stored === null && asSent === null };
}

/** One of the two specs may have a whole table where the other names a part of it. */
function isSamePart(one: string, other: string): boolean {
  return one === other || one.startsWith(`${other}.`) || other.startsWith(`${one}.`);
}

/** A run in another store is another run, even under the same name. */
function isOtherRun({ staysForLife, at }: Difference): boolean {
  return staysForLife || at.startsWith('store.');
}

/** Whether the run may continue with these changes. Others would make it another run. */
export function mayGoOnWith({ ofRun }: Changes): boolean {
  return !ofRun.some(isOtherRun);
}

/** Whether restarting the run would change anything. */
export function isForRestart({ ofRun }: Changes): boolean {
  return ofRun.some(({ isSet }) => !isSet);
}

/**
 * The changes with which an interrupted run goes on. The process that trains reads how it is started from the run, which would else start it for
 * ever by a `program` that is not there; samplers read that from the run file.
 */
export function withNewProcesses(changes: Changes): Changes {
  const ofTrainer = changes.ofProcesses.filter(({ at }) => isSamePart(at, 'trainer'));
  return { ...changes, ofRun: [...changes.ofRun, ...ofTrainer.map((each): Change => ({ ...each, isSet: false }))] };
}

/** Describes changes that the running processes lack, or says that the comparison was not possible. */
export function processLine(run: string, { ofProcesses, areUnknown }: Changes): string | null {
  if (areUnknown) return `what ${run} was started with cannot be read here, so the run file is not compared with it`;
  if (ofProcesses.length === 0) return null;
  const said = ofProcesses.map(({ name, was, now }) => `${name} ${showSetting(was)} (now ${showSetting(now)})`);
  return `the processes of ${run} go on as they were started: ${said.join(', ')}`;
}

export function changeLines({ ofRun }: Changes): string[] {
  return ofRun.map((change) => {
    const { name, was, now, isSet } = change;
    const why = isOtherRun(change)
      ? '   stays for the life of a run'
      : isSet
        ? '   set while it ran: only ratchet set changes it'
        : '';
    return `  ${name}: ${showSetting(was)} in the run → ${showSetting(now)} now${why}`;
  });
}

interface Asked {
  readonly run: string;
  readonly file: string;
  /** The command that was typed, to show it again. */
  readonly again: string;
  /** Current step of the open run, counted from 1; null if unknown. */
  readonly underWay: number | null;
  /** Its processes have ended, and this command restarts them. */
  readonly wasInterrupted: boolean;
}

/** Refuses with the differences and the command to type, so that no change is silent. */
export function otherSettings(changes: Changes, { run, file, again, underWay, wasInterrupted }: Asked): RatchetError {
  const live = changes.ofRun.flatMap(({ live: name, now }) => {
    if (name === null || typeof now !== 'number' || !liveSettings[name].takes(now, underWay ?? 0)) return [];
    return [`${name satisfies LiveSetting}=${now}`];
  });
  const choices: [type: string, does: string][] = [];
  if (!wasInterrupted) {
    choices.push([`npx ratchet-rl attach ${run}`, 'to watch the open run as it is']);
    if (live.length > 0)
      choices.push([`npx ratchet-rl set ${run} ${live.join(' ')}`, 'to change this in the open run']);
    if (mayGoOnWith(changes) && isForRestart(changes)) {
      choices.push([
        `npx ratchet-rl stop ${run}, and when it has ended ${again}`,
        'to continue it from its newest commit with the new settings',
      ]);
    }
  }
  choices.push([`${again} --fresh`, 'to train another run, under a new name (--name NAME gives it one)']);
  const state = wasInterrupted ? 'was interrupted and continues' : 'is open';
  return new RatchetError(
    'ConfigInvalid',
    [
      `The run ${run} ${state} with other settings than ${file} and the command line ask for now:`,
      ...changeLines(changes),
      'Nothing was changed. Type',
      ...choices.map(([type, does]) => `  ${type}\n      ${does}`),
    ].join('\n'),
  );
}
