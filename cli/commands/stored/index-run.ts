import { Command } from '@commander-js/extra-typings';
import { indexRun, removeDamagedBlocks, removeIndex } from '../../../runs/rollout-index/write-index.ts';
import { findRunFolder } from '../../stored/run-place.ts';
import { storeOption } from '../../typed/store-option.ts';
import { print } from '../../output/print.ts';

export const indexCommand = new Command('index')
  .description(
    'the index in which the pages of `ratchet ui` look rollouts up, beside the data; steps that are in it are left as they are, unless they cannot be read',
  )
  .argument('<run>')
  .option('--anew', 'remove it first, and make all of it')
  .option(...storeOption)
  .action(async (run, { anew, store }) => {
    const place = await findRunFolder(run, store);
    if (anew) await removeIndex(place);
    for (const key of await removeDamagedBlocks(place)) print(`${key} could not be read: it is made anew`);
    let steps = 0;
    for await (const _ of indexRun(place)) steps += 1;
    print(steps === 0 ? `every committed step of ${run} is in its index` : `${steps} steps of ${run} are indexed now`);
  });
