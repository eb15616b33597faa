import { readdir, readFile, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { problemsIn } from '../../core/problems-in.ts';
import { sha256OfFile } from '../../store/file-store.ts';
import { linkFolder } from './link-files.ts';

/**
 * A checkpoint of prime-rl, and a list of its files that comes last (runs/versions/optimizer-state.ts reads it): prime-rl takes half a checkpoint
 * for a whole one. It has the weights as they are held in training beside the optimizer’s moments, so the version that it is of is named.
 */
const listName = 'optimizer.json';

const SavedState = z.looseObject({
  schemaVersion: z.literal(1),
  trainer: z.literal('prime-rl'),
  /** prime-rl’s own number of the step; 0 = nothing was trained, and there are no files. */
  step: z.int().min(0),
  /** Of the version. */
  digest: z.string(),
  /** Ranks that wrote it. */
  ranks: z.int().min(1),
  files: z.record(z.string(), z.strictObject({ bytes: z.int().min(0), sha256: z.string() })),
});
export type SavedState = z.infer<typeof SavedState>;

export async function saveState(
  checkpoint: string | null,
  folder: string,
  about: Pick<SavedState, 'step' | 'digest' | 'ranks'>,
): Promise<void> {
  const files: Record<string, { bytes: number; sha256: string }> = {};
  if (checkpoint !== null) {
    const names = (await readdir(checkpoint)).sort();
    await linkFolder(checkpoint, folder, names);
    for (const name of names) {
      const file = path.join(folder, name);
      files[name] = { bytes: (await stat(file)).size, sha256: (await sha256OfFile(file))! };
    }
  }
  const list: SavedState = { schemaVersion: 1, trainer: 'prime-rl', ...about, files };
  await writeFile(path.join(folder, listName), `${JSON.stringify(list, null, 2)}\n`, { mode: 0o600 });
}

/** Throws `CheckpointDamaged` for a folder that is not whole. */
export async function readState(folder: string): Promise<SavedState> {
  const damaged = (why: string, cause?: unknown): RatchetError =>
    new RatchetError(
      'CheckpointDamaged',
      `${folder} is no checkpoint of prime-rl’s trainer: ${why}. Restore it from the same checkpoint.`,
      { cause },
    );
  let list: unknown;
  try {
    list = JSON.parse(await readFile(path.join(folder, listName), 'utf8'));
  } catch (error) {
    throw damaged(`${listName} cannot be read`, error);
  }
  const parsed = SavedState.safeParse(list);
  if (!parsed.success) throw damaged(problemsIn(parsed.error));
  const state = parsed.data;
  for (const [name, { bytes, sha256 }] of Object.entries(state.files)) {
    const file = path.join(folder, name);
    const size = (await stat(file).catch(() => null))?.size;
    if (size === undefined) throw damaged(`${name} is missing`);
    if (size !== bytes || (await sha256OfFile(file)) !== sha256) throw damaged(`${name} is not what was written`);
  }
  if (state.step > 0 && !('.metadata' in state.files)) throw damaged('its metadata are not in the list');
  return state;
}

/** Names of a state’s files, without the list. */
export function filesOf({ files }: SavedState): string[] {
  return Object.keys(files);
}
