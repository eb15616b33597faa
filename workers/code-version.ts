import { readFileSync } from 'node:fs';
import { z } from 'zod';

/** Ratchet's own version, written into every commit. */
export const codeVersion = z
  .object({ version: z.string() })
  .parse(JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'))).version;
