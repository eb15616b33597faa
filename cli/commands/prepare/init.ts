import { existsSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { runsFolder, starterFiles, type StarterKind } from '../../start/starters.ts';
import { print } from '../../output/print.ts';

export const initCommand = new Command('init')
  .description(
    'write example configs into this folder: runs, evaluations, prompt optimization, endpoints; nothing is overwritten',
  )
  .option('--lab', 'runs in the words of Hosted Training, in configs/rl')
  .option('--prime-rl', 'runs in the words of prime-rl, in configs/prime-rl')
  .option('--vf-rl', 'runs in the words of vf-rl, in configs/vf-rl')
  .option('--dry-run', 'say what would be written, and write nothing')
  .action(async (options) => {
    const asked: StarterKind[] = [
      ...(options.lab ? (['lab'] as const) : []),
      ...(options.primeRl ? (['prime-rl'] as const) : []),
      ...(options.vfRl ? (['vf-rl'] as const) : []),
    ];
    if (asked.length > 1) {
      throw new RatchetError('ConfigInvalid', `expected one of --lab, --prime-rl and --vf-rl, got ${asked.length}`);
    }
    const { dryRun: isDryRun } = options;
    print(await initLab(asked[0] ?? 'ratchet', process.cwd(), { isDryRun }));
  });

/**
 * Writes the example configs of a kind, leaves existing files, and lists both with the next steps; a dry run lists the
 * same and writes nothing.
 */
export async function initLab(
  kind: StarterKind,
  folder: string = process.cwd(),
  { isDryRun = false }: { readonly isDryRun?: boolean | undefined } = {},
): Promise<string> {
  const written: string[] = [];
  const there: string[] = [];
  for (const [name, text] of await starterFiles(kind)) {
    const file = path.join(folder, name);
    const isNew = isDryRun ? !existsSync(file) : await writeNew(file, text);
    (isNew ? written : there).push(name);
  }
  return [
    ...told(isDryRun ? 'would write' : 'wrote', written),
    ...told(isDryRun ? 'would leave as it is' : 'left as it was', there),
    ...(isDryRun ? [] : kind === 'ratchet' ? nextHere : nextElsewhere(kind)),
  ].join('\n');
}

/** False when the file existed already; then it stays as it is. */
async function writeNew(file: string, text: string): Promise<boolean> {
  await mkdir(path.dirname(file), { recursive: true });
  try {
    await writeFile(file, text, { flag: 'wx' });
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  }
}

/** Groups files by folder: `configs/rl/{alphabet-sort,gsm8k}.toml`. */
function told(what: string, files: readonly string[]): string[] {
  const folders = new Map<string, string[]>();
  for (const file of files) {
    const folder = path.dirname(file);
    folders.set(folder, [...(folders.get(folder) ?? []), path.basename(file)]);
  }
  return [...folders].map(([folder, names]) => `${what}  ${folder}/  ${names.join(' ')}`);
}

const nextHere = [
  'next   npx ratchet-rl check configs/rl/*.toml              what each of them will do, and what it still needs here',
  '       npx ratchet-rl train configs/rl/reverse-text.toml   trains in a minute, with nothing else installed',
];

const withoutPrimeRl = [
  '       Nothing was installed. PyTorch or the embedded engine trains these files, or what [ratchet.trainer] names (docs/guide/trainers.md).',
  "       For prime-rl's own trainer, which has to be cloned and installed: npx ratchet-rl engine install prime-rl   says what to type",
];

function nextElsewhere(kind: Exclude<StarterKind, 'ratchet'>): string[] {
  return [
    `next   npx ratchet-rl check ${runsFolder(kind)}/reverse-text.toml     what it will do, and what it still needs here`,
    '       npx ratchet-rl env install primeintellect/reverse-text   or --builtin, for the environment that comes with Ratchet',
    ...(kind === 'prime-rl' ? withoutPrimeRl : []),
  ];
}
