import type { EvaluationPlace } from '../eval/evaluation.ts';
import { shortened } from '../steering.ts';

/** What has a record of changes, in the words of `ratchet events --of`. */
export const changedKinds = [
  'run',
  'sweep',
  'search',
  'evaluation',
  'pool',
  'schedule',
] as const satisfies readonly Changed['kind'][];

/** What a person changed, with the place where its changes are kept. */
export type Changed =
  /** `store`: the absolute URI of the folder of runs. */
  | { readonly kind: 'run' | 'sweep' | 'pool' | 'schedule'; readonly name: string; readonly store: string }
  | { readonly kind: 'search' | 'evaluation'; readonly place: EvaluationPlace };

/** What people do with a schedule. */
export const scheduleChanges = [
  'schedule',
  'schedule-pause',
  'schedule-resume',
  'schedule-trigger',
  'schedule-delete',
] as const;

/** What a person did who started a workflow, and what of: another word than `start` where it belongs to something else. */
export type StartedAs = Pick<RunChange, 'what' | 'asked'>;

/** A change that a person asked for, and that was made: `runs/changes.ts` keeps it. */
export interface RunChange {
  /** When Temporal took it, ISO. */
  readonly time: string;
  /** Name that the client of the person gave itself, such as `ratchet ann@laptop 4711`. Nobody checks it. */
  readonly identity: string;
  /** Who it was by the certificate or the token of the connection; null where the Temporal server does not say. */
  readonly principal: string | null;
  /**
   * The update (`pause`, `set`, …), or `start`, `cancel` and `terminate`; of a rescore `rescore`, `rescore-cancel`, …, of a
   * schedule `schedule`, `schedule-pause`, ….
   */
  readonly what: string;
  /** What it asked for, for people: `learning_rate=0.0001`; empty where its name says all. */
  readonly asked: string;
  /** Last committed step of a run; null where it is not known, and for all else than a run. */
  readonly step: number | null;
  /** The workflow and its execution. */
  readonly workflow: string;
  readonly execution: string;
  /** Id of the update; else `what`, which an execution has once. */
  readonly id: string;
}

const askedMax = 500;

/** The change that a start, a cancellation or a termination is: `rescore`, `rescore-cancel`. */
export function namedAs<Change extends StartedAs>(change: Change, as: StartedAs | undefined): Change {
  if (as === undefined) return change;
  const what = change.what === 'start' ? as.what : `${as.what}-${change.what}`;
  const asked = [as.asked, change.asked].filter((text) => text !== '').join(': ');
  return { ...change, what, asked: shortened(asked, askedMax) };
}

/** The input of an update in words. */
export function askedText(input: unknown): string {
  if (input === null || input === undefined) return '';
  if (typeof input !== 'object') return shortened(typeof input === 'string' ? input : JSON.stringify(input), askedMax);
  const pairs = Object.entries(input).map(([name, value]) => `${name}=${String(value)}`);
  return shortened(pairs.join(' '), askedMax);
}

/** The name within an identity: `ann@laptop` in `ratchet ann@laptop 4711`. */
export function nameIn(identity: string): string {
  return /^ratchet (.+) \d+$/.exec(identity)?.[1] ?? identity;
}

/** Who asked, for people: `ann@laptop`, behind it the name that the Temporal server knows, if it says one. */
export function whoAsked({ identity, principal }: Pick<RunChange, 'identity' | 'principal'>): string {
  const who = nameIn(identity);
  const said = who === '' ? 'somebody without a name' : shortened(who, askedMax);
  return principal === null ? said : `${said} [${shortened(principal, askedMax)}]`;
}

/** One line. */
export function changeLine(change: Pick<RunChange, 'identity' | 'principal' | 'what' | 'asked'>): string {
  return `${whoAsked(change)} asked: ${change.what}${change.asked === '' ? '' : ` ${change.asked}`}`;
}
