import { z } from 'zod';

/** Code of the user's: a path from the config's folder if it begins with a dot. */
export const codeFile = () =>
  z
    .string()
    .regex(/\.[cm]?[jt]s$/)
    .meta({ expected: 'a .ts or .js file beside or below this config, such as "./my-loss.ts"' });

/** A file of the user's with code in it: its absolute path, and the SHA-256 it had when the config was read. */
export const CodeRef = z.strictObject({
  path: z.string().min(1),
  /** Hex; null until the file was read. What the file imports itself is not covered. */
  sha256: z.string().nullable(),
});
export type CodeRef = z.infer<typeof CodeRef>;

/** As it was written, until it is read. */
export const codeRef = (file = ''): CodeRef => ({ path: file, sha256: null });
