import { resolveStoreUri } from '../../store/index.ts';
import { servePage } from '../../ui/serve.ts';
import { askForPage } from './ask-for-page.ts';
import type { PagePlace } from './page-place.ts';
import { defaultStore } from '../stored/run-place.ts';

/** Serves the page of all runs in ./outputs. */
export function openPageOfRuns(
  projectFolder: string,
  say: (line: string) => void,
): Promise<{ readonly close: () => Promise<void> }> {
  return openRunPage({ store: resolveStoreUri(defaultStore, projectFolder), run: null }, projectFolder, say);
}

/** Serves the page beside a command, and prints its address. Training continues when the page cannot be served. */
export async function openRunPage(
  place: PagePlace,
  projectFolder: string,
  say: (line: string) => void,
): Promise<{ readonly close: () => Promise<void> }> {
  const { ask, running, pools, close } = askForPage(projectFolder);
  try {
    const page = await servePage({ ...place, port: 0, ask, running, pools });
    say(`page         ${page.url}`);
    return {
      close: async () => {
        await page.close();
        await close();
      },
    };
  } catch (error) {
    say(`no page: ${error instanceof Error ? error.message : String(error)}`);
    return { close };
  }
}
