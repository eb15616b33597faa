/**
 * How the file of a user's own environment is imported, wherever it lies. Runs in the thread where Node resolves modules.
 *
 * What it imports as `ratchet/environments` is the kit of the Ratchet that runs it. It is an ES module, and so is what it imports in
 * TypeScript, also where no package.json says so.
 */

/** @type {string} */
let kit;
/** Files of the user's, by URL. */
const own = new Set();

/** @param {{ kit: string }} given */
export function initialize(given) {
  kit = given.kit;
}

/** @type {import('node:module').ResolveHook} */
export async function resolve(specifier, context, next) {
  if (specifier === 'ratchet/environments') return next(kit, context);
  const resolved = await next(specifier, context);
  const isOwn = specifier.includes('?sha256=') || (context.parentURL !== undefined && own.has(context.parentURL));
  const isSource = /^file:.*\.m?ts(\?.*)?$/.test(resolved.url) && !resolved.url.includes('/node_modules/');
  if (!isOwn || !isSource || resolved.url === kit) return resolved;
  own.add(resolved.url);
  return { ...resolved, format: 'module' };
}
