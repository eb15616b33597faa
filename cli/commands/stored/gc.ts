import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { nameIn } from '../../../core/rl/changes.ts';
import { keepRun, letRunGo, removeRun } from '../../../runs/lineages/outlived.ts';
import { findCutOffUploads, findUnneeded, removeUnneeded, type Unneeded } from '../../../runs/lineages/unneeded.ts';
import { listRunNames } from '../../../runs/list-runs.ts';
import type { RunPlace } from '../../../runs/run-access.ts';
import { resolveStoreUri } from '../../../store/index.ts';
import { identityHere, ownerInFolder, requireRole } from '../../../workers/temporal/who-may.ts';
import { outlivedLines, type OutlivedRun, outlivedRun, retentionHere } from '../../stored/outlived-run.ts';
import { defaultStore, findRunFolder } from '../../stored/run-place.ts';
import { storeOption, withStore } from '../../typed/store-option.ts';
import { bytesText } from '../../output/bytes-text.ts';
import { print, printAside, printJson } from '../../output/print.ts';

export const gcCommand = new Command('gc')
  .description(
    'list what a run stores and nothing needs any more: no resume, no rewind to a checkpoint that is kept, no audit, no evaluation; and runs that are over for longer than their [retention] says; --yes removes it',
  )
  .argument('<run>', 'or all: every run of the store')
  .option('--yes', 'remove it; without this it is only said')
  .option('--keep <why>', 'remove nothing: the run stays as a whole from now on, whatever its retention says')
  .option('--unkeep', 'remove nothing: take a --keep back')
  .option(...storeOption)
  .option('--json', 'as one JSON array')
  .action(async (run, options) => {
    const isAll = run === 'all';
    if (options.keep !== undefined || options.unkeep === true) {
      if (isAll) throw new RatchetError('ConfigInvalid', '--keep and --unkeep: expected the name of one run, got all.');
      return keep(await placeOf(run, options.store), options);
    }
    const names = isAll ? await listRunNames(resolveStoreUri(options.store ?? defaultStore, process.cwd())) : [run];
    const found: FoundRun[] = [];
    for (const name of names) {
      const one = await lookAt(await placeOf(name, options.store), options.yes === true);
      found.push(one);
      if (options.json === true) continue;
      print(linesOf(one, options.store).join('\n'));
      if (one.uploadsUnknown !== null)
        printAside(
          `${name}: uploads that were cut off are not known (${one.uploadsUnknown}): expected credentials that may list multipart uploads and their parts`,
        );
    }
    if (options.json === true) printJson(found, 2);
  });

/** `ratchet gc --json`: one of these for each run. */
interface FoundRun {
  readonly run: string;
  readonly unneeded: readonly Unneeded[];
  readonly isRemoved: boolean;
  /** A run that is over for longer than its retention; else null. */
  readonly outlived: OutlivedRun | null;
  /** Why uploads that were cut off are not listed; else null. */
  readonly uploadsUnknown: string | null;
}

function placeOf(name: string, store: string | undefined): Promise<RunPlace> {
  return findRunFolder(name, store, { asksTemporal: false });
}

async function lookAt(place: RunPlace, isToRemove: boolean): Promise<FoundRun> {
  if (isToRemove) await requireRole('gc --yes', { of: 'run', run: place.name, owner: ownerInFolder(place) });
  const { rolloutsDays, runDays } = await retentionHere(place);
  const outlived = await outlivedRun(place, runDays);
  if (outlived !== null && outlived.staysBecause === null) {
    if (isToRemove) await removeRun(place);
    return { run: place.name, unneeded: [], isRemoved: isToRemove, outlived, uploadsUnknown: null };
  }
  const uploads = await findCutOffUploads(place);
  const [cutOff, uploadsUnknown] = typeof uploads === 'string' ? [[], uploads] : [uploads, null];
  const unneeded = [...(await findUnneeded(place, { rolloutsDays })), ...cutOff];
  if (isToRemove) await removeUnneeded(place, unneeded);
  return { run: place.name, unneeded, isRemoved: isToRemove, outlived, uploadsUnknown };
}

interface Keeping {
  readonly keep?: string;
  readonly unkeep?: true;
  readonly store?: string;
}

async function keep(place: RunPlace, { keep: why, unkeep, store }: Keeping): Promise<void> {
  if (why !== undefined && unkeep === true)
    throw new RatchetError('ConfigInvalid', 'expected --keep or --unkeep, got both.');
  await requireRole('gc --keep', { of: 'run', run: place.name, owner: ownerInFolder(place) });
  if (why === undefined) {
    await letRunGo(place);
    print(`${place.name}: its retention holds again`);
    return;
  }
  if (why.trim() === '') throw new RatchetError('ConfigInvalid', '--keep: expected why it is kept, got nothing.');
  const who = nameIn(await identityHere());
  await keepRun(place, { why: why.trim(), who, since: new Date().toISOString() });
  const back = withStore(`npx ratchet-rl gc ${place.name} --unkeep`, store);
  print(`${place.name}: stays as a whole until ${back}`);
}

function linesOf({ run, unneeded, isRemoved, outlived }: FoundRun, store: string | undefined): string[] {
  const toRemove = isRemoved ? null : withStore(`npx ratchet-rl gc ${run} --yes`, store);
  if (outlived === null) return describe(run, unneeded, toRemove);
  const lines = outlivedLines(run, outlived, toRemove);
  return outlived.staysBecause === null ? lines : [...lines, ...describe(run, unneeded, toRemove)];
}

/** `toRemove`: what to type; null when it is removed. */
function describe(run: string, unneeded: readonly Unneeded[], toRemove: string | null): string[] {
  const reasons = [...new Set(unneeded.map(({ why }) => why))];
  const lines = reasons.map((why) => `  ${sum(unneeded.filter((each) => each.why === why))}: ${why}`);
  if (unneeded.length === 0) return [`${run}: nothing to remove`];
  return [
    `${run}: ${toRemove === null ? 'removed' : 'to remove'} ${sum(unneeded)}`,
    ...lines,
    ...(toRemove === null ? [] : [`  to remove them: ${toRemove}`]),
  ];
}

function sum(unneeded: readonly Unneeded[]): string {
  const files = `${unneeded.length} ${unneeded.length === 1 ? 'file' : 'files'}`;
  const bytes = unneeded.reduce((total, each) => total + each.bytes, 0);
  return `${files}, ${bytesText(bytes)}`;
}
