import { resolveStoreUri } from '../backends/store/index.ts';
import { servePage } from '../ui/serve.ts';
import { askForPage } from './ask-for-page.ts';
import type { PagePlace } from './page-place.ts';
import { usualStore } from './run-place.ts';

/** Of all runs in ./outputs. */
export function openPageOfRuns(
  projectFolder: string,
  say: (line: string) => void,
): Promise<{ readonly close: () => Promise<void> }> {
  return openRunPage({ store: resolveStoreUri(usualStore, projectFolder), run: null }, projectFolder, say);
}

/** Serves the page beside what a command does, and names it in a line. A page that cannot be served keeps nobody from training. */
export async function openRunPage(
  place: PagePlace,
  projectFolder: string,
  say: (line: string) => void,
): Promise<{ readonly close: () => Promise<void> }> {
  const { ask, running, close } = askForPage(projectFolder);
  try {
    const page = await servePage({ ...place, port: 0, ask, running });
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
