/** `npm run docs`: writes what is made from the code into docs/; with `--capture` it also types every command in a small project. */
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { captureCommands } from './capture.ts';
import { docsFolder, made, madeDocuments } from './documents.ts';

const captures = process.argv.includes('--capture') ? await captureCommands() : undefined;
for (const name of madeDocuments) {
  const file = path.join(docsFolder, name);
  const text = await made(name, captures);
  const isNew = text !== (await readFile(file, 'utf8'));
  if (isNew) await writeFile(file, text);
  process.stdout.write(`docs/${name} ${isNew ? 'written' : 'as it was'}\n`);
}
