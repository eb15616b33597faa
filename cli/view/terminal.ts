import { emitKeypressEvents, type Interface } from 'node:readline';
import type { ReadStream, WriteStream } from 'node:tty';
import { createLogUpdate } from 'log-update';
import type { TypedKey } from './keys.ts';
import { type Line, type TerminalSupport, widthOf, written } from './lines.ts';

/** The part of a terminal that a view needs. */
export type TerminalOutput = Pick<WriteStream, 'write' | 'on' | 'off' | 'isTTY'> & {
  readonly columns: number;
  readonly rows: number;
};
export type Keyboard = Pick<ReadStream, 'on' | 'off' | 'setRawMode' | 'resume' | 'pause' | 'isTTY'>;

export interface Size {
  readonly columns: number;
  readonly rows: number;
}

export interface TerminalOptions {
  readonly screen: TerminalOutput;
  /** null when the input is not a keyboard. */
  readonly keyboard: Keyboard | null;
  readonly shows: TerminalSupport & {
    /** Whether the terminal rewraps lines when it becomes narrower, as most do. */
    readonly reflows?: boolean;
  };
  /** Takes the whole screen, whose old content returns afterwards; or rows below the printed lines, which stay. */
  readonly takes: 'the screen' | 'rows below';
  readonly onKey: (key: TypedKey) => void;
  /** Called when the drawing is lost, as after a resize. */
  readonly onRedraw: () => void;
  /** Called when the process ends. */
  readonly onExit: () => void;
}

/** Short, since Escape is one of our keys: Node would wait half a second for the rest of a sequence. */
const escapeCodeTimeout = 50;

const hideCursor = '\u001b[?25l';
const showCursor = '\u001b[?25h';
const clearScreen = '\u001b[2J\u001b[H';
const enterOtherScreen = '\u001b[?1049h';
const leaveOtherScreen = '\u001b[?1049l';
/** Erased row by row: when a whole screen is erased at once, tmux keeps it in the scroll-back. */
const eraseRow = '\u001b[2K';
const upOneRow = '\u001b[1A';

/** A terminal used by a view: its keys, its size, and the rows drawn on it. Ctrl-Z suspends it. */
export class Terminal {
  readonly #options: TerminalOptions;
  readonly #log: ReturnType<typeof createLogUpdate>;
  /** Rows on the screen at present. */
  #drawn: readonly string[] = [];

  constructor(options: TerminalOptions) {
    this.#options = options;
    this.#log = createLogUpdate(options.screen as WriteStream, { showCursor: true });
  }

  /** A full row would leave the cursor between two. */
  get size(): Size {
    const { screen } = this.#options;
    return { columns: Math.max(1, (screen.columns || 80) - 1), rows: screen.rows || 24 };
  }

  /** Whether there is a keyboard. */
  get hasKeys(): boolean {
    return this.#options.keyboard?.isTTY === true;
  }

  open(): void {
    const { screen, keyboard, onExit } = this.#options;
    screen.on('resize', this.#onResize);
    process.on('exit', onExit).on('SIGCONT', this.#onContinue);
    if (keyboard?.isTTY) {
      emitKeypressEvents(keyboard as ReadStream, { escapeCodeTimeout } as unknown as Interface);
      keyboard.on('keypress', this.#onKeypress);
    }
    this.#take();
  }

  /** The cursor is visible, and keys are typed as before. */
  close(): void {
    const { screen, keyboard, onExit } = this.#options;
    screen.off('resize', this.#onResize);
    process.off('exit', onExit).off('SIGCONT', this.#onContinue);
    keyboard?.off('keypress', this.#onKeypress);
    this.#leave();
  }

  draw(lines: readonly Line[]): void {
    const { columns } = this.size;
    // log-update 7 miscounts rows when the last changed one is empty.
    const rows = lines.map((line) => written(line, columns, this.#options.shows) || ' ');
    // It writes only changed rows, and miscounts when a row was inserted or removed between unchanged ones.
    if (rows.length !== this.#drawn.length) this.#log.clear();
    this.#drawn = rows;
    this.#log(rows.join('\n'));
  }

  /** Text for the scroll-back, above the rows that are drawn next. */
  print(text: string): void {
    this.#log.clear();
    this.#options.screen.write(text);
  }

  suspend(): void {
    this.#leave();
    process.kill(0, 'SIGTSTP'); // all of the job, as the terminal does it
  }

  #take(): void {
    const { screen, keyboard, takes } = this.#options;
    screen.write(takes === 'the screen' ? `${enterOtherScreen}${hideCursor}${clearScreen}` : hideCursor);
    if (keyboard?.isTTY) {
      keyboard.setRawMode(true);
      keyboard.resume();
    }
  }

  #leave(): void {
    const { screen, keyboard, takes } = this.#options;
    this.#log.done();
    screen.write(takes === 'the screen' ? `${showCursor}${leaveOtherScreen}` : showCursor);
    if (keyboard?.isTTY) {
      keyboard.setRawMode(false);
      keyboard.pause();
    }
  }

  readonly #onKeypress = (text: string | undefined, key: TypedKey): void => this.#options.onKey({ ...key, text });

  readonly #onContinue = (): void => {
    this.#take();
    this.#options.onRedraw();
  };

  /** The terminal may have rewrapped rows. */
  readonly #onResize = (): void => {
    const { screen, shows, takes, onRedraw } = this.#options;
    const rowsOf = (line: string): number => Math.max(1, Math.ceil(widthOf(line) / Math.max(1, screen.columns)));
    const rows = this.#drawn.reduce((sum, line) => sum + (shows.reflows ? rowsOf(line) : 1), 0);
    const above = `${eraseRow}${`${upOneRow}${eraseRow}`.repeat(rows)}\r`;
    screen.write(takes === 'the screen' ? clearScreen : above);
    this.#log.done(); // the log forgets the rows drawn before
    onRedraw();
  };
}
