import { jsonText, withoutControls } from './plain-text.ts';

/** What a command says. Much of it comes from files, folders, servers and models of others: none of it steers the terminal. */
export function print(text: string): void {
  process.stdout.write(`${withoutControls(text)}\n`);
}

/** Beside the answer: warnings, what takes long. */
export function printAside(text: string): void {
  process.stderr.write(`${withoutControls(text)}\n`);
}

/** A value for programs, whole; `indent` where people read it, too. */
export function printJson(value: unknown, indent?: number): void {
  process.stdout.write(`${jsonText(value, indent)}\n`);
}

/** A text that is asked for by itself, such as what a model answers: a terminal is not given what would steer it, a pipe gets the very text. */
export function writeText(text: string): void {
  process.stdout.write(process.stdout.isTTY ? withoutControls(text) : text);
}

/** Beside the answer, on a terminal: a line in place of the one that was written so before. An empty text takes that one away. */
export function printOver(text: string): void {
  process.stderr.write(`\r\u001b[2K${withoutControls(text)}`);
}
