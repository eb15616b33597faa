import { emitKeypressEvents, type Interface } from 'node:readline';
import type { ReadStream, WriteStream } from 'node:tty';
import { createLogUpdate } from 'log-update';
import type { RunEvent, RunStatus } from '../../workflows/control/messages.ts';
import { type Follower, lineOf, type Look as RunLook } from '../follow-run.ts';
import { frame } from './frame.ts';
import { afterKey, home, type Key, type Place } from './keys.ts';
import { inAscii, type Line, type Look, widthOf, written } from './lines.ts';
import { rolloutLines } from './pages.ts';
import type { ShownGroup, StoredRollouts } from './stored-rollouts.ts';
import { viewModel } from './view-model.ts';

/** What the view needs of a terminal. */
export type Screen = Pick<WriteStream, 'write' | 'on' | 'off' | 'isTTY'> & {
  readonly columns: number;
  readonly rows: number;
};
export type Keyboard = Pick<ReadStream, 'on' | 'off' | 'setRawMode' | 'resume' | 'pause' | 'isTTY'>;

export interface ViewOptions {
  readonly run: string;
  readonly screen: Screen;
  /** Null when nobody can type. */
  readonly keyboard: Keyboard | null;
  readonly shows: Look & {
    /** The terminal breaks lines anew when it becomes narrower, as most do. */
    readonly reflows: boolean;
  };
  readonly leaving: 'detach' | 'stop';
  /** Asked once the run has answered; null where the store is not reached. */
  readonly rollouts: (status: RunStatus) => StoredRollouts | null;
  /** q and Ctrl-C. */
  readonly onLeave: () => void;
  /** How a line for people is written above the view, as with the time before it. */
  readonly asLine: (text: string) => string;
}

/** A sample is read anew at most so often, and takes at most one per cent of the time. */
const sampleMs = 4_000;
const sampleShare = 0.01;
const faultsKept = 200;
const faultKinds: readonly RunEvent['kind'][] = [
  'recovery',
  'refused',
  'regression',
  'warning',
  'paused',
  'resumed',
  'upgraded',
  'rewound',
];

/** Also a step that lost rollouts. */
function isFault({ kind, values }: RunEvent): boolean {
  return faultKinds.includes(kind) || (kind === 'step' && Number(values['failed_rollouts'] ?? 0) > 0);
}

const escapeCodeTimeout = 50;

const hideCursor = '\u001b[?25l';
const showCursor = '\u001b[?25h';
/** Row by row: where all of a screen is erased at once, tmux keeps it in the scroll-back. */
const eraseRow = '\u001b[2K';
const upOneRow = '\u001b[1A';

/**
 * A run on a terminal: events go up into the scroll-back as lines, and below them a few rows are drawn anew when something
 * changed. The scroll-back is never cleared, and no other screen is switched to; what was drawn last stays as text.
 */
export class TerminalView implements Follower {
  readonly #options: ViewOptions;
  readonly #log: ReturnType<typeof createLogUpdate>;
  #place: Place = home;
  #look: RunLook = { is: 'not open yet', status: null, pending: [] };
  readonly #faults: RunEvent[] = [];
  #lines: string[] = [];
  /** The rows as they stand on the screen. */
  #drawn: string[] = [];
  /** Undefined until the run has answered. */
  #rollouts: StoredRollouts | null | undefined;
  #groups: readonly ShownGroup[] = [];
  #groupsStep: number | null = null;
  /** Who reads on after the run's end goes on with this. */
  #onRead: (() => void) | null = null;
  #storeProblem: string | null = null;
  #sampled = { step: -1, atMs: -Infinity, tookMs: 0, isLoading: false };
  #isOpen = false;
  #warningListeners: ((warning: Error) => void)[] = [];

  constructor(options: ViewOptions) {
    this.#options = options;
    this.#log = createLogUpdate(options.screen as WriteStream, { showCursor: true });
  }

