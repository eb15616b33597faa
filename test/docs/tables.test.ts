/** Tables of the documents: every row has as many cells as its heading. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { repositoryFolder } from '../e2e/small-run.ts';

test('no row of a table in README or docs/ lacks a cell', () => {
  const docs = readdirSync(path.join(repositoryFolder, 'docs'), { recursive: true, encoding: 'utf8' });
  const files = ['README.md', 'ARCHITECTURE.md', ...docs.map((name) => `docs/${name}`)];
  for (const file of files.filter((name) => name.endsWith('.md'))) {
    let [isCode, cells] = [false, 0];
    for (const [i, line] of readFileSync(path.join(repositoryFolder, file), 'utf8').split('\n').entries()) {
      if (line.startsWith('```')) isCode = !isCode;
      const own = isCode || !line.startsWith('|') ? 0 : cellsOf(line);
      if (own > 0 && cells > 0) assert.equal(own, cells, `${file}:${i + 1}`);
      cells = own;
    }
  }
});

function cellsOf(row: string): number {
  return row.replaceAll(/`[^`]*`/g, 'code').split(/(?<!\\)\|/).length;
}
