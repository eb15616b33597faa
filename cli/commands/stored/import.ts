import path from 'node:path';
import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { importRun } from '../../../runs/archive/import-run.ts';
import { resolveStoreUri, showStoreUri } from '../../../store/index.ts';
import { bytesText } from '../../output/bytes-text.ts';
import { print, printJson } from '../../output/print.ts';
import { defaultStore } from '../../stored/run-place.ts';
import { storeOption } from '../../typed/store-option.ts';
import { isFolder } from '../../typed/output-file.ts';

export const importCommand = new Command('import')
  .description(
    'a run from an archive of ratchet export. Every digest is compared before the run appears; nothing in it is executed',
  )
  .argument('<file>', 'the archive')
  .option('--name <name>', 'of the run here (default: as it was exported)')
  .option(...storeOption)
  .option('--json', 'as one JSON object')
  .addHelpText(
    'after',
    `
It continues from its newest checkpoint:  ratchet train run.toml --name NAME
The same command finishes an import that was interrupted.`,
  )
  .action(async (named, options) => {
    const file = path.resolve(named);
    if (await isFolder(file)) throw new RatchetError('ConfigInvalid', `${file}: expected an archive, got a folder.`);
    const store = resolveStoreUri(options.store ?? defaultStore, process.cwd());
    const { run, ...imported } = await importRun(file, { store, name: options.name });
    if (options.json === true) return printJson({ run: run.name, store, ...imported }, 2);
    const { from, objects, bytes } = imported;
    const whose = from === run.name ? '' : `, exported as ${from}`;
    print(`${run.name}${whose}: ${objects} files, ${bytesText(bytes)} are in ${showStoreUri(store)}`);
  });
