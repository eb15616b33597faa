import { EventEmitter } from 'node:events';
import type { Keyboard, TerminalOutput } from '../../../cli/view/terminal.ts';

/**
 * A terminal of so many columns and rows with a scroll-back, for what the view writes: text, line breaks, moves of the
 * cursor, and erasing. It breaks long lines, and joins and breaks them anew when it is resized, as most terminals do.
 */
export class SmallTerminal extends EventEmitter {
  columns: number;
  rows: number;
  readonly isTTY = true;
  isCursorShown = true;
  /** Everything ever written, oldest first; `isWrapped`: the line continues in the next row. */
  #lines: { text: string; isWrapped: boolean }[] = [{ text: '', isWrapped: false }];
  /** Row at which the screen begins. */
  #top = 0;
  #row = 0;
  #column = 0;

  constructor(columns: number, rows: number) {
    super();
    [this.columns, this.rows] = [columns, rows];
  }

  get screen(): TerminalOutput {
    return this as unknown as TerminalOutput;
  }

  /** Every row of scroll-back and screen, wrapped lines as one. */
  text(): string {
    return this.#lines
      .map(({ text, isWrapped }) => (isWrapped ? text : `${text.trimEnd()}\n`))
      .join('')
      .trimEnd();
  }

  write(data: string): boolean {
    // oxlint-disable-next-line no-control-regex -- escape sequences are what is read
    for (const [part] of data.matchAll(/\u001b\[[?]?[\d;]*[A-Za-z]|\n|\r|[^\u001b\n\r]/gu)) this.#put(part);
    return true;
  }

  resize(columns: number, rows: number): void {
    const joined: string[] = [];
    let isJoined = false;
    let cursorLine = 0;
    for (const [i, { text, isWrapped }] of this.#lines.entries()) {
      if (isJoined) joined[joined.length - 1] += text;
      else joined.push(text);
      if (i === this.#row) cursorLine = joined.length - 1;
      isJoined = isWrapped;
    }
    this.#lines = [];
    for (const [i, line] of joined.entries()) {
      if (i === cursorLine) this.#row = this.#lines.length; // the cursor stands at the start of its line
      const parts = line.match(new RegExp(`.{1,${columns}}`, 'gu')) ?? [''];
      parts.forEach((text, at) => this.#lines.push({ text, isWrapped: at < parts.length - 1 }));
    }
    [this.columns, this.rows] = [columns, rows];
    this.#top = Math.max(0, Math.max(this.#row, this.#lines.length - 1) - rows + 1);
    this.emit('resize');
  }

  #put(part: string): void {
    if (part === '\n') return this.#down(false);
    if (part === '\r') return void (this.#column = 0);
    const [, hasMark, number = '', command] = /^\[(\??)([\d;]*)([A-Za-z])$/.exec(part.slice(1)) ?? [];
    if (command === undefined) return this.#letter(part);
    const count = Number(number || 1);
    if (hasMark) {
      if (number === '25') this.isCursorShown = command === 'h';
      return;
    }
    const line = this.#lines[this.#row]!;
    if (command === 'A') this.#row = Math.max(this.#top, this.#row - count);
    else if (command === 'B')
      this.#row = Math.min(this.#lines.length - 1, this.#top + this.rows - 1, this.#row + count);
    else if (command === 'G') this.#column = count - 1;
    else if (command === 'K')
      [line.text, line.isWrapped] = [number === '2' ? '' : line.text.slice(0, this.#column), false];
    // When the whole screen is erased, tmux keeps it in its scroll-back.
    else if (command === 'J') throw new Error('the screen or its scroll-back is cleared');
    else if (command !== 'm') throw new Error(`this terminal does not know ${JSON.stringify(part)}`);
  }

  #letter(letter: string): void {
    if (this.#column === this.columns) this.#down(true);
    const line = this.#lines[this.#row]!;
    line.text = line.text.padEnd(this.#column).slice(0, this.#column) + letter + line.text.slice(this.#column + 1);
    this.#column += 1;
  }

  #down(isWrapped: boolean): void {
    this.#lines[this.#row]!.isWrapped = isWrapped;
    this.#row += 1;
    this.#column = 0;
    if (this.#row === this.#lines.length) this.#lines.push({ text: '', isWrapped: false });
    this.#top = Math.max(this.#top, this.#row - this.rows + 1);
  }
}

/** Somebody who types. */
export class SmallKeyboard extends EventEmitter {
  readonly isTTY = true;
  isRaw = false;

  get keyboard(): Keyboard {
    return this as unknown as Keyboard;
  }

  type(name: string, ctrl = false): void {
    this.emit('keypress', name, { name, ctrl });
  }

  setRawMode(isRaw: boolean): void {
    this.isRaw = isRaw;
  }

  resume(): void {}
  pause(): void {}
}
