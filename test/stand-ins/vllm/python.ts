import { chmodSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

/** A program that is to the supervisor what a Python with vLLM is; returns its path. `more`: arguments of the stand-in's own. */
export function writeStandInPython(folder: string, more: readonly string[] = []): string {
  const file = path.join(folder, 'python');
  const main = fileURLToPath(new URL('./main.ts', import.meta.url));
  const node = `"${process.execPath}" --import "${import.meta.resolve('tsx')}" "${main}"`;
  writeFileSync(
    file,
    `#!/bin/sh\nif [ "$1" = -c ]; then echo True; else shift 2; exec ${[node, ...more.map((one) => `"${one}"`)].join(' ')} "$@"; fi\n`,
  );
  chmodSync(file, 0o755);
  return file;
}
