import { type Clock, startClock } from '../output/clock.ts';
import { type Follower, lineOf, waitingLine } from './follow-run.ts';
import { eventLine, type NdjsonEnd, type NdjsonLine, waitingJson } from '../output/ndjson.ts';
import type { TerminalView, ViewOptions } from '../view/terminal-view.ts';
import { printJson } from '../output/print.ts';

/** Output of a command that follows a run. */
type Telling = 'view' | 'lines' | 'json';

export interface TellingOptions {
  readonly json?: boolean;
  readonly plain?: boolean;
}

/** The options of the commands that follow a run. */
export const tellingOptions = {
  plain: ['--plain', 'one line for each event instead of the live view'],
  json: ['--json', 'one JSON object a line on stdout (docs/guide/ndjson.md); what is for people goes to stderr'],
} as const;

/** A live view needs an interactive terminal. */
export function chooseTelling(
  { json, plain }: TellingOptions,
  env: NodeJS.ProcessEnv,
  stdout: { readonly isTTY?: boolean },
): Telling {
  if (json) return 'json';
  const isCi = !['', '0', 'false'].includes((env['CI'] ?? '').toLowerCase());
  return plain || !stdout.isTTY || env['TERM'] === 'dumb' || isCi ? 'lines' : 'view';
}

/** Features of the terminal, from environment variables. */
export function looksOf(env: NodeJS.ProcessEnv): ViewOptions['shows'] {
  const locale = env['LC_ALL'] || env['LC_CTYPE'] || env['LANG'] || '';
  const keepsRows = env['XTERM_VERSION'] !== undefined || env['STY'] !== undefined || env['TERM'] === 'linux';
  return { hasColor: !env['NO_COLOR'], hasUnicode: /utf-?8/i.test(locale), reflows: !keepsRows };
}

/** Facts known when following begins. */
interface Beginning extends Pick<ViewOptions, 'run' | 'leaving' | 'rollouts' | 'onLeave'> {
  readonly workflow: string;
  readonly attached: boolean;
}

export interface Audience extends Follower, Pick<Clock, 'say' | 'part'> {
  readonly begin: (beginning: Beginning) => Promise<void>;
  /** Keeps the view open after the run's end for a user who reads one of its pages. */
  readonly untilRead: (left: AbortSignal) => Promise<void>;
  /** The live view gives the terminal back; later output is lines. */
  readonly leave: () => void;
  readonly end: (end: Omit<NdjsonEnd, 'type' | 'time' | 'run'>) => void;
}

export function openAudience(telling: Telling): Audience {
  switch (telling) {
    case 'lines':
      return linesAudience(startClock());
    case 'json':
      return jsonAudience(startClock((text) => void process.stderr.write(text), undefined, false));
    case 'view':
      return viewAudience(startClock());
    default:
      return telling satisfies never;
  }
}

function linesAudience({ say, part }: Clock): Audience {
  let run = '';
  return {
    say,
    part,
    event: (event) => say(lineOf(event)),
    waiting: (waiting) => say(waitingLine(run, waiting)),
    begin(beginning) {
      run = beginning.run;
      return Promise.resolve();
    },
    untilRead: () => Promise.resolve(),
    leave: () => undefined,
    end: () => undefined,
  };
}

function jsonAudience({ say, part }: Clock): Audience {
  let run = '';
  const write = (line: NdjsonLine): void => printJson(line);
  return {
    say,
    part,
    event: (event) => write(eventLine(run, event)),
    waiting: (waiting) => write(waitingJson(run, waiting)),
    begin: (beginning) => {
      run = beginning.run;
      const { workflow, attached } = beginning;
      write({ type: 'started', time: new Date().toISOString(), run, workflow, attached });
      return Promise.resolve();
    },
    untilRead: () => Promise.resolve(),
    leave: () => undefined,
    end: (end) => write({ type: 'end', time: new Date().toISOString(), run, ...end }),
  };
}

function viewAudience(clock: Clock): Audience {
  let view: TerminalView | null = null;
  const say: Clock['say'] = (line, bold) => (view ? view.say(line) : clock.say(line, bold));
  return {
    say,
    part: clock.part,
    event: (event) => (view ? view.event(event) : clock.say(lineOf(event))),
    earlier: (events) => view?.earlier(events),
    waiting: () => undefined, // it is on the screen all the time
    snapshot: (look) => view?.snapshot(look),
    begin: async ({ run, leaving, rollouts, onLeave }) => {
      // Imported on use: it takes long to load.
      const { TerminalView } = await import('../view/terminal-view.ts');
      const shows = looksOf(process.env);
      const [screen, keyboard] = [process.stdout, process.stdin.isTTY ? process.stdin : null];
      view = new TerminalView({ run, leaving, rollouts, onLeave, screen, keyboard, shows, asLine: clock.stamped });
      view.open();
    },
    untilRead: async (left) => view?.untilRead(left),
    leave: () => {
      view?.close();
      view = null;
    },
    end: () => undefined,
  };
}
