import { readlink, symlink, rename, unlink } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import type { EvaluationPlace } from '../../core/eval/evaluation.ts';

const linked = [
  'best_prompt.txt',
  'system_prompt.txt',
  'best_system_prompt.txt',
  'pareto_frontier.jsonl',
  'results.jsonl',
  'metadata.json',
  'candidates.json',
  'candidate_tree.md',
] as const;

/**
 * Links the files of the newest search directly into `outputs/gepa/`, where guides look for them. Links only in such a
 * folder, and leaves files alone that are not our links.
 */
export async function linkNewestSearch({ store, name, prefix }: EvaluationPlace): Promise<void> {
  if (!store.startsWith('file:') || prefix !== '') return;
  const group = fileURLToPath(store);
  const base = path.dirname(path.resolve(group));
  if (path.basename(base) !== 'gepa') return;
  const target = path.join(path.basename(path.resolve(group)), name);
  for (const file of linked) await link(path.join(target, file), path.join(base, file));
}

async function link(target: string, at: string): Promise<void> {
  const known = await readlink(at).catch((error: NodeJS.ErrnoException) => (error.code === 'ENOENT' ? '' : null));
  if (known === null || known === target) return; // another program's file stays
  const temporary = `${at}.${process.pid}.tmp`;
  await unlink(temporary).catch(() => undefined); // of a process that was killed here
  await symlink(target, temporary);
  await rename(temporary, at).catch(async (error: unknown) => {
    await unlink(temporary);
    throw error;
  });
}
