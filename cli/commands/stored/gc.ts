import { Command } from '@commander-js/extra-typings';
import { findUnneeded, removeUnneeded, type Unneeded } from '../../../runs/lineages/unneeded.ts';
import { listRunNames } from '../../../runs/list-runs.ts';
import { resolveStoreUri } from '../../../store/index.ts';
import { defaultStore, findRunFolder } from '../../stored/run-place.ts';
import { storeOption } from '../../typed/store-option.ts';
import { bytesText } from '../../output/bytes-text.ts';
import { print, printJson } from '../../output/print.ts';

export const gcCommand = new Command('gc')
  .description(
    'list what a run stores and nothing needs any more: no resume, no rewind to a checkpoint that is kept, no audit, no evaluation; --yes removes it',
  )
  .argument('<run>', 'or all: every run of the store')
  .option('--yes', 'remove it; without this it is only said')
  .option(...storeOption)
  .option('--json', 'as one JSON array')
  .action(async (run, options) => {
    const found: { readonly run: string; readonly unneeded: readonly Unneeded[]; readonly isRemoved: boolean }[] = [];
    for (const name of run === 'all'
      ? await listRunNames(resolveStoreUri(options.store ?? defaultStore, process.cwd()))
      : [run]) {
      const place = await findRunFolder(name, options.store, { asksTemporal: false });
      const unneeded = await findUnneeded(place);
      if (options.yes === true) await removeUnneeded(place, unneeded);
      found.push({ run: name, unneeded, isRemoved: options.yes === true });
      if (options.json !== true) print(describe(name, unneeded, options.yes === true).join('\n'));
    }
    if (options.json === true) printJson(found, 2);
  });

function describe(run: string, unneeded: readonly Unneeded[], isRemoved: boolean): string[] {
  const reasons = [...new Set(unneeded.map(({ why }) => why))];
  const lines = reasons.map((why) => `  ${sum(unneeded.filter((each) => each.why === why))}: ${why}`);
  if (unneeded.length === 0) return [`${run}: nothing to remove`];
  return [
    `${run}: ${isRemoved ? 'removed' : 'to remove'} ${sum(unneeded)}`,
    ...lines,
    ...(isRemoved ? [] : [`  to remove them: npx ratchet-rl gc ${run} --yes`]),
  ];
}

function sum(unneeded: readonly Unneeded[]): string {
  const files = `${unneeded.length} ${unneeded.length === 1 ? 'file' : 'files'}`;
  const bytes = unneeded.reduce((total, each) => total + each.bytes, 0);
  return `${files}, ${bytesText(bytes)}`;
}
