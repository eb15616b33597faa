import type { FoundEvaluations } from '../../../runs/evaluations/evaluation.ts';
import { counted } from '../../eval/figures.ts';
import type { TypedKey } from '../keys.ts';
import { Terminal, type TerminalOptions } from '../terminal.ts';
import { EvaluationData } from './evaluation-data.ts';
import { browserFrame } from './frame.ts';
import { afterKey } from './keys.ts';
import { beginning, type BrowserState, lookedAgain } from './state.ts';

interface BrowseOptions extends Pick<TerminalOptions, 'screen' | 'keyboard' | 'shows'> {
  readonly found: FoundEvaluations;
  /** Looks for evaluations again. */
  readonly find: () => Promise<FoundEvaluations>;
}

/** Bytes of text that a terminal takes for its clipboard; xterm takes no more. */
const copyBytesMax = 74_000;
/** Least interval between redraws while files are read. */
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
  readonly #terminal: Terminal;
  #state: BrowserState = beginning;
  #isOpen = false;
  #nextDraw: NodeJS.Timeout | null = null;

  /** @param onLeave Called once the terminal is restored, with the error unless the user left. */
  constructor(options: BrowseOptions, onLeave: (bug?: Error) => void) {
    this.#options = options;
    this.#onLeave = onLeave;
    this.#data = new EvaluationData(options.found, this.#drawSoon);
    const { screen, keyboard, shows } = options;
    const redraw = (): void => this.#draw();
    const [onKey, onExit] = [this.#onKey, this.close];
    this.#terminal = new Terminal({ screen, keyboard, shows, takes: 'the screen', onKey, onRedraw: redraw, onExit });
  }

  open(): void {
    this.#isOpen = true;
    process.on('SIGTERM', this.#leave).on('SIGHUP', this.#leave);
    this.#terminal.open();
    this.#draw();
  }

  /** Restores the terminal, also at the end of the process. */
  readonly close = (): void => {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    if (this.#nextDraw) clearTimeout(this.#nextDraw);
    this.#data.close();
    process.off('SIGTERM', this.#leave).off('SIGHUP', this.#leave);
    this.#terminal.close();
  };

  readonly #leave = (): void => {
    this.close();
    this.#onLeave();
  };

  /** A bug is reported after the terminal is restored, so that it can be read. */
  #draw(): void {
    try {
      this.#terminal.draw(browserFrame(this.#state, this.#data, this.#terminal.size));
    } catch (bug) {
      this.#fail(bug);
    }
  }

  #fail(bug: unknown): void {
    this.close();
    this.#onLeave(bug instanceof Error ? bug : new Error(String(bug)));
  }

  readonly #drawSoon = (): void => {
    if (!this.#isOpen) return;
    this.#nextDraw ??= setTimeout(() => {
      this.#nextDraw = null;
      this.#draw();
    }, drawEveryMs);
  };

  readonly #onKey = (key: TypedKey): void => {
    try {
      this.#take(key);
    } catch (bug) {
      this.#fail(bug);
    }
  };

  #take(key: TypedKey): void {
    const next = afterKey(this.#state, key, this.#data, this.#terminal.size);
    if (next === 'leave') return this.#leave();
    if (next === 'suspend') return this.#terminal.suspend();
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

  /** OSC 52: asks the terminal to put it into its clipboard, also across ssh; there is no confirmation. */
  #copy(text: string, what: string): string {
    const bytes = Buffer.from(text);
    const shown = bytes.subarray(0, copyBytesMax);
    this.#options.screen.write(`\u001b]52;c;${shown.toString('base64')}\u0007`);
    const part = shown.length < bytes.length ? `the first ${shown.length} bytes of ` : '';
    return `copied ${part}${what} (${counted(text.length, 'character')}), if the terminal allows it (OSC 52)`;
  }
}
