/**
 * Import hooks for a user's own environment file, at any path. They run where Node resolves modules: in a thread of
 * their own, or, in a Node that has such hooks (22.15 and newer), in the importing thread. There tsx has its hooks as
 * well, without another thread.
 *
 * An import of `ratchet-rl/environments` resolves to the kit of the Ratchet that runs it. The file is an ES module, and
 * so is the TypeScript that it imports, even without a package.json that says so.
 */
import module from 'node:module';

/** @type {string} */
let kit;
/** Files of the user, by URL. */
const own = new Set();

/** The second is the name in environments from before the package was called ratchet-rl. */
const kitNames = ['ratchet-rl/environments', 'ratchet/environments'];

/** TypeScript, with tsx's addition to the URL of a file that it would have read as CommonJS. */
const typescript = /^(file:[^?]*?\.m?ts)(?:%3F[^?]*)?(?:\?.*)?$/;

/** @param {{ kit: string }} given */
export function initialize(given) {
  kit = given.kit;
}

/** @type {import('node:module').ResolveHook} */
export async function resolve(specifier, context, next) {
  if (kitNames.includes(specifier)) return next(kit, context);
  return asOwn(specifier, context.parentURL, await next(specifier, context));
}

/**
 * Hooks in, in the thread that calls; false in a Node where that is done by `register`.
 *
 * @param {{ kit: string }} given
 */
export function registerHere(given) {
  if (!('registerHooks' in module && typeof module.registerHooks === 'function')) return false;
  initialize(given);
  module.registerHooks({ resolve: resolveHere });
  return true;
}

/**
 * @param {string} specifier
 * @param {{ parentURL?: string }} context
 * @param {(specifier: string, context: object) => import('node:module').ResolveFnOutput} next
 */
function resolveHere(specifier, context, next) {
  if (kitNames.includes(specifier)) return next(kit, context);
  return asOwn(specifier, context.parentURL, next(specifier, context));
}

/**
 * @param {string} specifier
 * @param {string | undefined} parent
 * @param {import('node:module').ResolveFnOutput} resolved
 * @returns {import('node:module').ResolveFnOutput}
 */
function asOwn(specifier, parent, resolved) {
  const isOwn = specifier.includes('?sha256=') || (parent !== undefined && own.has(parent));
  const file = typescript.exec(resolved.url)?.[1];
  if (!isOwn || file === undefined || file.includes('/node_modules/') || resolved.url === kit) return resolved;
  const url = file + (/\?sha256=.*/.exec(specifier)?.[0] ?? '');
  own.add(url);
  return { ...resolved, url, format: 'module' };
}
