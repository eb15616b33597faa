import { statfs } from 'node:fs/promises';

/** Users leave when there is no output for longer than this. */
const sayEveryMs = 10_000;

/** Prints the current work and its duration at an interval, until `end`. */
export function sayEvery(
  log: (line: string) => void,
  what: () => string,
  everyMs: number = sayEveryMs,
): { elapsed: () => string; end: () => void } {
  const startedAtMs = Date.now();
  const elapsed = () => minutes(Date.now() - startedAtMs);
  const timer = setInterval(() => log(`${what()}; ${elapsed()} elapsed …`), everyMs);
  timer.unref();
  return { elapsed, end: () => clearInterval(timer) };
}

/** 75 s → `1:15` */
function minutes(durationMs: number): string {
  const seconds = Math.floor(durationMs / 1000);
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`;
}

/** Checked beforehand: a disk that fills up half-way leaves a mess. */
export async function requireFreeSpace(folder: string, bytes: number): Promise<void> {
  const { bavail, bsize } = await statfs(folder);
  const free = bavail * bsize;
  if (free >= bytes) return;
  const gigabytes = (count: number) => (count / 1e9).toFixed(1);
  throw new Error(
    `${folder} has ${gigabytes(free)} GB free, ${gigabytes(bytes)} GB are needed for a while; ` +
      'make room, or set RATCHET_CACHE to a folder on another disk',
  );
}
