import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, afterEach, before, beforeEach, describe, test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { builtProgram, programs, shipPrograms } from '../../workers/built.mjs';

const repository = fileURLToPath(new URL('../../', import.meta.url));

/** A folder with all that is built, at its smallest. */
function projectFolder(): string {
  const root = realpathSync(mkdtempSync(path.join(tmpdir(), 'built-')));
  for (const folder of ['cli', 'client', 'workers/program', 'engine/server', 'engine/train', 'backends/environments'])
    mkdirSync(path.join(root, folder), { recursive: true });
  for (const file of [
    'package.json',
    'npm-shrinkwrap.json',
    'workers/built.mjs',
    'workers/program/temporal-packages.mjs',
    'workers/program/load-script.mjs',
  ])
    cpSync(path.join(repository, file), path.join(root, file));
  writeFileSync(path.join(root, 'backends/environments/kit.ts'), `export { shared } from '../shared.ts';\n`);
  writeFileSync(path.join(root, 'backends/shared.ts'), 'export const shared = Symbol();\n');
  for (const source of [...Object.values(programs), 'client/client.ts'])
    writeFileSync(path.join(root, source), 'export const word = "another";\n');
  return root;
}

describe('the program as built', () => {
  let root: string;
  let folder: string;
  before(() => {
    root = projectFolder();
    folder = path.join(root, 'node_modules', '.cache', 'ratchet');
    writeMain('first');
  });
  after(() => rmSync(root, { recursive: true }));

  // In a name: the sources of tests are built too, and what they say so is put right there.
  const asks = 'import.meta.resolve';
  const writeMain = (word: string): void =>
    writeFileSync(
      path.join(root, 'cli/main.ts'),
      `import { shared } from '../backends/shared.ts';
export const word: string = '${word}';
export const ownUrl = import.meta.url;
export const isOne = async () => (await import(${asks}('./kit.ts'))).shared === shared;
`,
    );
  const load = async (): Promise<{ word: string; ownUrl: string; isOne(): Promise<boolean> }> => {
    const url = await builtProgram({ root });
    assert.ok(url);
    return import(url);
  };

  test('it is made once, and made anew when a source has changed', async () => {
    const first = await builtProgram({ root });
    assert.equal(await builtProgram({ root }), first);
    assert.equal((await load()).word, 'first');
    writeMain('second one');
    assert.notEqual(await builtProgram({ root }), first);
    assert.equal((await load()).word, 'second one');
    assert.equal((await load()).ownUrl, `file://${path.join(root, 'cli/main.ts')}`);
    assert.equal(readdirSync(folder).length, 3, 'a run that began with the first may still load parts of it');
  });

  test('a program that was built makes it anew as well, when a source changes while it runs', async () => {
    symlinkSync(path.join(repository, 'node_modules', 'esbuild'), path.join(root, 'node_modules', 'esbuild'));
    const main = path.join(root, 'cli/main.ts');
    const plain = readFileSync(main, 'utf8');
    writeFileSync(main, `${plain}export { builtProgram } from '../workers/built.mjs';\n`);
    const running = (await load()) as unknown as { builtProgram: typeof builtProgram };
    writeMain('changed while it ran');
    const { word, ownUrl } = (await import((await running.builtProgram({ root }))!)) as Awaited<
      ReturnType<typeof load>
    >;
    assert.deepEqual([word, ownUrl], ['changed while it ran', `file://${main}`]);
  });

  test("what it shares with the kit of a user's environment is there once", async () => {
    assert.equal(await (await load()).isOne(), true);
  });

  test('a program that is not whole is made anew', async () => {
    const [current] = readdirSync(folder).filter((name) => name.endsWith('.json'));
    writeFileSync(path.join(folder, current!), '{ "na');
    assert.equal((await load()).word, 'changed while it ran');
  });

  test('where it cannot be written, there is none', async () => {
    rmSync(folder, { recursive: true });
    writeFileSync(folder, 'a file where the folder should be');
    assert.equal(await builtProgram({ root }), undefined);
  });
});

