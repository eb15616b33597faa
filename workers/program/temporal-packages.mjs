/**
 * The packages of Temporal's SDK as one script. They are a thousand files, of which a worker read six hundred before it asked for work: that
 * took most of its start. Made once for a lock file, and shared by all programs of this copy of Ratchet.
 */
import { createHash, randomUUID } from 'node:crypto';
import { existsSync, readFileSync, utimesSync } from 'node:fs';
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

/** Packages that our programs import. Each exists once in a process, so none may be left out of the script. */
const names = [
  '@temporalio/worker',
  '@temporalio/client',
  '@temporalio/client/lib/internal.js',
  '@temporalio/activity',
  '@temporalio/common',
  '@temporalio/common/lib/internal-non-workflow/index.js',
  '@temporalio/common/lib/time.js',
  '@temporalio/proto',
];

/** Packages outside of the script: those that only bundle workflows, and those shared with packages outside. */
const apart = ['webpack', '@swc/core', 'source-map-loader', 'swc-loader', 'long'];

const loader = fileURLToPath(new URL('./load-script.mjs', import.meta.url));
const { resolve } = createRequire(import.meta.url);

/**
 * An esbuild plugin: imports of these packages come from a script, which is made when the first of them is seen. It
 * lies in the folder above that of the programs.
 *
 * @param {() => Promise<Script>} made
 * @param {string} codeAt URL of the folder with V8's code of it, relative to the programs
 * @returns {import('esbuild').Plugin}
 */
export function temporalFromScript(made, codeAt) {
  return {
    name: 'Temporal from a script',
    setup(bundler) {
      bundler.onResolve({ filter: /^@temporalio\// }, ({ path: name, importer }) => {
        if (names.includes(name)) return { path: name, namespace: 'temporal', sideEffects: false };
        return {
          errors: [{ text: `${name} of ${importer} is not in the script of workers/program/temporal-packages.mjs` }],
        };
      });
      bundler.onResolve({ filter: /^script$/, namespace: 'temporal' }, () => ({
        path: 'script',
        namespace: 'temporal',
      }));
      bundler.onLoad({ filter: /./, namespace: 'temporal' }, async ({ path: name }) => {
        const { file, exported } = await made();
        const contents =
          name === 'script' ? loading(path.basename(file), codeAt) : reexport(name, exported[name] ?? []);
        return { contents, resolveDir: path.dirname(loader) };
      });
    },
  };
}

/** @param {string} script @param {string} codeAt */
function loading(script, codeAt) {
  const at = (/** @type {string} */ url) => `fileURLToPath(new URL(${JSON.stringify(url)}, import.meta.url))`;
  return [
    `import { fileURLToPath } from 'node:url';`,
    `import { loadScript } from ${JSON.stringify(loader)};`,
    `export default loadScript(${at(`../${script}`)}, ${at(codeAt)});`,
  ].join('\n');
}

/**
 * Node's form of a CommonJS module: its exports by name, and all of them as the default.
 *
 * @param {string} name
 * @param {readonly string[]} exported
 */
function reexport(name, exported) {
  return [
    `import script from 'script';`,
    `const all = script[${JSON.stringify(name)}];`,
    'export default all;',
    ...exported.map((one) => `export const ${one} = all.${one};`),
  ].join('\n');
}

/**
 * The script as it is in `folder`, made now where it is missing.
 *
 * @param {string} folder
 * @returns {Promise<Script>}
 */
export async function temporalScript(folder) {
  const lock = readFileSync(resolve('../../npm-shrinkwrap.json'));
  const own = readFileSync(fileURLToPath(import.meta.url));
  // The description names folders of packages, which lie elsewhere once the folder was moved.
  const description = path.join(folder, `temporal-${digestOf(lock, own, resolve('@temporalio/worker'))}.json`);
  const made = readMade(description) ?? (await make(folder, description));
  // Files in use get a new time, so that they are not removed as old.
  for (const used of [made.file, description]) utimesSync(used, new Date(), new Date());
  return made;
}

/**
 * @typedef {object} Script
 * @property {string} file
 * @property {Readonly<Record<string, readonly string[]>>} exported names that each package exports
 * @property {readonly string[]} packages folders of the packages that it has the code of
 */

