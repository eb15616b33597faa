import { type Clock, startClock } from './clock.ts';
import { type Follower, lineOf, waitingLine } from './follow-run.ts';
import { eventLine, type NdjsonEnd, type NdjsonLine, waitingJson } from './ndjson.ts';
import type { TerminalView, ViewOptions } from './view/terminal-view.ts';
import { printJson } from './print.ts';

/** How a command that follows a run tells of it. */
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

/** A live view needs a terminal with a person in front of it. */
export function chooseTelling(
  { json, plain }: TellingOptions,
  env: NodeJS.ProcessEnv,
  stdout: { readonly isTTY?: boolean },
): Telling {
  if (json) return 'json';
  const isCi = !['', '0', 'false'].includes((env['CI'] ?? '').toLowerCase());
  return plain || !stdout.isTTY || env['TERM'] === 'dumb' || isCi ? 'lines' : 'view';
}

/** What the terminal can show, as its environment says. */
export function looksOf(env: NodeJS.ProcessEnv): ViewOptions['shows'] {
  const locale = env['LC_ALL'] || env['LC_CTYPE'] || env['LANG'] || '';
  const keepsRows = env['XTERM_VERSION'] !== undefined || env['STY'] !== undefined || env['TERM'] === 'linux';
  return { hasColor: !env['NO_COLOR'], hasUnicode: /utf-?8/i.test(locale), reflows: !keepsRows };
}

/** What following begins with. */
interface Beginning extends Pick<ViewOptions, 'run' | 'leaving' | 'rollouts' | 'onLeave'> {
  readonly workflow: string;
  readonly attached: boolean;
}

export interface Audience extends Follower, Pick<Clock, 'say' | 'part'> {
  readonly begin: (beginning: Beginning) => Promise<void>;
  /** Who looks into a page of the live view when the run ends may finish reading. */
  readonly untilRead: (left: AbortSignal) => Promise<void>;
  /** Nothing more happens: the live view gives the terminal back. What is said from now on are lines. */
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
      // Only who looks at it waits for it to be loaded.
      const { TerminalView } = await import('./view/terminal-view.ts');
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
