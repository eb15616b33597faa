import { emitKeypressEvents } from 'node:readline';
import type { ReadStream, WriteStream } from 'node:tty';
import { createLogUpdate } from 'log-update';
import type { Found } from '../../../runs/evaluations/evaluation.ts';
import { counted } from '../../eval/figures.ts';
import type { Keyboard, Screen } from '../terminal-view.ts';
import { type Look, written } from '../lines.ts';
import { EvaluationData } from './evaluation-data.ts';
import { browserFrame } from './frame.ts';
import { afterKey, type TypedKey } from './keys.ts';
import { beginning, type BrowserState, lookedAgain, type Size } from './state.ts';

export interface BrowseOptions {
  readonly found: Found;
  /** Looks again. */
  readonly find: () => Promise<Found>;
  readonly screen: Screen;
  readonly keyboard: Keyboard;
  readonly shows: Look;
}

/** The other screen of a terminal: what was there before comes back when it is left. */
const enterScreen = '\u001b[?1049h\u001b[?25l\u001b[2J\u001b[H';
const leaveScreen = '\u001b[?25h\u001b[?1049l';
const clearScreen = '\u001b[2J\u001b[H';
/** Bytes of text that a terminal takes for its clipboard; xterm takes no more. */
const copyBytesMax = 74_000;
/** While files are read there is more to see all the time: no oftener than this. */
const drawEveryMs = 100;

/** Looks through evaluations on a terminal until it is left. */
export async function browse(options: BrowseOptions): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    new Browser(options, (bug) => (bug === undefined ? resolve() : reject(bug))).open();
  });
}

/** Keys to a state, the state to rows, and the rows that differ to the terminal. */
export class Browser {
  readonly #options: BrowseOptions;
  readonly #onLeave: (bug?: Error) => void;
  #data: EvaluationData;
  readonly #log: ReturnType<typeof createLogUpdate>;
  #state: BrowserState = beginning;
  #isOpen = false;
  #nextDraw: NodeJS.Timeout | null = null;

  /** @param onLeave Told once the terminal is as it was; with what went wrong where it was not a person who left. */
  constructor(options: BrowseOptions, onLeave: (bug?: Error) => void) {
    this.#options = options;
    this.#onLeave = onLeave;
    this.#data = new EvaluationData(options.found, this.#drawSoon);
    this.#log = createLogUpdate(options.screen as WriteStream, { showCursor: true });
  }

  open(): void {
    const { screen, keyboard } = this.#options;
    this.#isOpen = true;
    screen.on('resize', this.#redraw);
    process.on('exit', this.close).on('SIGCONT', this.#onContinue).on('SIGTERM', this.#leave).on('SIGHUP', this.#leave);
    emitKeypressEvents(keyboard as ReadStream);
    keyboard.on('keypress', this.#onKeypress);
    this.#takeTerminal();
    this.#draw();
  }

  /** The terminal is as it was before, also at the end of the process. */
  readonly close = (): void => {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    if (this.#nextDraw) clearTimeout(this.#nextDraw);
    this.#data.close();
    const { screen, keyboard } = this.#options;
    screen.off('resize', this.#redraw);
    process.off('exit', this.close).off('SIGCONT', this.#onContinue);
    process.off('SIGTERM', this.#leave).off('SIGHUP', this.#leave);
    keyboard.off('keypress', this.#onKeypress);
    this.#leaveTerminal();
  };

  readonly #leave = (): void => {
    this.close();
    this.#onLeave();
  };

  #takeTerminal(): void {
    const { screen, keyboard } = this.#options;
    screen.write(enterScreen);
    keyboard.setRawMode(true);
    keyboard.resume();
  }

  #leaveTerminal(): void {
    const { screen, keyboard } = this.#options;
    this.#log.done();
    screen.write(leaveScreen);
    keyboard.setRawMode(false);
    keyboard.pause();
  }

  #size(): Size {
    const { screen } = this.#options;
    return { columns: Math.max(1, (screen.columns || 80) - 1), rows: screen.rows || 24 };
  }

  /** A bug is told where it can be read: below what was there before. */
  #draw(): void {
    try {
      this.#drawRows();
    } catch (bug) {
      this.#fail(bug);
    }
  }

  #fail(bug: unknown): void {
    this.close();
    this.#onLeave(bug instanceof Error ? bug : new Error(String(bug)));
  }

  #drawRows(): void {
    const { shows } = this.#options;
    const size = this.#size();
    const rows = browserFrame(this.#state, this.#data, size).map((line) => written(line, size.columns, shows));
    // log-update 7 loses count of rows where the last of those that differ is empty.
    this.#log(rows.map((row) => (row === '' ? ' ' : row)).join('\n'));
  }

  readonly #drawSoon = (): void => {
    if (!this.#isOpen) return;
    this.#nextDraw ??= setTimeout(() => {
      this.#nextDraw = null;
      this.#draw();
    }, drawEveryMs);
  };

  /** The terminal may have broken rows anew: all of it is drawn again. */
  readonly #redraw = (): void => {
    this.#options.screen.write(clearScreen);
    this.#log.done();
    this.#draw();
  };

  readonly #onKeypress = (text: string | undefined, key: TypedKey): void => {
    try {
      this.#take({ ...key, text });
    } catch (bug) {
      this.#fail(bug);
    }
  };

  #take(key: TypedKey): void {
    const next = afterKey(this.#state, key, this.#data, this.#size());
    if (next === 'leave') return this.#leave();
    if (next === 'suspend') return this.#suspend();
    if (next === 'look again') return void this.#lookAgain();
    this.#state = 'copy' in next ? { ...this.#state, note: this.#copy(next.copy, next.what) } : next;
    this.#draw();
  }

  async #lookAgain(): Promise<void> {
    this.#say('looking again …');
    try {
      const found = await this.#options.find();
      this.#data.close();
      this.#data = new EvaluationData(found, this.#drawSoon);
      this.#state = lookedAgain(this.#state);
    } catch (error) {
      this.#say(error instanceof Error ? error.message : String(error));
    }
    if (this.#isOpen) this.#draw();
  }

  #say(note: string): void {
    this.#state = { ...this.#state, note };
    this.#draw();
  }

  /** OSC 52: the terminal puts it into its clipboard, also across ssh; whether it did, it does not say. */
  #copy(text: string, what: string): string {
    const bytes = Buffer.from(text);
    const shown = bytes.subarray(0, copyBytesMax);
    this.#options.screen.write(`\u001b]52;c;${shown.toString('base64')}\u0007`);
    const part = shown.length < bytes.length ? `the first ${shown.length} bytes of ` : '';
    return `copied ${part}${what} (${counted(text.length, 'character')}), if the terminal allows it (OSC 52)`;
  }

  #suspend(): void {
    this.#leaveTerminal();
    process.kill(0, 'SIGTSTP'); // all of the job, as the terminal does it
  }

  readonly #onContinue = (): void => {
    this.#takeTerminal();
    this.#draw();
  };
}
