import { thisWorker } from '../../../host/worker-process.ts';

/** A process of this host that had this one's number before, and is gone. */
export function earlierWorker(): string {
  return thisWorker().replace(/:\d+$/, ':1');
}
