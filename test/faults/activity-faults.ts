/** Rows in which an activity's end is not what it seems. */
import type { Rows } from './row.ts';

const nothingMore = (): Promise<void> => Promise.resolve();

export const activityFaults = {
  'activity fails': { stage: 'fake', action: 'fail', strike: nothingMore },
  'activity done twice': { stage: 'fake', action: 'repeat', strike: nothingMore },
} satisfies Rows;
