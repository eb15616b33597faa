import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { personWithKey, rolesHere } from '../../../workers/temporal/who-may.ts';
import { type PageGuest, servePage } from '../../../ui/serve.ts';
import { askForPage } from '../../page/ask-for-page.ts';
import { chatFromPage } from '../../chat/chat-from-page.ts';
import { findPagePlaces } from '../../page/page-place.ts';
import { print } from '../../output/print.ts';
import { steerFromPage } from '../../page/steer-from-page.ts';
import { readPort } from '../../typed/read-port.ts';
import { storeOption } from '../../typed/store-option.ts';

export const uiCommand = new Command('ui')
  .description(
    'a page that shows a run, or all runs of a folder, live: curves, workers, every rollout; on this machine alone, until Ctrl-C',
  )
  .argument(
    '[what...]',
    "a run, a folder, or s3://BUCKET/…/RUN; several runs, or 'lr-*', to compare them; default: the runs in ./outputs",
  )
  .option('--port <port>', 'where it is served; default: one that is free', readPort, 0)
  .option(
    '--steer',
    'the page can also pause, resume, stop, set, rewind and fork a run, adopt a prompt, and talk to a checkpoint',
  )
  .option(...storeOption)
  .action(async (what, options) => {
    const place = await findPagePlaces(what, options.store);
    const { ask, running, pools, close } = askForPage(process.cwd());
    const talking = options.steer ? chatFromPage(place.store) : null;
    const steer = talking ? { steer: steerFromPage(place.store), chat: talking.chat } : {};
    const asking = { ask, running, pools, guestOf };
    const page = await servePage({ ...place, port: options.port, ...asking, ...steer }).catch(whyNotServed);
    print(`${place.run ?? place.compare?.join(' ') ?? 'runs'}: ${page.url}`);
    page.prepare();
    await new Promise<void>((resolve) => process.once('SIGINT', resolve).once('SIGTERM', resolve));
    await page.close();
    await talking?.close();
    await close();
  });

/** Whose key it is in the file of roles, which is read anew: a key that is taken from it ends at once. */
async function guestOf(key: string): Promise<PageGuest | null> {
  const roles = await rolesHere();
  const person = roles && personWithKey(roles, key);
  return person && { person, maySteer: person.role !== 'viewer' };
}

/** Rethrows every other error as a bug. */
function whyNotServed(error: NodeJS.ErrnoException & { readonly port?: number }): never {
  if (error.code !== 'EADDRINUSE' && error.code !== 'EACCES') throw error;
  const why = error.code === 'EACCES' ? 'this user may not take' : 'something else has';
  throw new RatchetError('ConfigInvalid', `--port: ${why} port ${error.port}. Name another, or leave --port out.`);
}
