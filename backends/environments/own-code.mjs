/**
 * How the file of a user's own environment finds what it imports as `ratchet/environments`, wherever it lies: it is the kit of the Ratchet that runs it.
 * Runs in the thread where Node resolves modules.
 * @type {string}
 */
let kit;

/** @param {{ kit: string }} given */
export function initialize(given) {
  kit = given.kit;
}

/** @type {import('node:module').ResolveHook} */
export async function resolve(specifier, context, next) {
  return next(specifier === 'ratchet/environments' ? kit : specifier, context);
}
