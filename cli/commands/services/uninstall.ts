import { lstat, readdir, rm, rmdir } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { isAlive } from '../../../host/is-alive.ts';
import { openRuntimeFolder } from '../../../workers/stack/held-lock.ts';
import { planService, uninstallService } from '../../../workers/stack/service.ts';
import { bytesText } from '../../output/bytes-text.ts';
import { onOneLine } from '../../output/plain-text.ts';
import { print, printJson } from '../../output/print.ts';
import { type Asker, ownTerminal } from '../../start/ask-grants.ts';
import { runsBelow } from '../../stored/runs-to-remove.ts';
import { bytesOf, defaultPlaces, keptHere, namesIn, type Places as Kept, shown } from '../stored/cache.ts';

export const uninstallCommand = new Command('uninstall')
  .description(
    'what Ratchet left on this machine and in this folder, with sizes; removes it once you say so. Runs stay, except those that you name',
  )
  .argument('[runs...]', 'runs below ./outputs to remove as well, with everything that they stored')
  .option('--yes', 'remove without asking')
  .option('--json', 'a JSON array: path, what, bytes, stays (why it is not removed; null = it can be), isRemoved')
  .action(async (runs, { yes = false, json = false }) => {
    process.exitCode = await uninstall(runs, { yes, json });
  });

interface Places extends Kept {
  /** Built programs (`workers/built.mjs`). */
  readonly built: string;
}

const placesHere = (): Places => ({
  ...defaultPlaces(),
  built: fileURLToPath(new URL('../../../node_modules/.cache/ratchet', import.meta.url)),
});

interface Uninstalling {
  readonly yes: boolean;
  readonly json: boolean;
  readonly places?: Places;
  readonly asker?: Asker;
}

/** One thing that is left. */
export interface Left {
  readonly path: string;
  readonly what: string;
  readonly bytes: number;
  /** Why it is not removed; null: it is. */
  readonly stays: string | null;
}

/** The exit code: 1 if something could not be removed. */
export async function uninstall(
  runs: readonly string[],
  { yes, json, places = placesHere(), asker = ownTerminal(json) }: Uninstalling,
): Promise<number> {
  const left = await leftHere(runs, places);
  const removable = left.filter(({ stays }) => stays === null);
  if (!json) print(describeLeft(left).join('\n'));
  const isWanted =
    removable.length > 0 && (yes || (asker.isThere && /^y(es)?$/i.test((await asker.ask('Remove it? [y/N] ')).trim())));
  if (isWanted) await refuseWhileRunning();
  const failed = isWanted ? await remove(removable, places) : [];
  const isRemoved = ({ path: file, stays }: Left): boolean =>
    isWanted && stays === null && !failed.some((one) => one.path === file);
  if (json)
    printJson(left.map((one) => ({ ...one, isRemoved: isRemoved(one) })), 2); // prettier-ignore
  else for (const line of describeEnd(removable, { isWanted, yes, failed, places })) print(line);
  return failed.length === 0 ? 0 : 1;
}

/** Everything of Ratchet in this folder and on this machine. */
export async function leftHere(runs: readonly string[], places: Places = placesHere()): Promise<Left[]> {
  const { projectFolder } = places;
  const kept = await keptHere(places);
  const state = path.join(projectFolder, '.ratchet');
  const outputs = path.join(projectFolder, 'outputs');
  const others: readonly (readonly [file: string, what: string])[] = [
    ...(await partsOf(state)),
    ...serviceHere(projectFolder),
    [places.built, 'programs of Ratchet, built'],
  ];
  const further = await Promise.all(
    others.map(async ([file, what]) => ({ path: file, what, bytes: await bytesOf(file), stays: null })),
  );
  const machine = await Promise.all(
    kept
      .filter(({ path: file }) => file !== state && file !== outputs)
      .map(async ({ path: file, what, bytes, isShared }) => ({
        path: file,
        what,
        bytes,
        stays: await whyItStays(file, isShared, projectFolder),
      })),
  );
  const found = further.flatMap(({ bytes, ...one }) => (bytes === null ? [] : [{ ...one, bytes }]));
  return [...(await storedIn(outputs, runs)), ...found, ...machine];
}

/** Runs, and what else is beside them. Only named runs go. */
async function storedIn(outputs: string, named: readonly string[]): Promise<Left[]> {
  const runs = await runsBelow(outputs, { toRemove: named, projectFolder: path.dirname(outputs) });
  const names = await namesIn(outputs);
  return Promise.all(
    names.map(async (name) => ({
      path: path.join(outputs, name),
      what: runs.includes(name) ? 'a run' : 'evaluations, prompt searches, or records of sweeps and pools',
      bytes: (await bytesOf(path.join(outputs, name))) ?? 0,
      stays: named.includes(name)
        ? null
        : runs.includes(name)
          ? `yours; to remove it: npx ratchet-rl uninstall ${name}`
          : 'yours',
    })),
  );
}

