/**
 * Builds test files as plain JavaScript, bundled with what they import of the project: most of what a small test costs is loading TypeScript
 * file by file. Called with files, it prints a JSON list of programs that run the same tests, those that take longest first.
 */
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { readdir, readFile, rm, stat } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { build } from 'esbuild';
import { asModules, builtProgram } from '../workers/built.mjs';
import { shareProcesses } from './processes.mjs';

/** @typedef {import('./processes.mjs').TestProcess} TestProcess */

const root = fileURLToPath(new URL('../', import.meta.url));
const folder = path.join(root, 'node_modules/.cache/ratchet-tests');
/** Age at which the build of a killed run is removed. */
const keptMs = 24 * 3_600_000;
/** Files that load a user's TypeScript into their own process, where it must meet the same classes as the test. */
const fromSource = ['test/environments/configs.test.ts', 'test/environments/own-environment.test.ts'];
/** Programs that tests start in processes of their own. */
const children = ['test/bad-input/cli-child.ts', 'test/bad-input/part-child.ts', 'test/stand-ins/tinker/main.ts'];
/** What `ratchet-rl` exports. @type {{ exports: Record<string, string> }} */
const { exports: exported } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8'));
/** @type {Record<string, number>} */
const seconds = JSON.parse(readFileSync(path.join(root, 'test/seconds.json'), 'utf8'));

/**
 * @param {readonly string[]} files relative to the project
 * @returns {Promise<string[]>}
 */
async function buildTests(files) {
  await removeOld();
  const outdir = path.join(folder, randomUUID());
  const processes = new Map(shareProcesses(files, seconds).map((one) => [one.name, one]));
  await build({
    absWorkingDir: root,
    entryPoints: Object.fromEntries([
      ...[...processes.keys()].map((name) => [name, `process:${name}`]),
      ...children.map((file) => [file.replace(/\.ts$/, ''), `./${file}`]),
    ]),
    outdir,
    ...asModules,
    define: { 'import.meta.url': '__moduleUrl', 'import.meta.dirname': '__moduleFolder' },
    plugins: [asFromSource(processes, await programUrls(outdir))],
  });
  return [...processes.keys()].map((name) => path.join(outdir, `${name}.mjs`));
}

/**
 * URLs of programs that are started as built, by their source. The trainer's is the one that users have.
 * @param {string} outdir
 * @returns {Promise<Map<string, string>>}
 */
async function programUrls(outdir) {
  const built = (/** @type {string} */ file) => pathToFileURL(path.join(outdir, file.replace(/\.ts$/, '.mjs'))).href;
  const urls = new Map(children.map((file) => [path.join(root, file), built(file)]));
  const trainer = await builtProgram({ name: 'trainer' });
  return trainer === undefined ? urls : urls.set(path.join(root, 'engine/train/trainer-main.ts'), trainer);
}

/** @param {string} file */
const isFromSource = (file) => fromSource.includes(file) || /[/](?:e2e|faults)[/].*\.slow\.test\.ts$/.test(file);

/**
 * The program of a process.
 * @param {readonly string[]} files
 */
function programOf(files) {
  const [only = ''] = files;
  if (files.length > 1 || !isFromSource(only))
    return files.map((file) => `import ${JSON.stringify(`./${file}`)};`).join('\n');
  return `
    import { spawn } from 'node:child_process';
    const args = ['--import', 'tsx', ...process.execArgv, ${JSON.stringify(path.join(root, only))}];
    const child = spawn(process.execPath, args, { stdio: 'inherit' });
    process.on('SIGTERM', () => child.kill());
    child.on('exit', (code) => (process.exitCode = code ?? 1));`;
}

/**
 * What lies beside a source is found there, but for programs that were built.
 *
 * @param {ReadonlyMap<string, TestProcess>} processes
 * @param {ReadonlyMap<string, string>} programs
 * @returns {import('esbuild').Plugin}
 */
function asFromSource(processes, programs) {
  return {
    name: 'as from source',
    setup(bundler) {
      bundler.onResolve({ filter: /^process:/ }, ({ path: name }) => ({
        path: name.slice('process:'.length),
        namespace: 'process',
      }));
      bundler.onLoad({ filter: /./, namespace: 'process' }, ({ path: name }) => ({
        contents: programOf(processes.get(name)?.files ?? []),
        resolveDir: root,
      }));
      bundler.onResolve({ filter: /^ratchet-rl\// }, ({ path: name }) => ({
        path: path.join(root, exported[name.replace('ratchet-rl', '.')] ?? name),
      }));
      bundler.onLoad({ filter: /\.(?:ts|mjs)$/ }, async ({ path: file }) => {
        const url = JSON.stringify(pathToFileURL(file).href);
        const place = `const __moduleUrl = ${url}, __moduleFolder = ${JSON.stringify(path.dirname(file))}; `;
        const contents = await readFile(file, 'utf8');
        const resolved = contents.replaceAll(/import\.meta\.resolve\('(\.[^']*)'\)/g, (_, name) => {
          const source = path.join(path.dirname(file), name);
          return JSON.stringify(programs.get(source) ?? pathToFileURL(source).href);
        });
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
