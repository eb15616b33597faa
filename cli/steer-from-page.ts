import type { SteerRun } from '../ui/serve.ts';
import { askUpdate, readSettings } from './commands/steer.ts';

/** What a page that was opened with --steer asks of a run: the same updates as the commands send. */
export const steerFromPage: SteerRun = (run, { what, value }) => {
  switch (what) {
    case 'pause':
      return askUpdate(run, 'pause', [value.trim() || 'asked to, from the page']);
    case 'resume':
    case 'stop':
      return askUpdate(run, what, [null]);
    case 'set':
      return askUpdate(run, 'set', [readSettings(value.trim().split(/\s+/), run)]);
    case 'rewind':
      return askUpdate(run, 'rewind', [Number(value)]);
    case 'adopt-prompt':
      return askUpdate(run, 'adopt-prompt', [value === '' ? null : value]);
    default:
      return what satisfies never;
  }
};
