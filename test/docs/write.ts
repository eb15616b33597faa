/**
 * `npm run docs`: writes what is made from the code into docs/guide/, and into docs/made/, which git ignores, the whole table
 * of every dialect. With `--capture` it also types every command in a small project, or those that are named behind it.
 */
import { existsSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { captureCommands } from './capture.ts';
import { dialectTables } from './dialect-tables.ts';
import { docsFolder, ignoredFolder, made, madeDocuments } from './documents.ts';

const at = process.argv.indexOf('--capture');
const captures = at < 0 ? undefined : await captureCommands(process.argv.slice(at + 1));
for (const document of madeDocuments) {
  await write(path.join(docsFolder, document.file), `docs/guide/${document.file}`, await made(document, captures));
}
await write(path.join(ignoredFolder, 'dialects.md'), 'docs/made/dialects.md', dialectTables());

async function write(place: string, name: string, text: string): Promise<void> {
  const isNew = !existsSync(place) || text !== (await readFile(place, 'utf8'));
  await mkdir(path.dirname(place), { recursive: true });
  if (isNew) await writeFile(place, text);
  process.stdout.write(`${name} ${isNew ? 'written' : 'as it was'}\n`);
}
