import { readdir } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { runNamePattern } from '../../../core/names.ts';
import { findUnneeded, removeUnneeded, type Unneeded } from '../../../runs/lineages/unneeded.ts';
import { resolveStoreUri } from '../../../store/index.ts';
import { findRunFolder } from '../../stored/run-place.ts';
import { storeOption } from '../../typed/store-option.ts';
import { print, printJson } from '../../output/print.ts';

export const gcCommand = new Command('gc')
  .description(
    'list what a run stores and nothing needs any more: no resume, no rewind to a checkpoint that is kept, no audit, no evaluation; --yes removes it',
  )
  .argument('<run>', 'or all: every run of the store, where that is a folder')
  .option('--yes', 'remove it; without this it is only said')
  .option(...storeOption)
  .option('--json', 'as one JSON array')
  .action(async (run, options) => {
    const found: { readonly run: string; readonly unneeded: readonly Unneeded[]; readonly isRemoved: boolean }[] = [];
    for (const name of run === 'all' ? await runsIn(options.store) : [run]) {
      const place = await findRunFolder(name, options.store, { asksTemporal: false });
      const unneeded = await findUnneeded(place);
      if (options.yes === true) await removeUnneeded(place, unneeded);
      found.push({ run: name, unneeded, isRemoved: options.yes === true });
      if (options.json !== true) print(describe(name, unneeded, options.yes === true).join('\n'));
    }
    if (options.json === true) printJson(found, 2);
  });

async function runsIn(storeUri: string | undefined): Promise<string[]> {
  const uri = resolveStoreUri(storeUri ?? 'file:outputs', process.cwd());
  if (!uri.startsWith('file:')) {
    throw new RatchetError('Unsupported', `all: expected a store that is a folder, got ${uri}. Name the run.`);
  }
  const entries = await readdir(fileURLToPath(uri), { withFileTypes: true }).catch(() => []);
  const names = entries
    .filter((entry) => entry.isDirectory() && runNamePattern.test(entry.name))
    .map(({ name }) => name);
  const held = await Promise.all(
    names.map((name) => findRunFolder(name, storeUri, { asksTemporal: false }).catch(() => null)),
  );
  return names.filter((_, i) => held[i] !== null).sort();
}

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
  const bytes = unneeded.reduce((total, each) => total + (each.bytes ?? 0), 0);
  return unneeded.some((each) => each.bytes === null) ? files : `${files}, ${(bytes / 1e6).toFixed(2)} MB`;
}
