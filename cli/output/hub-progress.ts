import type { HubProgress } from '../../backends/hub/snapshot.ts';
import { bytesText } from './bytes-text.ts';
import { progressLine } from './progress-line.ts';

/** Prints how much of a model has been downloaded. */
export function hubProgress(id: string): { readonly tell: (progress: HubProgress) => void; readonly end: () => void } {
  const { tell, end } = progressLine();
  return {
    tell: ({ file, bytes, totalBytes }) =>
      tell(() => `${id}: ${bytesText(bytes)} of ${bytesText(totalBytes)}, ${file}`),
    end,
  };
}
