import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { loadScript } from '../../workers/program/load-script.mjs';

const loader = fileURLToPath(new URL('../../workers/program/load-script.mjs', import.meta.url));

describe('a script that V8 keeps its code of', () => {
  let folder: string;
  let file: string;
  before(() => {
    folder = mkdtempSync(path.join(tmpdir(), 'script-'));
    file = path.join(folder, 'all.cjs');
    writeFileSync(file, `exports.next = (n) => n + 1; exports.sep = require('node:path').sep;`);
  });
  after(() => rmSync(folder, { recursive: true }));
  const codes = (): string[] => readdirSync(folder).filter((name) => name !== 'all.cjs');

  test('exports what it exports, at the first load and with its code', () => {
    for (const _ of ['compiled', 'with its code']) {
      const { next, sep } = loadScript(file);
      assert.deepEqual([next(1), sep], [2, path.sep]);
    }
    assert.equal(codes().length, 1);
  });

  test('what is asked for later is loaded then, and its code is there', () => {
    const later = path.join(folder, 'later.cjs');
    writeFileSync(
      later,
      `globalThis.asked = []; for (const name of ['a', 'b'])
       Object.defineProperty(exports, name, { enumerable: true, get: () => globalThis.asked.push(name) });`,
    );
    const asked = (): unknown => Reflect.get(globalThis, 'asked');
    loadScript(later);
    assert.deepEqual(asked(), ['a', 'b'], 'the first load reads them, so that the code of both is kept');
    void loadScript(later)['b'];
    assert.deepEqual(asked(), ['b']);
    for (const name of readdirSync(folder)) if (name.startsWith('later')) rmSync(path.join(folder, name));
  });

  test('it finds files of packages as the packages find them that it was made of, wherever they lie', () => {
    const packages = path.join(folder, 'node_modules');
    const put = (place: string, text: string): void => {
      mkdirSync(path.join(packages, place), { recursive: true });
      writeFileSync(path.join(packages, place, 'package.json'), text);
    };
    put('@temporalio/worker', '{}');
    put('@temporalio/worker/node_modules/inner', '"of the worker"');
    put('inner', '"of somebody else"');
    put('beside', '"beside"');
    const script = path.join(folder, 'finds.cjs');
    writeFileSync(script, `exports.find = (name) => require(packageFile(name, 'package.json'));`);
    const { find } = loadScript(script);
    assert.deepEqual(['inner', 'beside'].map(find), ['of the worker', 'beside']);
    assert.throws(() => find('none'), /The package none is not installed .* install Ratchet again/);
    for (const name of readdirSync(folder)) if (name.startsWith('finds')) rmSync(path.join(folder, name));
    rmSync(packages, { recursive: true });
  });

  test('its code may lie in another folder', () => {
    const elsewhere = path.join(folder, 'code', 'below');
    assert.equal(loadScript(file, elsewhere)['next'](1), 2);
    assert.equal(readdirSync(elsewhere).length, 1);
    rmSync(path.join(folder, 'code'), { recursive: true });
  });

  test('half of its code is made anew', () => {
    const [code] = codes();
    const place = path.join(folder, code!);
    writeFileSync(place, readFileSync(place).subarray(0, 40));
    // Of what is compiled already V8 would look at no code: a process of its own.
    const loading = `import { loadScript } from ${JSON.stringify(loader)}; console.log(loadScript(${JSON.stringify(file)}).next(2))`;
    const said = execFileSync(process.execPath, ['--input-type=module', '--eval', loading], { encoding: 'utf8' });
    assert.equal(said.trim(), '3');
    assert.ok(readFileSync(place).length > 40);
  });

  test('where it cannot be kept the script is compiled', () => {
    const [code] = codes();
    // A folder in the place of the code: it can be neither read nor written, whoever asks.
    const place = path.join(folder, code!);
    rmSync(place);
    mkdirSync(place);
    writeFileSync(path.join(place, 'something'), '');
    writeFileSync(file, `exports.next = (n) => n + 2;`);
    assert.equal(loadScript(file)['next'](2), 4);
    assert.deepEqual(codes(), [code]);
  });
});
