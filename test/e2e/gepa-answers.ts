import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';

/** Scored rollouts, and reflections, in the folder of a search. */
export async function answersIn(folder: string): Promise<number> {
  const answers = path.join(folder, 'search/answers');
  const files = (await readdir(answers).catch(() => [])).filter((file) => file.endsWith('.jsonl'));
  const texts = await Promise.all(files.map((file) => readFile(path.join(answers, file), 'utf8').catch(() => '')));
  const rows = texts.flatMap((text) => text.split('\n')).filter((line) => line !== '');
  return rows.map((line) => JSON.parse(line) as object).filter((row) => 'reward' in row || 'answer' in row).length;
}
