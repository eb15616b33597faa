import { writeFile } from 'node:fs/promises';
import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { makeReport, defaultLimits } from '../../../ui/report.ts';
import { askForPage } from '../../page/ask-for-page.ts';
import { outputFile } from '../../typed/output-file.ts';
import { findPagePlace } from '../../page/page-place.ts';
import { print } from '../../output/print.ts';
import { readCount } from '../../typed/read-count.ts';
import { storeOption } from '../../typed/store-option.ts';

export const reportCommand = new Command('report')
  .description("a run's page in one file, to be kept or sent: curves, workers, what happened, and some of its rollouts")
  .argument('<run>', 'a run, or the folder or s3://… address of one')
  .option('-o, --output <file>', 'default: RUN.html')
  .option('--groups <n>', 'groups whose rollouts are in it, at most', String(defaultLimits.groups))
  .option(...storeOption)
  .action(async (run, options) => {
    const { store, run: name } = await findPagePlace(run, options.store);
    if (name === null)
      throw new RatchetError(
        'RunNotFound',
        `${run} is a folder of runs; a report is of one: ratchet report ${run}/RUN`,
      );
    const file = await outputFile('--output', options.output ?? `${name}.html`);
    const { ask, close } = askForPage(process.cwd());
    try {
      const limits = { ...defaultLimits, groups: readCount('--groups', options.groups) };
      const { html, rollouts, of, missing } = await makeReport({ name, store }, ask, limits);
      await writeFile(file, html);
      const size = (Buffer.byteLength(html) / 1e6).toFixed(1);
      for (const what of missing) print(`not in it: ${what}`);
      print(`${file}  ${size} MB, with ${rollouts} of ${of} rollouts; open it in a browser`);
    } finally {
      await close();
    }
  });
