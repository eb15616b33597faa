import type { HubProgress } from '../backends/hub/get-model.ts';
import { printAside } from './print.ts';

/** How often a terminal is told, and a file or a pipe. */
const terminalMs = 250;
const otherwiseMs = 10_000;

/** Says on stderr how much of a model is here: one line that is written over on a terminal, a line now and then elsewhere. */
export function hubProgress(id: string): { readonly tell: (progress: HubProgress) => void; readonly end: () => void } {
  const isTerminal = process.stderr.isTTY;
  let told = performance.now() - (isTerminal ? terminalMs : 0);
  let isOpen = false;
  return {
    tell: ({ file, bytes, totalBytes }) => {
      const now = performance.now();
      if (now - told < (isTerminal ? terminalMs : otherwiseMs)) return;
      told = now;
      const line = `${id}: ${size(bytes)} of ${size(totalBytes)}, ${file}`;
      if (!isTerminal) return printAside(line);
      isOpen = true;
      process.stderr.write(`\r\u001b[2K${line}`);
    },
    end: () => {
      if (isOpen) process.stderr.write('\r\u001b[2K');
    },
  };
}

function size(bytes: number): string {
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
