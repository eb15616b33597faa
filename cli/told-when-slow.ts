import { printAside } from './print.ts';
/** When one who waits at a terminal begins to wonder. */
const slowMs = 5_000;

/** Loads an environment; one that takes long is named on stderr, so that nobody waits for they know not what. */
export async function toldWhenSlow<T>(environment: string, load: () => Promise<T>): Promise<T> {
  const timer = setTimeout(() => printAside(`still loading the environment ${environment} …`), slowMs);
  try {
    return await load();
  } finally {
    clearTimeout(timer);
  }
}
