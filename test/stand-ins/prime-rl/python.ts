import { chmodSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

/** A program that is to Ratchet what a Python with prime-rl is; returns its path. */
export function writeStandInPrimeRl(folder: string, { isOlder = false } = {}): string {
  const file = path.join(folder, isOlder ? 'python-0.4' : 'python');
  const here = (name: string): string => fileURLToPath(new URL(name, import.meta.url));
  const rank = [
    process.execPath,
    '--import',
    import.meta.resolve('tsx'),
    here(isOlder ? './older-rank.ts' : './rank.ts'),
  ];
  const words = [process.execPath, here('./program.mjs'), ...rank, '--'].map((word) => `"${word}"`);
  writeFileSync(file, `#!/bin/sh\nexec ${words.join(' ')} "$@"\n`);
  chmodSync(file, 0o755);
  return file;
}
