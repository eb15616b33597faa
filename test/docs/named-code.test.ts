/** ARCHITECTURE.md, CONTRIBUTING.md and docs/internals/ name files and functions that are there. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { repositoryFolder } from '../e2e/small-run.ts';

const files = execFileSync('git', ['ls-files'], { cwd: repositoryFolder, encoding: 'utf8' })
  .split('\n')
  .filter((file) => file !== '' && existsSync(path.join(repositoryFolder, file)));
const documents = files.filter((file) =>
  /^(?:ARCHITECTURE\.md|CONTRIBUTING\.md|docs\/internals\/.*\.md|[a-z]+\/README\.md)$/.test(file),
);
const rooms = new Set(files.map((file) => file.split('/', 1)[0]!));

/** Texts between backticks on one line. */
function codeIn(document: string): string[] {
  const text = readFileSync(path.join(repositoryFolder, document), 'utf8').replaceAll(/^```[\s\S]*?^```$/gm, '');
  return [...text.matchAll(/`([^`\n]+)`/g)].map(([, code]) => code!);
}

test('every file and folder of the project that they name is there', () => {
  const named = documents.flatMap((document) =>
    codeIn(document)
      .filter((code) => /^[\w-]+(?:\/[\w.-]+)+\/?$/.test(code) && rooms.has(code.split('/', 1)[0]!))
      .filter((code) => !/\b(?:NAME|ENV|my_\w+|endpoints\.toml)\b/.test(code)) // a reader's own
      .map((code) => ({ document, code })),
  );
  assert.ok(named.length > 100, `only ${named.length} were found`);
  assert.deepEqual(
    named.filter(({ code }) => !existsSync(path.join(repositoryFolder, code))),
    [],
  );
});

test('every function, type and file name of docs/internals/ occurs in the code', () => {
  const code = files
    .filter((file) => /\.(?:ts|mjs|py|json)$/.test(file) && !file.startsWith('test/'))
    .map((file) => readFileSync(path.join(repositoryFolder, file), 'utf8'))
    .join('\n');
  const names = documents
    .filter((document) => !document.endsWith('README.md'))
    .flatMap((document) => codeIn(document).map((name) => ({ document, name })));
  const words = names.filter(({ name }) => /^(?:[a-z]+[A-Z]\w*|(?:[A-Z][a-z]+){2,}|RATCHET_[A-Z_]+)$/.test(name));
  const fileNames = names.filter(({ name }) => /^[\w-]+\.(?:ts|py|mjs)$/.test(name));
  assert.ok(words.length > 40 && fileNames.length > 20, `only ${words.length} and ${fileNames.length} were found`);
  assert.deepEqual(
    [
      ...words.filter(({ name }) => !code.includes(name)),
      ...fileNames.filter(({ name }) => !files.some((file) => path.basename(file) === name)),
    ],
    [],
  );
});
