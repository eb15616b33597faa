import { printAside, printOver } from './print.ts';

/** Interval between updates on a terminal, and in a file or a pipe. */
const terminalMs = 250;
const otherwiseMs = 10_000;

/**
 * Prints the progress of long work to stderr: one line that is overwritten on a terminal, a line now and then
 * elsewhere.
 */
export function progressLine(): { readonly tell: (line: () => string) => void; readonly end: () => void } {
  const isTerminal = process.stderr.isTTY;
  let told = performance.now() - (isTerminal ? terminalMs : 0);
  let isOpen = false;
  return {
    tell: (line) => {
      const now = performance.now();
      if (now - told < (isTerminal ? terminalMs : otherwiseMs)) return;
      told = now;
      if (!isTerminal) return printAside(line());
      isOpen = true;
      printOver(line());
    },
    end: () => {
      if (isOpen) printOver('');
    },
  };
}
