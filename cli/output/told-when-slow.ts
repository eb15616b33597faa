import { printAside } from './print.ts';
/** Time after which a waiting user needs an explanation. */
const slowMs = 5_000;

/** Loads an environment; a slow one is named on stderr, so that the user knows the reason for the wait. */
export async function toldWhenSlow<T>(environment: string, load: () => Promise<T>): Promise<T> {
  const timer = setTimeout(() => printAside(`still loading the environment ${environment} …`), slowMs);
  try {
    return await load();
  } finally {
    clearTimeout(timer);
  }
}
