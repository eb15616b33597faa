import path from 'node:path';

/** As one would type it in this folder. */
export function fromHere(file: string): string {
  return path.relative(process.cwd(), path.resolve(file));
}