describe('the programs of a package', () => {
  let packed: string;
  let installed: string;
  const ownCache = (): string => path.join(installed, 'node_modules', '.cache', 'ratchet');
  const program = (): Promise<string | undefined> => builtProgram({ root: installed });
  const isShipped = (url: string | undefined): boolean =>
    url === pathToFileURL(path.join(installed, 'built/programs/main.mjs')).href;
  const manifest = (): string => path.join(installed, 'node_modules/zod/package.json');

  before(async () => {
    packed = projectFolder();
    writeFileSync(
      path.join(packed, 'cli/main.ts'),
      `import { z } from 'zod';
export const word: string = z.string().parse('shipped');
export const ownUrl = import.meta.url;
`,
    );
    mkdirSync(path.join(packed, 'node_modules/zod'), { recursive: true });
    cpSync(path.join(repository, 'node_modules/zod/package.json'), path.join(packed, 'node_modules/zod/package.json'));
    const contained = await shipPrograms(packed);
    assert.deepEqual(contained.map((one) => path.basename(one)), ['zod'], 'whose licences go with it'); // prettier-ignore
  });
  beforeEach(() => {
    installed = realpathSync(mkdtempSync(path.join(tmpdir(), 'installed-')));
    cpSync(packed, installed, { recursive: true });
  });
  afterEach(() => rmSync(installed, { recursive: true }));
  after(() => rmSync(packed, { recursive: true }));

  test('run wherever it is installed, and nothing is built', async () => {
    const url = await program();
    assert.ok(isShipped(url), url);
    const { word, ownUrl } = (await import(url!)) as { word: string; ownUrl: string };
    assert.deepEqual([word, ownUrl], ['shipped', pathToFileURL(path.join(installed, 'cli/main.ts')).href]);
    assert.equal(readdirSync(ownCache()).length, 1, 'what was found is remembered');
    assert.ok(isShipped(await program()));
    const now = new Date();
    utimesSync(path.join(installed, 'cli/main.ts'), now, now);
    assert.ok(isShipped(await program()), 'times of files say nothing about a package');
  });

  test('run from a folder that cannot be written to', async () => {
    mkdirSync(path.dirname(ownCache()), { recursive: true });
    writeFileSync(ownCache(), 'a file where the folder should be');
    assert.ok(isShipped(await program()));
  });

  test('are built anew where a source is another one, also after they were found', async () => {
    assert.ok(isShipped(await program()));
    writeFileSync(path.join(installed, 'cli/main.ts'), `export const word = 'edited';\n`);
    const url = await program();
    assert.equal(((await import(url!)) as { word: string }).word, 'edited');
    assert.equal(await program(), url);
  });

  for (const [what, spoil] of Object.entries<() => void>({
    'a source is missing': () => rmSync(path.join(installed, 'backends/shared.ts')),
    'a package whose code they have is of another version': () => writeFileSync(manifest(), '{"version": "0.0.1"}'),
    'a package whose code they have is missing': () => rmSync(manifest()),
  }))
    test(`are not used where ${what}`, async () => {
      spoil();
      assert.ok(!isShipped(await program().catch(() => undefined)));
    });
});

describe("a command and a user's own environment", () => {
  let folder: string;
  before(() => {
    folder = mkdtempSync(path.join(tmpdir(), 'own-'));
    for (const file of ['my-env.toml', 'my-env.ts']) {
      cpSync(path.join(repository, 'configs/own-environment', file), path.join(folder, file));
    }
  });
  after(() => rmSync(folder, { recursive: true }));

  test('as built it says what it says from source, also about wrong arguments', async () => {
    for (const args of [
      ['check', 'my-env.toml'],
      ['check', 'my-env.toml', '--env.0.args', '{ no_such_argument = 1 }'],
      ['env', 'info', './my-env.ts'],
    ]) {
      const built = await output([path.join(repository, 'cli/ratchet.mjs'), ...args]);
      const source = ['--import', import.meta.resolve('tsx'), path.join(repository, 'cli/main.ts'), ...args];
      assert.deepEqual(built, await output(source));
      assert.ok(built.length > 20, built);
    }
  });

  function output(args: readonly string[]): Promise<string> {
    return new Promise((resolve) => {
      execFile(process.execPath, args, { cwd: folder }, (error, stdout, stderr) =>
        // Messages about a slow machine are not a difference.
        resolve(`${stdout}${stderr}exit ${error?.code ?? 0}`.replaceAll(/^still .* …\n/gm, '')),
      );
    });
  }
});
