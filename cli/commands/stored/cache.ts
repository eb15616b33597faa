import { lstat, readdir } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { Command } from '@commander-js/extra-typings';
import { cacheFolder } from '../../../host/cache-folder.ts';
import { hubSettings } from '../../../backends/hub/hub-settings.ts';
import { bytesText } from '../../output/bytes-text.ts';
import { onOneLine } from '../../output/plain-text.ts';
import { print, printJson } from '../../output/print.ts';

export const cacheCommand = new Command('cache')
  .description('what Ratchet keeps on this machine, in this folder and outside of it, with sizes; changes nothing')
  .option('--json', 'a JSON array: path, what, bytes, isShared')
  .action(async ({ json = false }) => {
    const kept = await keptHere();
    if (json) return printJson(kept, 2);
    print(describeKept(kept).join('\n'));
  });

export interface Kept {
  readonly path: string;
  readonly what: string;
  readonly bytes: number;
  /** Whether other programs use it, too. */
  readonly isShared: boolean;
}

/** Descriptions of entries in the user's cache, by the beginning of their name. */
const inCache: readonly (readonly [start: string, what: string])[] = [
  ['temporal-cli', 'Temporal server'],
  ['models', 'models that Ratchet fetched itself'],
  ['python', 'Python environments for [wandb] and verifiers'],
  ['workflow-bundles', 'workflow code, built'],
  ['swc', 'compiler of workflow code'],
  ['s3-copies', 'copies of objects in S3'],
  ['wandb', 'metrics on their way to W&B'],
];

export interface Places {
  readonly projectFolder: string;
  readonly home: string;
  readonly cache: string;
  readonly hub: string;
  readonly temporary: string;
}

export const defaultPlaces = (): Places => ({
  projectFolder: process.cwd(),
  home: os.homedir(),
  cache: cacheFolder(),
  hub: hubSettings().cache,
  temporary: os.tmpdir(),
});

/** All existing entries, those of this folder first. */
export async function keptHere(places: Places = defaultPlaces()): Promise<Kept[]> {
  const { projectFolder, home, cache, hub, temporary } = places;
  const cached = (await namesIn(cache)).map((name) => {
    const what = inCache.find(([start]) => name.startsWith(start))?.[1] ?? 'other downloads and builds';
    return [path.join(cache, name), what, false] as const;
  });
  const left = (await namesIn(temporary))
    .filter((name) => name.startsWith('ratchet-'))
    .map(
      (name) => [path.join(temporary, name), 'temporary files, of processes that run or were killed', false] as const,
    );
  const candidates: readonly (readonly [file: string, what: string, isShared: boolean])[] = [
    [path.join(projectFolder, 'outputs'), 'runs, evaluations, prompt searches', false],
    [
      path.join(projectFolder, '.ratchet'),
      'database of the Temporal server, Python environments of this folder',
      false,
    ],
    [path.join(projectFolder, 'node_modules'), 'packages of npm', false],
    ...cached,
    [hub, 'models and datasets of the Hugging Face Hub', true],
    [path.join(home, '.config', 'temporalio'), 'settings of the Temporal CLI', true],
    ...left,
  ];
  const kept = await Promise.all(
    candidates.map(async ([file, what, isShared]) => ({ path: file, what, bytes: await bytesOf(file), isShared })),
  );
  return kept.flatMap(({ bytes, ...one }) => (bytes === null ? [] : [{ ...one, bytes }]));
}

export function describeKept(kept: readonly Kept[]): string[] {
  if (kept.length === 0) return ['nothing of Ratchet is on this machine'];
  const rows = kept.map(({ path: file, what, bytes, isShared }) => [
    bytesText(bytes),
    onOneLine(shown(file)),
    `${what}${isShared ? '; other programs use it, too' : ''}`,
  ]);
  const [first, second] = [0, 1].map((column) => Math.max(...rows.map((row) => row[column]!.length)));
  const total = kept.filter(({ isShared }) => !isShared).reduce((sum, { bytes }) => sum + bytes, 0);
  return [
    ...rows.map(([size, file, what]) => `${size!.padStart(first!)}  ${file!.padEnd(second!)}  ${what}`),
    `${bytesText(total).padStart(first!)}  without what other programs use. To remove it: npx ratchet-rl uninstall`,
  ];
}

/** Path relative to this folder, or to the home folder. */
export function shown(file: string): string {
  for (const [folder, start] of [
    [process.cwd(), ''],
    [os.homedir(), '~/'],
  ] as const) {
    const way = path.relative(folder, file);
    if (way !== '' && !way.startsWith('..') && !path.isAbsolute(way)) return start + way;
  }
  return file;
}

/** Names in a folder, sorted; none if it is missing. */
export async function namesIn(folder: string): Promise<string[]> {
  return (await readdir(folder).catch(() => [])).sort((a, b) => a.localeCompare(b));
}

/** Bytes on disk, without following links; null when missing. */
export async function bytesOf(file: string): Promise<number | null> {
  const found = await lstat(file).catch(() => null);
  if (found === null) return null;
  if (!found.isDirectory()) return found.size;
  let bytes = 0;
  for (const name of await namesIn(file)) bytes += (await bytesOf(path.join(file, name))) ?? 0;
  return bytes;
}
