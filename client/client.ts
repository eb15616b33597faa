/** What `ratchet-rl/client` does; its types, with their documentation, are in `index.d.mts`. */
import type * as Api from './index.mjs';
import type { StoredRunReader } from './stored-run.ts';

export async function startRun(...[file, options]: Parameters<typeof Api.startRun>): Promise<Api.Run> {
  const { startRun: start } = await import('./start-run.ts');
  return start(file, options ?? {});
}

export async function attach(...[run, options]: Parameters<typeof Api.attach>): Promise<Api.Run> {
  const { openRun } = await import('./open-run.ts');
  return openRun(run, options ?? {});
}

export async function readRun(place: string): Promise<StoredRunReader> {
  const { openStoredRun } = await import('./stored-run.ts');
  return openStoredRun(place);
}
