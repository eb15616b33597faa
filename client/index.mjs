/**
 * `import { startRun, attach, readRun } from 'ratchet-rl/client'`: the types are in `index.d.mts`, what they do in
 * `client.ts`. That is loaded by the first call, built as a command's program is, so that the import itself takes no
 * time.
 */
import { builtProgram } from '../workers/built.mjs';

/** @type {Promise<typeof import('./client.ts')> | undefined} */
let loading;

async function load() {
  const built = await builtProgram({ name: 'client' });
  if (built !== undefined) return import(built);
  // From source, where the build cannot be written. In a name space of its own: the importer's files are loaded as ever.
  const { register } = await import('tsx/esm/api');
  return register({ namespace: 'ratchet-client' }).import('./client.ts', import.meta.url);
}

/** @type {typeof import('./client.ts').startRun} */
export const startRun = async (file, options) => (await (loading ??= load())).startRun(file, options);
/** @type {typeof import('./client.ts').attach} */
export const attach = async (run, options) => (await (loading ??= load())).attach(run, options);
/** @type {typeof import('./client.ts').readRun} */
export const readRun = async (place) => (await (loading ??= load())).readRun(place);
