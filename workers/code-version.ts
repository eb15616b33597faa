import { readFileSync } from 'node:fs';

/** Ratchet's own version, written into every commit. */
export const { version: codeVersion } = JSON.parse(
  readFileSync(new URL('../package.json', import.meta.url), 'utf8'),
) as { readonly version: string };
