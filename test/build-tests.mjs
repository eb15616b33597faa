/**
 * Test files as plain JavaScript, put together with what they import of ours: most of what a small test costs is loading TypeScript, file by
 * file. Called with files, it prints what to run in their place as a JSON list. Those of `test/workflows` become one, so that they share a Temporal server.
 */
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { readdir, readFile, rm, stat } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { build } from 'esbuild';
import { asModules, builtProgram } from '../workers/built.mjs';

const root = fileURLToPath(new URL('../', import.meta.url));
const folder = path.join(root, 'node_modules/.cache/ratchet-tests');
/** Of a run that was killed. */
const keptMs = 24 * 3_600_000;
const together = 'test/workflows/';
/** They load TypeScript of a user's where they are, by the loader that they were started with. */
const fromSource = [
  'test/engine/trainer-process.test.ts',
  'test/environments/configs.test.ts',
  'test/environments/own-environment.test.ts',
];
/** What others import of us by our name. @type {{ exports: Record<string, string> }} */
const { exports: exported } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8'));

/**
 * @param {readonly string[]} files relative to the project
 * @returns {Promise<string[]>}
 */
async function buildTests(files) {
  await removeOld();
  const outdir = path.join(folder, randomUUID());
  const asTheyAre = files.filter((file) => fromSource.includes(file));
  const alone = files.filter((file) => !file.startsWith(together) && !fromSource.includes(file));
  const joined = files.filter((file) => file.startsWith(together));
  const entries = Object.fromEntries(alone.map((file) => [file.replace(/\.ts$/, ''), path.join(root, file)]));
  await build({
    absWorkingDir: root,
    entryPoints: joined.length === 0 ? entries : { [`${together}all.test`]: 'together', ...entries },
    outdir,
    ...asModules,
    define: { 'import.meta.url': '__moduleUrl', 'import.meta.dirname': '__moduleFolder' },
    plugins: [asFromSource(joined, (await builtProgram({ name: 'trainer' })) ?? null)],
  });
  const names = [...(joined.length === 0 ? [] : [`${together}all.test`]), ...Object.keys(entries)];
  return [...names.map((name) => path.join(outdir, `${name}.mjs`)), ...asTheyAre.map((file) => path.join(root, file))];
}

/**
 * What lies beside a source is found there. The trainer's process alone is the one that users have: many are started.
 *
 * @param {readonly string[]} joined
 * @param {string | null} trainer its URL as built; null = from source
 * @returns {import('esbuild').Plugin}
 */
function asFromSource(joined, trainer) {
  return {
    name: 'as from source',
    setup(bundler) {
      bundler.onResolve({ filter: /^together$/ }, () => ({ path: 'together', namespace: 'together' }));
      bundler.onLoad({ filter: /./, namespace: 'together' }, () => ({
        contents: joined.map((file) => `import ${JSON.stringify(`./${file}`)};`).join('\n'),
        resolveDir: root,
      }));
      bundler.onResolve({ filter: /^ratchet-rl\// }, ({ path: name }) => ({
        path: path.join(root, exported[name.replace('ratchet-rl', '.')] ?? name),
      }));
      bundler.onLoad({ filter: /\.(?:ts|mjs)$/ }, async ({ path: file }) => {
        const url = JSON.stringify(pathToFileURL(file).href);
        const place = `const __moduleUrl = ${url}, __moduleFolder = ${JSON.stringify(path.dirname(file))}; `;
        const contents = await readFile(file, 'utf8');
        const own = contents.replaceAll(`import.meta.resolve('./trainer-main.ts')`, (call) =>
          trainer === null ? call : JSON.stringify(trainer),
        );
        const resolved = own.replaceAll(/import\.meta\.resolve\(('\.[^']*')\)/g, 'new URL($1, __moduleUrl).href');
        return { contents: place + resolved, loader: file.endsWith('.ts') ? 'ts' : 'js' };
      });
    },
  };
}

async function removeOld() {
  for (const entry of await readdir(folder).catch(() => [])) {
    const { mtimeMs } = await stat(path.join(folder, entry));
    if (Date.now() - mtimeMs > keptMs) await rm(path.join(folder, entry), { recursive: true, force: true });
  }
}

process.stdout.write(JSON.stringify(await buildTests(process.argv.slice(2))));
