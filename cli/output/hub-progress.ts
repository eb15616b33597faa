import type { HubProgress } from '../../backends/hub/snapshot.ts';
import { progressLine } from './progress-line.ts';

/** Prints how much of a model has been downloaded. */
export function hubProgress(id: string): { readonly tell: (progress: HubProgress) => void; readonly end: () => void } {
  const { tell, end } = progressLine();
  return {
    tell: ({ file, bytes, totalBytes }) => tell(() => `${id}: ${size(bytes)} of ${size(totalBytes)}, ${file}`),
    end,
  };
}

function size(bytes: number): string {
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