  open(): void {
    const { screen, keyboard } = this.#options;
    this.#isOpen = true;
    screen.on('resize', this.#onResize);
    process.on('exit', this.close).on('SIGCONT', this.#onContinue);
    // Node would write it between the rows.
    this.#warningListeners = process.listeners('warning');
    process.removeAllListeners('warning').on('warning', this.#onWarning);
    if (keyboard?.isTTY) {
      // Escape is a key of ours: Node would wait half a second for what may follow it.
      emitKeypressEvents(keyboard as ReadStream, { escapeCodeTimeout } as unknown as Interface);
      keyboard.on('keypress', this.#onKeypress);
    }
    this.#takeTerminal();
    this.#draw();
  }

  /** The last rows stay, the cursor is below them and visible, keys are typed as before. Also at the end of the process. */
  readonly close = (): void => {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    const { screen, keyboard } = this.#options;
    this.#flush(false);
    screen.off('resize', this.#onResize);
    process.off('exit', this.close).off('SIGCONT', this.#onContinue).off('warning', this.#onWarning);
    for (const listener of this.#warningListeners) process.on('warning', listener);
    keyboard?.off('keypress', this.#onKeypress);
    this.#leaveTerminal();
  };

  readonly say = (line: string): void => {
    this.#lines.push(this.#options.asLine(line));
    this.#flush();
  };

  readonly event = (event: RunEvent): void => {
    this.earlier([event]);
    this.#lines.push(this.#options.asLine(lineOf(event))); // drawn with the look that saw it
  };

  readonly earlier = (events: readonly RunEvent[]): void => {
    this.#faults.push(...events.filter(isFault));
    this.#faults.splice(0, this.#faults.length - faultsKept);
  };

  readonly waiting = (): void => undefined; // it is shown all the time

  readonly look = (look: RunLook): void => {
    this.#look = look;
    this.#flush();
    this.#readSample();
  };

  /** The run has ended: who reads a page is not torn away from it, and their keys do not land in the shell. Resolves when they go back. */
  readonly untilRead = (left: AbortSignal): Promise<void> => {
    if (!this.#isOpen || this.#place.page === 'run' || !this.#options.keyboard?.isTTY) return Promise.resolve();
    this.say('the run has ended; [esc] closes this view');
    return new Promise((resolve) => {
      this.#onRead = resolve;
      left.addEventListener('abort', () => resolve(), { once: true });
    });
  };

  #takeTerminal(): void {
    const { screen, keyboard } = this.#options;
    screen.write(hideCursor);
    if (keyboard?.isTTY) {
      keyboard.setRawMode(true);
      keyboard.resume();
    }
  }

  #leaveTerminal(): void {
    const { screen, keyboard } = this.#options;
    this.#log.done();
    screen.write(showCursor);
    if (keyboard?.isTTY) {
      keyboard.setRawMode(false);
      keyboard.pause();
    }
  }

  /** Lines that wait go above the rows that are drawn. */
  #flush(hasFooter = true): void {
    if (this.#lines.length > 0) {
      const { screen, shows } = this.#options;
      const text = this.#lines.join('');
      this.#lines = [];
      this.#log.clear();
      // Left to the terminal to wrap: it is the scroll-back's text.
      screen.write(shows.hasUnicode ? text : inAscii(text));
    }
    this.#draw(hasFooter);
  }

  #draw(hasFooter = true): void {
    const { screen, shows, run, leaving } = this.#options;
    const columns = this.#columns();
    const lines = frame({
      model: viewModel(this.#look, Date.now()),
      run,
      place: this.#place,
      groupsStep: this.#groupsStep,
      groups: this.#rollouts === null || this.#storeProblem !== null ? null : this.#groups,
      storeProblem: this.#storeProblem,
      evals: this.#look.status?.evals ?? [],
      faults: this.#faults,
      leaving,
      columns,
      rows: screen.rows || 24,
    });
    const shown: readonly Line[] = hasFooter ? lines : lines.slice(0, -1);
    const drawn = shown.map((line) => written(line, columns, shows));
    // log-update 7 writes only what differs, and loses count where a row came in or went between others that stay.
    if (drawn.length !== this.#drawn.length) this.#log.clear();
    this.#drawn = drawn;
    this.#log(drawn.join('\n'));
  }

  /** A full row would leave the cursor between two. */
  #columns(): number {
    return Math.max(1, (this.#options.screen.columns || 80) - 1);
  }

  readonly #onWarning = ({ name, message }: Error): void => this.say(`${name}: ${message}`);

  readonly #onResize = (): void => {
    const { screen, shows } = this.#options;
    const rowsOf = (line: string): number => Math.max(1, Math.ceil(widthOf(line) / Math.max(1, screen.columns)));
    const rows = this.#drawn.reduce((sum, line) => sum + (shows.reflows ? rowsOf(line) : 1), 0);
    screen.write(`${eraseRow}${`${upOneRow}${eraseRow}`.repeat(rows)}\r`);
    this.#log.done(); // it knows of nothing drawn
    this.#draw();
  };

  readonly #onKeypress = (_: string | undefined, key: Key): void => {
    const groups = this.#groups;
    const group = groups[Math.min(this.#place.group, groups.length - 1)];
    const rollout = group?.rollouts[Math.min(this.#place.rollout ?? 0, group.rollouts.length - 1)];
    const next = afterKey(this.#place, key, {
      groups: groups.length,
      rollouts: group?.rollouts.length ?? 0,
      lines: group && rollout ? rolloutLines(group, rollout, this.#columns()).length : 0,
    });
    if (this.#onRead && (next === 'leave' || (next !== 'suspend' && next.page === 'run'))) return this.#onRead();
    if (next === 'leave') return this.#options.onLeave();
    if (next === 'suspend') return this.#suspend();
    this.#place = next;
    this.#draw();
    this.#readSample();
  };

  #suspend(): void {
    this.#leaveTerminal();
    process.kill(0, 'SIGTSTP'); // all of the job, as the terminal does it
  }

  readonly #onContinue = (): void => {
    this.#takeTerminal();
    this.#draw();
  };

  /** Beside everything else; what is being looked at stays. */
  #readSample(): void {
    const { status } = this.#look;
    if (status && this.#rollouts === undefined) this.#rollouts = this.#options.rollouts(status);
    const rollouts = this.#rollouts;
    const { step, atMs, tookMs, isLoading } = this.#sampled;
    if (!rollouts || status === null || status.step < 1 || isLoading) return;
    if (status.step === step || this.#place.rollout !== null) return;
    const startedAtMs = performance.now();
    if (startedAtMs - atMs < Math.max(sampleMs, tookMs / sampleShare)) return;
    this.#sampled.isLoading = true;
    void rollouts
      .ofStep(status.lineage, status.step)
      .then(
        (groups) => {
          this.#storeProblem = null;
          if (groups.length > 0) [this.#groups, this.#groupsStep] = [groups, status.step];
        },
        (error: unknown) => void (this.#storeProblem = error instanceof Error ? error.message : String(error)),
      )
      .finally(() => {
        const nowMs = performance.now();
        this.#sampled = { step: status.step, atMs: nowMs, tookMs: nowMs - startedAtMs, isLoading: false };
        if (this.#isOpen) this.#draw();
      });
  }
}
