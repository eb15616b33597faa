import { Command } from '@commander-js/extra-typings';
import { writeNote } from '../../../runs/metrics/notices.ts';
import { namedByNotices } from '../../../load/grants/grant.ts';
import { askGrants } from '../../start/ask-grants.ts';
import { postAfterEnd } from '../../follow/post-after-end.ts';
import { print } from '../../output/print.ts';
import { ownerInFolder, requireRole } from '../../../workers/temporal/who-may.ts';
import { findRunFolder } from '../../stored/run-place.ts';
import { grantOption, storeOption } from '../../typed/store-option.ts';

export const noteCommand = new Command('note')
  .description(
    'write a note into a run: its page, its report and `ratchet status` show it at the step that the run stands at',
  )
  .argument('<run>')
  .argument('<words...>', 'what is to be kept in mind')
  .option(...storeOption)
  .option(...grantOption)
  .action(async (run, words, options) => {
    const place = await findRunFolder(run, options.store);
    await requireRole('note', { of: 'run', run, owner: ownerInFolder(place) });
    const note = await writeNote(place, words.join(' '));
    print(`noted at step ${note.step} of ${run}`);
    await postAfterEnd(place, {
      say: print,
      allow: (spec) => askGrants(place, { lines: namedByNotices(spec), environments: [] }, options),
    });
  });
