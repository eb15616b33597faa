/**
 * Bundles the programs with esbuild, so that a command answers at once and a killed worker is soon back: loading 300
 * TypeScript files one by one takes longer than most commands. Rebuilt when a source has changed, and kept with the
 * packages they were built with.
 */
import { createHash, randomUUID } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import { mkdir, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import module from 'node:module';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { temporalFromScript } from './program/temporal-packages.mjs';

const ownRoot = fileURLToPath(new URL('../', import.meta.url));

/** Programs that run in processes of their own: name and source. @type {Readonly<Record<string, string>>} */
export const programs = {
  main: 'cli/main.ts',
  worker: 'workers/main.ts',
  'policy-server': 'workers/policy-server.ts',
  trainer: 'engine/train/trainer-main.ts',
};

/** What other programs import. */
const imported = { kit: 'backends/environments/kit.ts', client: 'client/client.ts' };

/** References from one program to another, as in the sources and as built. */
const others = { './kit.ts': './kit.mjs', './trainer-main.ts': './trainer.mjs' };

/** Age at which a program that is no longer current is removed: a run started with it may still load parts of it. */
const keptMs = 30 * 24 * 3_600_000;

/** Packages of many small files that every command reads: they become part of the program, the others stay where they are. */
const putIn = /^(?:zod|smol-toml)$/;

/** @param {string} root */
function cacheOf(root) {
  return path.join(root, 'node_modules', '.cache', 'ratchet');
}

/**
 * Has Node keep its compiled code beside the programs: its default is a folder for temporary files, which another user
 * may have made first. Node 20 has no such cache.
 */
export function keepCompiled() {
  if (process.env.NODE_COMPILE_CACHE !== undefined) return;
  if (!('enableCompileCache' in module) || typeof module.enableCompileCache !== 'function') return;
  module.enableCompileCache(path.join(cacheOf(ownRoot), 'compiled'));
}

/**
 * File that names the current build: one for each copy of the sources, since copies may share their packages.
 *
 * @param {string} root
 */
function currentFile(root) {
  return `current-${createHash('sha256').update(root).digest('hex').slice(0, 16)}.json`;
}

/**
 * The URL of a program as built, made now where it is missing or older than its sources. Undefined where it cannot be
 * written (to a folder of another user's, on a full disk) or esbuild fails: then it runs from source.
 *
 * @param {{ name?: string, root?: string }} [of]
 * @returns {Promise<string | undefined>}
 */
export async function builtProgram({ name: program = 'main', root = ownRoot } = {}) {
  const folder = cacheOf(root);
  try {
    const name = readCurrent(root, folder) ?? (await build(root, folder));
    return pathToFileURL(path.join(folder, name, `${program}.mjs`)).href;
  } catch (error) {
    if (error instanceof Error && 'syscall' in error) return undefined;
    if (!(error instanceof Error && 'errors' in error)) throw error;
    // A failure of esbuild. Errors in a source appear again, and better, when it runs from source.
    process.stderr.write(`not built, so it runs from source: ${error.message.slice(0, 2000)}\n`);
    return undefined;
  }
}

/**
 * The name of the program that was made of the sources as they are now.
 *
 * @param {string} root
 * @param {string} folder
 */
function readCurrent(root, folder) {
  try {
    /** @type {{ name: string, sources: Record<string, string> }} */
    const { name, sources } = JSON.parse(readFileSync(path.join(folder, currentFile(root)), 'utf8'));
    for (const [file, state] of Object.entries(sources)) if (stateOf(path.join(root, file)) !== state) return undefined;
    statSync(path.join(folder, name, 'main.mjs'));
    return name;
  } catch {
    return undefined; // missing, partial, or a source is gone: it is built again
  }
}

/** @param {string} file */
function stateOf(file) {
  const { mtimeMs, size } = statSync(file);
  return `${mtimeMs}:${size}`;
}

/** Settings with which esbuild turns the project's TypeScript into modules for Node. */
export const asModules = /** @type {const} */ ({
  outExtension: { '.js': '.mjs' },
  bundle: true,
  splitting: true,
  sourcemap: 'linked',
  sourcesContent: false,
  format: 'esm',
  platform: 'node',
  target: 'node20.19',
  packages: 'external',
  logLevel: 'error',
});

/**
 * @param {string} root
 * @param {string} folder
 */
async function build(root, folder) {
  const { build: bundle } = await import('esbuild');
  /** @type {Record<string, string>} */
  const sources = {};
  const name = randomUUID();
  const outdir = path.join(folder, name);
  await mkdir(outdir, { recursive: true });
  for (const file of [
    'package.json',
    'npm-shrinkwrap.json',
    'workers/built.mjs',
    'workers/program/temporal-packages.mjs',
  ])
    sources[file] = stateOf(path.join(root, file));
  await bundle({
    absWorkingDir: root,
    entryPoints: { ...programs, ...imported },
    outdir,
    ...asModules,
    plugins: [
      temporalFromScript(folder),
      {
        name: 'as if from source',
        setup(bundler) {
          bundler.onResolve({ filter: putIn }, ({ path: name }) => ({
            path: fileURLToPath(import.meta.resolve(name)),
          }));
          bundler.onLoad({ filter: /\.(?:ts|mjs)$/ }, async ({ path: file }) => {
            if (path.relative(root, file).split(path.sep).includes('node_modules')) return undefined;
            sources[path.relative(root, file)] = stateOf(file);
            const loader = file.endsWith('.ts') ? 'ts' : 'js';
            return { contents: fromSource(await readFile(file, 'utf8'), file), loader };
          });
        },
      },
    ],
  });
  const written = path.join(outdir, currentFile(root));
  await writeFile(written, JSON.stringify({ name, sources }));
  await rename(written, path.join(folder, currentFile(root)));
  await removeOld(folder);
  return name;
}

/**
 * Split in two: a built program builds as well, when a source changes while it runs, and must search for this text and
 * not its own address.
 */
const ownAddress = ['import.meta', 'url'].join('.');

/**
 * Paths relative to a source keep pointing beside that source. Only the kit is the built one: its classes must exist
 * once in the process.
 *
 * @param {string} contents
 * @param {string} file
 */
function fromSource(contents, file) {
  return Object.entries(others).reduce(
    (text, [source, built]) => text.replaceAll(`import.meta.resolve('${source}')`, `import.meta.resolve('${built}')`),
    contents.replaceAll(ownAddress, JSON.stringify(pathToFileURL(file).href)),
  );
}

/** @param {string} folder */
async function removeOld(folder) {
  for (const entry of await readdir(folder)) {
    const { mtimeMs } = await stat(path.join(folder, entry));
    if (Date.now() - mtimeMs > keptMs) await rm(path.join(folder, entry), { recursive: true, force: true });
  }
}
