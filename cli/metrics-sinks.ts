import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { sinkStatesIn } from '../runs/sink-states.ts';
import { layout } from '../runs/layout.ts';
import { rootMessage } from './root-message.ts';
import { readRegular } from '../engine/regular-file.ts';
import type { StatusReport } from './describe-status.ts';

type Sinks = Pick<StatusReport, 'sinks' | 'sinksError'>;

/** Of a folder read as a plain file: opening stores takes longer than all else here. */
export async function sinksOf(run: string, store = 'file:outputs'): Promise<Sinks> {
  if (!store.startsWith('file:')) return sinksInBucket(run, store);
  const folder = store.startsWith('file:///') ? fileURLToPath(store) : store.slice('file:'.length);
  const file = path.resolve(folder, run, layout.sinks());
  try {
    return { sinks: sinkStatesIn(await readRegular(file), file), sinksError: null };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { sinks: {}, sinksError: null };
    return { sinks: {}, sinksError: rootMessage(error) }; // it is made again by whoever feeds them
  }
}

/** What is asked beside the run itself must not keep anybody from its answer. */
const bucketPatienceMs = 3_000;

async function sinksInBucket(run: string, uri: string): Promise<Sinks> {
  const [{ openRunStore }, { readSinkStates }] = await Promise.all([
    import('../backends/store/index.ts'),
    import('../runs/run-sinks.ts'),
  ]);
  const store = openRunStore(uri, run);
  const patience = new AbortController();
  const reading = readSinkStates(store).then(
    (sinks): Sinks => ({ sinks, sinksError: null }),
    (error: unknown): Sinks => ({ sinks: {}, sinksError: rootMessage(error) }),
  );
  const late = delay(bucketPatienceMs, undefined, { signal: patience.signal }).then((): Sinks => ({
    sinks: {},
    sinksError: `${store.uri} has not answered within ${bucketPatienceMs / 1000} s`,
  }));
  late.catch(() => undefined); // it answered sooner
  try {
    return await Promise.race([reading, late]);
  } finally {
    patience.abort();
  }
}
