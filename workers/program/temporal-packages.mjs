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
 * An esbuild plugin: imports of these packages come from the script, which is made in `folder` where it is not there yet.
 *
 * @param {string} folder
 * @returns {import('esbuild').Plugin}
 */
export function temporalFromScript(folder) {
  /** @type {ReturnType<typeof script> | undefined} */
  let made;
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
        const { file, exported } = await (made ??= script(folder));
        const contents =
          name === 'script'
            ? `import { loadScript } from ${JSON.stringify(loader)}; export default loadScript(${JSON.stringify(file)});`
            : reexport(name, exported[name] ?? []);
        return { contents, resolveDir: path.dirname(loader) };
      });
    },
  };
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
 * The script, with the names that each package exports.
 *
 * @param {string} folder
 * @returns {Promise<Script>}
 */
async function script(folder) {
  const lock = readFileSync(resolve('../../npm-shrinkwrap.json'));
  const own = readFileSync(fileURLToPath(import.meta.url));
  // The script names files of these packages, which lie elsewhere once the folder was moved.
  const description = path.join(folder, `temporal-${digestOf(lock, own, resolve('@temporalio/worker'))}.json`);
  const made = readMade(description) ?? (await make(folder, description));
  // Files in use get a new time, so that they are not removed as old.
  for (const used of [made.file, description]) utimesSync(used, new Date(), new Date());
  return made;
}

/** @typedef {{ readonly file: string, readonly exported: Readonly<Record<string, readonly string[]>> }} Script */

/**
 * @param {string} description
 * @returns {Script | undefined}
 */
function readMade(description) {
  if (!existsSync(description)) return undefined;
  /** @type {Script} */
  const { file, exported } = JSON.parse(readFileSync(description, 'utf8'));
  const whole = path.join(path.dirname(description), file);
  return existsSync(whole) ? { file: whole, exported } : undefined;
}

/**
 * @param {string} folder
 * @param {string} description
 * @returns {Promise<Script>}
 */
async function make(folder, description) {
  await mkdir(folder, { recursive: true });
  const text = await bundled();
  const name = `temporal-${digestOf(text)}.cjs`;
  const file = path.join(folder, name);
  await writeAtOnce(file, text);
  const { loadScript } = await import('./load-script.mjs');
  const all = loadScript(file);
  const exported = Object.fromEntries(names.map((one) => [one, Object.keys(all[one]).filter(isPlain)]));
  await writeAtOnce(description, JSON.stringify({ file: name, exported }));
  return { file, exported };
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
  const { outputFiles } = await build({
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
          bundler.onLoad({ filter: /\.c?js$/ }, async ({ path: source }) => ({
            contents: asWhereItIs(await readFile(source, 'utf8'), source),
            loader: 'js',
          }));
        },
      },
    ],
  });
  return outputFiles[0]?.text ?? '';
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
 * Keeps the paths of files beside a file of a package: its native library, and what runs in threads of its own.
 *
 * @param {string} contents
 * @param {string} file
 */
function asWhereItIs(contents, file) {
  return contents
    .replaceAll('require.resolve(', `require('node:module').createRequire(${JSON.stringify(file)}).resolve(`)
    .replaceAll(/\b__dirname\b/g, JSON.stringify(path.dirname(file)))
    .replaceAll(/\b__filename\b/g, JSON.stringify(file));
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
