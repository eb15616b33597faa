/** A worker that hides its secrets has programs of its own write into the store, also where it is no root. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { chmodSync, chownSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { build } from 'esbuild';

const isRoot = process.getuid?.() === 0;
const nobody = 65_534;
const module = (file: string) => JSON.stringify(new URL(`../../${file}`, import.meta.url).pathname);
const source = (store: string) => `
  import { execFileSync } from 'node:child_process';
  import { hideSecrets } from ${module('host/hide-secrets.ts')};
  import { openRunStore } from ${module('store/index.ts')};
  hideSecrets([]);
  const store = openRunStore(${JSON.stringify(pathToFileURL(store).href + '/')}, 'run');
  const staged = await store.staging.folder('pending/one/');
  execFileSync('sh', ['-c', 'mkdir "$1/made"; echo weights >"$1/made/file"', 'sh', staged.at]);
  await staged.close();
  await store.staging.seal('pending/one/made/');
  if (!(await store.staging.settle('pending/one/made/', 'weights/'))) throw new Error('nothing was there');
`;

/** Does it as a user without rights over other processes. */
async function write(t: TestContext, spoil: (place: string) => void = () => undefined): Promise<string> {
  const room = mkdtempSync(path.join(os.tmpdir(), 'ratchet-hidden-'));
  t.after(() => rmSync(room, { recursive: true }));
  const place = path.join(room, 'outputs');
  mkdirSync(place);
  const packages = new URL('../../node_modules/koffi', import.meta.url).pathname;
  // In one file, beside what it needs: the project's folder may be closed to the other user.
  await build({ stdin: { contents: source(place), resolveDir: room, loader: 'ts' }, outfile: path.join(room, 'write.mjs'), bundle: true, format: 'esm', platform: 'node', external: ['koffi', '@aws-sdk/*'], banner: { js: "import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);" }, logLevel: 'error' }); // prettier-ignore
  await promisify(execFile)('sh', ['-c', 'mkdir "$2/node_modules"; cp -RL "$1" "$2/node_modules/koffi"; [ -d "$1/../@koromix" ] && cp -RL "$1/../@koromix" "$2/node_modules/"; chmod -R a+rX "$2"', 'sh', packages, room]); // prettier-ignore
  if (isRoot) chownSync(place, nobody, nobody);
  spoil(place);
  const user = isRoot ? { uid: nobody, gid: nobody } : {};
  await promisify(execFile)(process.execPath, [path.join(room, 'write.mjs')], { cwd: room, env: { PATH: process.env['PATH'] }, ...user }); // prettier-ignore
  return path.join(place, 'run/weights/file');
}

test('what a program of its own has written is in the store', async (t) => {
  const file = await write(t);
  assert.ok(existsSync(file));
  assert.equal(readFileSync(file, 'utf8'), 'weights\n');
});

test(
  'a store that others may replace is refused where the program could be led elsewhere',
  { skip: process.platform !== 'linux' },
  async (t) => {
    await assert.rejects(
      write(t, (place) => chmodSync(place, 0o777)),
      /expected a folder that other users of this machine cannot replace/,
    );
  },
);
