import path from 'node:path';

/** Path relative to the current folder, for commands that are printed. */
export function fromHere(file: string): string {
  return path.relative(process.cwd(), path.resolve(file));
}
