import { z } from 'zod';

/** A path of the user's code, relative to the config's folder if it begins with a dot. */
export const codeFile = () =>
  z
    .string()
    .regex(/\.[cm]?[jt]s$/)
    .meta({ expected: 'a .ts or .js file beside or below this config, such as "./my-loss.ts"' });

/** A file with the user's code: its absolute path, and its SHA-256 when the config was read. */
export const CodeRef = z.strictObject({
  path: z.string().min(1),
  /** Hex; null until the file was read. Imports of the file are not covered. */
  sha256: z.string().nullable(),
});
export type CodeRef = z.infer<typeof CodeRef>;

/** A reference as written, before the file is read. */
/** The user's code behind a trainer or an inference; null = it is built in. */
export function codeOf(spec: { readonly kind: string; readonly import?: CodeRef }): CodeRef | null {
  return spec.import ?? null;
}

export const codeRef = (file = ''): CodeRef => ({ path: file, sha256: null });
