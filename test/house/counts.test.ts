import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { countHouse } from './counts.ts';

const house = {
  'package.json': '{ "exports": { "./kit": "./core/kit.ts" } }',
  'core/kit.ts': 'export const kit = 1;\n',
  'core/a.ts': `/**
 * Of two lines.
 */
import type { B } from './b.ts';
import { late } from '../runs/late.ts';

// A comment
// that goes on.
export function a(b: B): unknown {
  // Why
  return { ...(b.kind === 'tinker' ? { late } : {}), ...(b.on && { late }) };
}
export const short = () => 1;
`,
  'core/b.ts': `import type { a } from './a.ts';\nexport interface B { readonly kind: string; readonly on: boolean; readonly a?: typeof a }\n`,
  'runs/late.ts': `import { a } from '../core/a.ts';\nexport const late = patched('x') && a;\nexport default late;\n`,
  'test/a.test.ts': `import { short } from '../core/a.ts';\nshort();\n`,
};

test('a small house is counted', () => {
  const root = mkdtempSync(path.join(tmpdir(), 'ratchet-house-'));
  try {
    for (const [file, text] of Object.entries(house)) {
      mkdirSync(path.dirname(path.join(root, file)), { recursive: true });
      writeFileSync(path.join(root, file), text);
    }
    execFileSync('git', ['init', '--quiet'], { cwd: root });
    const counts = countHouse(root);
    assert.deepEqual(counts.rooms['core'], {
      files: 3,
      codeLines: 9,
      linesPerFile: [2, 6, 6],
      linesPerFunction: [3, 3, 3],
      exports: [1, 2, 2],
      imports: [1, 2, 2],
      commentShare: 6 / 15,
    });
    assert.deepEqual(counts.beside['test'], { files: 1, codeLines: 2 });
    assert.deepEqual(counts.cycles, {
      values: [['core/a.ts', 'runs/late.ts']],
      withTypes: [['core/a.ts', 'core/b.ts', 'runs/late.ts']],
    });
    assert.deepEqual(counts.twoWayArrows, [{ rooms: ['core', 'runs'], there: 1, back: 1 }]);
    assert.equal(counts.comments.all, 3, 'a run of lines is one comment');
    assert.equal(counts.comments.byFirstWord['Of'], 1);
    assert.equal(counts.privateWords['goes on (continues)'], 1);
    assert.deepEqual(counts.backendKinds, { 'core/a.ts': 1 });
    assert.equal(counts.conditionalSpreads, 2);
    assert.equal(counts.patched, 1);
    assert.deepEqual(counts.unusedExports, {
      all: 6,
      usedByNobody: [],
      usedByTestsOnly: [{ file: 'core/a.ts', name: 'short', isType: false }],
      alsoByTests: [],
      inOwnFileOnly: [],
    });
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
});

/** The sections of a run file: each reads the table that all of them make. */
const largestCircle = 15;
const root = fileURLToPath(new URL('../../', import.meta.url));

test(
  'files import one another in small circles only, types included',
  {
    skip: existsSync(path.join(root, '.git')) ? false : 'a copy without git',
  },
  () => {
    const { values, withTypes } = countHouse(root).cycles;
    assert.deepEqual(values, []);
    assert.deepEqual(
      withTypes.filter((files) => files.length > largestCircle),
      [],
    );
  },
);
