import { jsonText, withoutControls } from './plain-text.ts';

/**
 * Writes a line of a command. Files, folders, servers and models supply much of the text, so control characters are
 * removed.
 */
export function print(text: string): void {
  process.stdout.write(`${withoutControls(text)}\n`);
}

/** Prints to stderr: warnings, and progress of slow work. */
export function printAside(text: string): void {
  process.stderr.write(`${withoutControls(text)}\n`);
}

/** Prints a value for programs, whole; `indent` for people as well. */
export function printJson(value: unknown, indent?: number): void {
  process.stdout.write(`${jsonText(value, indent)}\n`);
}

/**
 * Writes a requested text, such as a model's answer: a terminal gets it without control characters, a pipe unchanged.
 */
export function writeText(text: string): void {
  process.stdout.write(process.stdout.isTTY ? withoutControls(text) : text);
}

/** Replaces the previous such line on a terminal's stderr. An empty text removes it. */
export function printOver(text: string): void {
  process.stderr.write(`\r\u001b[2K${withoutControls(text)}`);
}
