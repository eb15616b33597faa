/**
 * Bundles the programs with esbuild, so that a command answers at once and a killed worker is soon back: loading 300
 * TypeScript files one by one takes longer than most commands. Rebuilt when a source has changed, and kept with the
 * packages they were built with. A package that `npm run pack` made brings them along.
 */
import { createHash, randomUUID } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, renameSync, statSync, writeFileSync } from 'node:fs';
import { copyFile, mkdir, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import module from 'node:module';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { packageOf, temporalFromScript, temporalScript } from './program/temporal-packages.mjs';

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

/** In a package that `npm run pack` made: a folder, in it one with the programs, and the file that says what they were made of. */
const shipped = /** @type {const} */ ({ folder: 'built', programs: 'programs', description: 'made-of.json' });

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
 * The URL of a program as built: one that is current, else that of the package, else made now. Undefined where it cannot
 * be written (to a folder of another user's, on a full disk) or esbuild fails: then it runs from source.
 *
 * @param {{ name?: string, root?: string }} [of]
 * @returns {Promise<string | undefined>}
 */
export async function builtProgram({ name: program = 'main', root = ownRoot } = {}) {
  const folder = cacheOf(root);
  try {
    const name = readCurrent(root, folder) ?? takeShipped(root, folder) ?? (await build(root, folder));
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

/**
 * The name of the programs that came with the package; undefined if there are none, or they were made of something else
 * than what is here. The times of files say nothing about that, so their contents are compared: once, where the answer
 * can be written.
 *
 * @param {string} root
 * @param {string} folder
 */
function takeShipped(root, folder) {
  const own = path.join(root, shipped.folder);
  const { sources = {}, packages = {} } = readIfThere(path.join(own, shipped.description)) ?? {};
  const files = Object.keys(sources);
  const states = Object.fromEntries(files.map((file) => [file, stateIfThere(path.join(root, file))]));
  const isAsMade =
    files.length > 0 &&
    files.every((file) => states[file] !== undefined && digestOf(path.join(root, file)) === sources[file]) &&
    Object.entries(packages).every(([name, version]) => versionOf(name, root) === version);
  if (!isAsMade) return undefined;
  const name = path.relative(folder, path.join(own, shipped.programs));
  try {
    mkdirSync(folder, { recursive: true });
    const written = path.join(folder, `${currentFile(root)}.${randomUUID()}`);
    writeFileSync(written, JSON.stringify({ name, sources: states }));
    renameSync(written, path.join(folder, currentFile(root)));
  } catch (error) {
    if (!(error instanceof Error && 'syscall' in error)) throw error; // else the next process compares again
  }
  return name;
}

/** @param {string} file @returns {{ sources?: Record<string, string>, packages?: Record<string, string> } | undefined} */
function readIfThere(file) {
  return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : undefined;
}

/** @param {string} file */
function stateIfThere(file) {
  return existsSync(file) ? stateOf(file) : undefined;
}

/** @param {string} file */
function digestOf(file) {
  return createHash('sha256').update(readFileSync(file)).digest('hex').slice(0, 32);
}

/**
 * The version of a package as Ratchet in `root` finds it.
 *
 * @param {string} name
 * @param {string} root
 * @returns {string | undefined}
 */
function versionOf(name, root) {
  const folders = module.createRequire(path.join(root, 'package.json')).resolve.paths(name) ?? [];
  const file = folders.map((one) => path.join(one, name, 'package.json')).find((one) => existsSync(one));
  return file && JSON.parse(readFileSync(file, 'utf8')).version;
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
  const name = randomUUID();
  const outdir = path.join(folder, name);
  /** @type {Record<string, string>} */
  const sources = {};
  await bundle(root, outdir, {
    note: (file) => (sources[file] = stateOf(path.join(root, file))),
    addressOf: (file) => JSON.stringify(pathToFileURL(file).href),
    script: once(() => temporalScript(folder)),
    codeAt: '../',
  });
  const written = path.join(outdir, currentFile(root));
  await writeFile(written, JSON.stringify({ name, sources }));
  await rename(written, path.join(folder, currentFile(root)));
  await removeOld(folder);
  return name;
}

/**
 * Puts the programs into a package that is about to be packed. Wherever it is installed, they find their sources and the
 * packages that they import. Returns the folders of the packages whose code they contain.
 *
 * @param {string} root
 * @returns {Promise<readonly string[]>}
 */
export async function shipPrograms(root) {
  const own = path.join(root, shipped.folder);
  const programsFolder = path.join(own, shipped.programs);
  await rm(own, { recursive: true, force: true });
  /** @type {Record<string, string>} */
  const sources = {};
  /** @type {import('./program/temporal-packages.mjs').Script | undefined} */
  let made;
  const script = once(async () => (made = await temporalScript(cacheOf(root))));
  /** @param {string} file */
  const fromPrograms = (file) => path.relative(programsFolder, file).replaceAll(path.sep, '/');
  const contained = await bundle(root, programsFolder, {
    note: (file) => (sources[file] = digestOf(path.join(root, file))),
    addressOf: (file) => `new URL(${JSON.stringify(fromPrograms(file))}, ${ownAddress}).href`,
    script,
    codeAt: `${fromPrograms(cacheOf(root))}/`,
    sourcemap: false,
  });
  if (made) await copyFile(made.file, path.join(own, path.basename(made.file)));
  const all = [...new Set([...contained, ...(made?.packages ?? [])])].sort();
  /** @type {{ dependencies: Record<string, string> }} */
  const { dependencies } = JSON.parse(await readFile(path.join(root, 'package.json'), 'utf8'));
  const names = all.map((one) => packageOf(path.join(one, 'package.json')).name).filter((one) => one in dependencies);
  const packages = Object.fromEntries(names.map((one) => [one, versionOf(one, root)]));
  await writeFile(path.join(own, shipped.description), JSON.stringify({ sources, packages }));
  return all;
}

/**
 * @template T
 * @param {() => Promise<T>} work
 */
function once(work) {
  /** @type {Promise<T> | undefined} */
  let done;
  return () => (done ??= work());
}

/**
 * Bundles the programs into `outdir`; returns the folders of packages that became part of them.
 *
 * @param {string} root
 * @param {string} outdir
 * @param {object} how
 * @param {(file: string) => void} how.note called with each source, relative to `root`, before it is read
 * @param {(file: string) => string} how.addressOf an expression for the URL of a source
 * @param {() => Promise<import('./program/temporal-packages.mjs').Script>} how.script
 * @param {string} how.codeAt
 * @param {'linked' | false} [how.sourcemap]
 * @returns {Promise<readonly string[]>}
 */
async function bundle(root, outdir, { note, addressOf, script, codeAt, sourcemap = asModules.sourcemap }) {
  const { build: bundled } = await import('esbuild');
  await mkdir(outdir, { recursive: true });
  for (const file of [
    'package.json',
    'npm-shrinkwrap.json',
    'workers/built.mjs',
    'workers/program/temporal-packages.mjs',
  ])
    note(file);
  /** @type {Set<string>} */
  const packages = new Set();
  await bundled({
    absWorkingDir: root,
    entryPoints: { ...programs, ...imported },
    outdir,
    ...asModules,
    sourcemap,
    plugins: [
      temporalFromScript(script, codeAt),
      {
        name: 'as if from source',
        setup(bundler) {
          bundler.onResolve({ filter: putIn }, ({ path: name }) => ({
            path: fileURLToPath(import.meta.resolve(name)),
          }));
          bundler.onLoad({ filter: /\.(?:ts|mjs|js)$/ }, async ({ path: file }) => {
            const source = path.relative(root, file);
            if (source.startsWith('..') || source.split(path.sep).includes('node_modules')) {
              packages.add(packageOf(file).folder);
              return undefined;
            }
            note(source);
            const loader = file.endsWith('.ts') ? 'ts' : 'js';
            return { contents: fromSource(await readFile(file, 'utf8'), addressOf(file)), loader };
          });
        },
      },
    ],
  });
  return [...packages];
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
 * @param {string} address
 */
function fromSource(contents, address) {
  return Object.entries(others).reduce(
    (text, [source, built]) => text.replaceAll(`import.meta.resolve('${source}')`, `import.meta.resolve('${built}')`),
    contents.replaceAll(ownAddress, () => address),
  );
}

/** @param {string} folder */
async function removeOld(folder) {
  for (const entry of await readdir(folder)) {
    const { mtimeMs } = await stat(path.join(folder, entry));
    if (Date.now() - mtimeMs > keptMs) await rm(path.join(folder, entry), { recursive: true, force: true });
  }
}