/**
 * @param {string} description
 * @returns {Script | undefined}
 */
function readMade(description) {
  if (!existsSync(description)) return undefined;
  /** @type {Script} */
  const { file, ...more } = JSON.parse(readFileSync(description, 'utf8'));
  const whole = path.join(path.dirname(description), file);
  return existsSync(whole) ? { ...more, file: whole } : undefined;
}

/**
 * @param {string} folder
 * @param {string} description
 * @returns {Promise<Script>}
 */
async function make(folder, description) {
  await mkdir(folder, { recursive: true });
  const { text, packages } = await bundled();
  const name = `temporal-${digestOf(text)}.cjs`;
  const file = path.join(folder, name);
  await writeAtOnce(file, text);
  const { loadScript } = await import('./load-script.mjs');
  const all = loadScript(file);
  const exported = Object.fromEntries(names.map((one) => [one, Object.keys(all[one]).filter(isPlain)]));
  await writeAtOnce(description, JSON.stringify({ file: name, exported, packages }));
  return { file, exported, packages };
}

/** @param {(string | Uint8Array)[]} parts */
function digestOf(...parts) {
  const hash = createHash('sha256');
  for (const part of parts) hash.update(part);
  return hash.digest('hex').slice(0, 16);
}

/** @param {string} name */
function isPlain(name) {
  return /^[A-Za-z_$][\w$]*$/.test(name) && name !== 'default';
}

async function bundled() {
  const { build } = await import('esbuild');
  /** @type {Set<string>} */
  const packages = new Set();
  const { outputFiles } = await build({
    // Names of files in the script are relative to it.
    absWorkingDir: path.dirname(path.dirname(packageOf(resolve('@temporalio/worker')).folder)),
    stdin: {
      contents: names.map(whenAskedFor).join('\n'),
      resolveDir: path.dirname(loader),
    },
    bundle: true,
    write: false,
    format: 'cjs',
    platform: 'node',
    target: 'node20.19',
    external: apart,
    supported: { 'dynamic-import': false }, // a script that V8 keeps its code of has none
    legalComments: 'none',
    logLevel: 'error',
    plugins: [
      {
        name: 'as where they are',
        setup(bundler) {
          bundler.onLoad({ filter: /\.c?js$/ }, async ({ path: source }) => {
            packages.add(packageOf(source).folder);
            return { contents: asWhereItIs(await readFile(source, 'utf8'), source), loader: 'js' };
          });
        },
      },
    ],
  });
  return { text: outputFiles[0]?.text ?? '', packages: [...packages].sort() };
}

/**
 * The package that a file is of.
 *
 * @param {string} file
 */
export function packageOf(file) {
  const modules = `${path.sep}node_modules${path.sep}`;
  const from = file.lastIndexOf(modules) + modules.length;
  const parts = file.slice(from).split(path.sep);
  const name = parts.slice(0, parts[0]?.startsWith('@') ? 2 : 1);
  return {
    name: name.join('/'),
    folder: path.join(file.slice(0, from), ...name),
    file: parts.slice(name.length).join('/'),
  };
}

/**
 * A command that asks a run for its status needs the client, and no worker.
 *
 * @param {string} name
 */
function whenAskedFor(name) {
  const quoted = JSON.stringify(name);
  return `Object.defineProperty(exports, ${quoted}, { enumerable: true, get: () => require(${quoted}) });`;
}

/**
 * Has a file of a package find what is beside it: its native library, and what runs in threads of its own.
 *
 * @param {string} contents
 * @param {string} source
 */
function asWhereItIs(contents, source) {
  const { name, file } = packageOf(source);
  const at = (/** @type {string} */ one) => `packageFile(${JSON.stringify(name)}, ${JSON.stringify(one)})`;
  return contents
    .replaceAll('require.resolve(', `require('node:module').createRequire(${at(file)}).resolve(`)
    .replaceAll(/\b__dirname\b/g, at(path.posix.dirname(file)))
    .replaceAll(/\b__filename\b/g, at(file));
}

/**
 * @param {string} file
 * @param {string} text
 */
async function writeAtOnce(file, text) {
  const written = `${file}.${randomUUID()}`;
  try {
    await writeFile(written, text);
    await rename(written, file);
  } finally {
    await rm(written, { force: true });
  }
}