/** Descriptions of files in `.ratchet`, by the beginning of their names. */
const inState: readonly (readonly [start: string, what: string])[] = [
  ['temporal', 'database of the Temporal server: histories of the runs here'],
  ['granted', 'grants: what this folder’s workers may use'],
  ['secret', 'secret of this folder’s processes'],
  ['python', 'Python environments of this folder'],
  ['environments', 'environments of verifiers, at work'],
  ['models', 'models, made for vLLM'],
  ['logs', 'logs'],
];

async function partsOf(state: string): Promise<(readonly [string, string])[]> {
  const names = await namesIn(state);
  return names.map((name) => [
    path.join(state, name),
    inState.find(([start]) => name.startsWith(start))?.[1] ?? 'state of Ratchet in this folder',
  ]);
}

function serviceHere(projectFolder: string): (readonly [string, string])[] {
  const plan = planHere(projectFolder);
  return plan === null ? [] : [[plan.file, `service that keeps this folder’s processes up (${plan.name})`]];
}

/** Null on a machine without a manager of services. */
function planHere(projectFolder: string): ReturnType<typeof planService> | null {
  try {
    return planService({ projectFolder, command: [] });
  } catch (error) {
    if (error instanceof RatchetError && error.code === 'Unsupported') return null;
    throw error;
  }
}

async function whyItStays(file: string, isShared: boolean, projectFolder: string): Promise<string | null> {
  if (isShared) return 'other programs use it, too';
  if (file === path.join(projectFolder, 'node_modules')) return 'npm’s: npm uninstall ratchet-rl';
  const found = await lstat(file).catch(() => null); // a process that ends removes its temporary files meanwhile
  return found === null || found.uid === process.getuid?.() ? null : 'another user’s';
}

/** Processes of this user's hold sockets in one folder, whatever project they are of. */
async function refuseWhileRunning(): Promise<void> {
  const folder = openRuntimeFolder();
  const pids = (await readdir(folder)).flatMap((name) => /^[^.]+\.[^.]+\.(\d+)\.sock$/.exec(name)?.[1] ?? []);
  const running = [...new Set(pids)].filter((pid) => isAlive(Number(pid)));
  if (running.length === 0) return;
  throw new RatchetError(
    'Unsupported',
    `Nothing was removed: Ratchet runs on this machine, and uses it. Stop it first: kill ${running.join(' ')}`,
  );
}

interface Failed {
  readonly path: string;
  readonly why: string;
}

async function remove(left: readonly Left[], { projectFolder }: Places): Promise<Failed[]> {
  const service = planHere(projectFolder);
  const failed: Failed[] = [];
  for (const { path: file } of left) {
    try {
      if (file === service?.file) uninstallService(service);
      else await rm(file, { recursive: true, force: true });
    } catch (error) {
      failed.push({ path: file, why: (error as NodeJS.ErrnoException).code ?? String(error) });
    }
  }
  for (const name of ['.ratchet', 'outputs']) await removeIfEmpty(path.join(projectFolder, name));
  return failed;
}

async function removeIfEmpty(folder: string): Promise<void> {
  await rmdir(folder).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOTEMPTY' && error.code !== 'ENOENT' && error.code !== 'EEXIST') throw error;
  });
}

export function describeLeft(left: readonly Left[]): string[] {
  if (left.length === 0) return ['nothing of Ratchet is on this machine'];
  const rows = left.map(({ path: file, what, bytes, stays }) => [
    stays === null ? 'remove' : 'stays',
    bytesText(bytes),
    onOneLine(shown(file)),
    `${what}${stays === null ? '' : ` (${stays})`}`,
  ]);
  const [size, file] = [1, 2].map((column) => Math.max(...rows.map((row) => row[column]!.length)));
  return rows.map(
    ([does, bytes, at, what]) => `${does!.padEnd(6)}  ${bytes!.padStart(size!)}  ${at!.padEnd(file!)}  ${what}`,
  );
}

function describeEnd(
  removable: readonly Left[],
  { isWanted, yes, failed, places }: { isWanted: boolean; yes: boolean; failed: readonly Failed[]; places: Places },
): string[] {
  const bytes = (some: readonly Left[]): string => bytesText(some.reduce((sum, one) => sum + one.bytes, 0));
  if (removable.length === 0) return ['There is nothing to remove.'];
  if (!isWanted) return [`${bytes(removable)} can be removed${yes ? '' : '; nothing was. To remove it: npx ratchet-rl uninstall --yes'}`]; // prettier-ignore
  const gone = removable.filter(({ path: file }) => !failed.some((one) => one.path === file));
  const service = planHere(places.projectFolder);
  const isServiceGone = service !== null && gone.some(({ path: file }) => file === service.file);
  return [
    ...failed.map((one) => `${shown(one.path)} was not removed: ${one.why}`),
    ...(isServiceGone ? ['The service may still run; end it:', ...service.toDisable.map((line) => `  ${line}`)] : []),
    `${bytes(gone)} removed. The package itself: npm uninstall ratchet-rl, where it is installed; pip uninstall ratchet-rl for its Python client`,
  ];
}
