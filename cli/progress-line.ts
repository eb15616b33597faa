import { printAside, printOver } from './print.ts';

/** How often a terminal is told, and a file or a pipe. */
const terminalMs = 250;
const otherwiseMs = 10_000;

/** Says on stderr how far long work is: one line that is written over on a terminal, a line now and then elsewhere. */
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
