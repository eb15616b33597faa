import koffi from 'koffi';

/**
 * A process exposes its initial environment to every other process of its user, for its whole life:
 * `/proc/PID/environ`, `ps e`. A child that runs environments would see its parent's keys there, even after they were
 * deleted. This overwrites the initial values of `names` and keeps them in `process.env`. It also tells Linux that only
 * root may inspect this process. Steps that are impossible here (no C library to call, another system) are skipped.
 */
export function hideSecrets(names: readonly string[], env: NodeJS.ProcessEnv = process.env): void {
  const c = library();
  if (c === null) return;
  if (process.platform === 'linux') c.prctl(setDumpable, 0, 0, 0, 0);
  for (const name of names) {
    const value = env[name];
    const place = value === undefined || value === '' ? null : c.getenv(name);
    if (value === undefined || place === null) continue;
    c.memset(place, blank, Buffer.byteLength(value));
    env[name] = value; // in newly allocated memory
  }
}

const setDumpable = 4;
const blank = '*'.charCodeAt(0);

interface CLibrary {
  prctl(option: number, ...rest: number[]): number;
  getenv(name: string): unknown;
  memset(place: unknown, byte: number, bytes: number): unknown;
}

let opened: CLibrary | null | undefined;

function library(): CLibrary | null {
  if (opened !== undefined) return opened;
  try {
    const c = koffi.load(null);
    opened = {
      prctl:
        process.platform === 'linux'
          ? (c.func('int prctl(int, unsigned long, unsigned long, unsigned long, unsigned long)') as CLibrary['prctl'])
          : () => -1,
      getenv: c.func('void *getenv(const char *)') as CLibrary['getenv'],
      memset: c.func('void *memset(void *, int, size_t)') as CLibrary['memset'],
    };
  } catch {
    opened = null;
  }
  return opened;
}
