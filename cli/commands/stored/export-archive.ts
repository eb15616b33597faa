import path from 'node:path';
import { Command } from '@commander-js/extra-typings';
import { writeAtOnce } from '../../../host/write-at-once.ts';
import { type ArchivedRun, archiveOfRun } from '../../../runs/archive/export-run.ts';
import type { RunPlace } from '../../../runs/run-access.ts';
import { bytesText } from '../../output/bytes-text.ts';
import { onOneLine } from '../../output/plain-text.ts';
import { print, printJson } from '../../output/print.ts';
import { findRunFolder } from '../../stored/run-place.ts';
import { outputFile } from '../../typed/output-file.ts';
import { storeOption } from '../../typed/store-option.ts';

export const exportArchive = new Command('run')
  .description(
    'the whole run as one archive, with the sha256 of everything in it: for another machine, another store, or to put away. The run may be under way',
  )
  .argument('<run>')
  .argument('<file>', 'written anew, a tar: run.tar')
  .option(...storeOption)
  .option('--json', 'as one JSON object')
  .addHelpText(
    'after',
    `
Without "run" it is the same: ratchet export RUN run.tar
Bring it back:    ratchet import run.tar   (to another store: --store s3://BUCKET/PREFIX/)
Verify it alone:  tar xf run.tar && sha256sum -c SHA256SUMS`,
  )
  .action(async (run, named, options) => {
    const file = await outputFile('FILE', named);
    const place = await findRunFolder(run, options.store);
    const archived = await writeArchive(place, file);
    if (options.json === true) return printJson({ run: place.name, file, ...archived }, 2);
    const { objects, bytes, unknown, unsealed } = archived;
    const shown = path.relative(process.cwd(), file) || file;
    print(`${place.name}: ${objects} files, ${bytesText(bytes)} are in ${shown}`);
    for (const { key, lacks } of unsealed)
      print(onOneLine(`not in it: ${key}, so that this checkpoint is not complete there: ${lacks}`));
    if (unknown.length > 0)
      print(onOneLine(`not in it: ${unknown.length} files that are not of a run, such as ${unknown[0]}`));
  });

/** The file is there once it is whole. */
async function writeArchive(place: RunPlace, file: string): Promise<ArchivedRun> {
  const told: ArchivedRun[] = [];
  await writeAtOnce(file, async (made) => {
    for await (const piece of archiveOfRun(place, (archived) => told.push(archived))) await made.writeFile(piece);
  });
  return told[0]!;
}
