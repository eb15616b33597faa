import { RatchetError } from '../../../core/errors.ts';
import { SecretSpellings } from '../../../config/toml/secret-spellings.ts';
import { collectedBytesMax } from '../../../core/limits.ts';
import type { Sandbox } from '../../sandboxes/types.ts';

/**
 * Files of a sandbox as text, by path; those that are missing or too large are left out, which the score can see. Bytes
 * that are no UTF-8 are replaced, and so are `secrets`: the files are stored, and a judge reads them.
 */
export async function collectFiles(
  sandbox: Sandbox,
  paths: readonly string[],
  secrets: readonly string[],
): Promise<Record<string, string>> {
  const spellings = new SecretSpellings(secrets);
  const files: Record<string, string> = {};
  let bytesLeft = collectedBytesMax;
  for (const path of paths) {
    if (bytesLeft <= 0) break;
    const bytes = await sandbox.read(path, bytesLeft).catch((error: unknown) => {
      if (error instanceof RatchetError && error.code === 'SandboxRefused') return null;
      throw error;
    });
    if (bytes === null) continue;
    files[path] = spellings.replacedBy('[secret]', bytes.toString('utf8'));
    bytesLeft -= bytes.byteLength;
  }
  return files;
}
