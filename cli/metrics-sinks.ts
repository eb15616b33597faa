import { existsSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { sinkStatesIn } from '../runs/sink-states.ts';
import { layout } from '../runs/layout.ts';
import { rootMessage } from './root-message.ts';
import { readRegular } from '../engine/regular-file.ts';
import type { StatusReport } from './describe-status.ts';

type Sinks = Pick<StatusReport, 'sinks' | 'sinksError' | 'notices' | 'damagedNotices' | 'webhook' | 'cost' | 'curves'>;

/** Of a folder read as a plain file: opening stores takes longer than all else here. */
export async function sinksOf(run: string, store = 'file:outputs'): Promise<Sinks> {
  if (store.startsWith('s3:')) return sinksInBucket(run, store);
  const folder = store.startsWith('file:///') ? fileURLToPath(store) : store.replace(/^file:/, '');
  const file = path.resolve(folder, run, layout.sinks());
  try {
    const hasNotices = existsSync(path.resolve(folder, run, layout.notices()));
    const noticed = hasNotices
      ? await noticesIn(`${pathToFileURL(path.resolve(folder)).href}/`, run)
      : { notices: [], damagedNotices: [], webhook: null };
    const sinks = existsSync(file)
      ? sinkStatesIn(await readRegular(file, undefined, { within: [path.resolve(folder, run)] }), file)
      : {};
    const hasMetrics = existsSync(path.resolve(folder, run, layout.metrics()));
    const measured = hasMetrics ? await measuredIn(`${pathToFileURL(path.resolve(folder)).href}/`, run) : notMeasured;
    return { sinks, sinksError: null, ...measured, ...noticed };
  } catch (error) {
    return nothingTold(rootMessage(error)); // it is made again by whoever feeds them
  }
}

function nothingTold(sinksError: string): Sinks {
  return { sinks: {}, sinksError, notices: [], damagedNotices: [], webhook: null, ...notMeasured };
}

const notMeasured = { cost: null, curves: null };

async function noticesIn(
  uri: string,
  run: string,
): Promise<Pick<StatusReport, 'notices' | 'damagedNotices' | 'webhook'>> {
  const [{ openRunStore }, { Notices, webhookFailure }] = await Promise.all([
    import('../backends/store/index.ts'),
    import('../runs/notices.ts'),
  ]);
  const store = openRunStore(uri, run);
  const kept = new Notices(store);
  const [notices, webhook] = await Promise.all([kept.all(), webhookFailure(store)]);
  return { notices, damagedNotices: kept.damaged, webhook };
}

/** Of a run whose records are damaged nothing is told, and all else of it is. */
async function measuredIn(store: string, name: string): Promise<Pick<StatusReport, 'cost' | 'curves'>> {
  const [{ costOfRun }, { curvesOf }, { currentLineage }, { orIfDamaged }] = await Promise.all([
    import('../runs/cost.ts'),
    import('../runs/curves.ts'),
    import('../runs/run-access.ts'),
    import('../backends/store/objects.ts'),
  ]);
  const place = { store, name };
  return {
    cost: await orIfDamaged(
      () => costOfRun(place),
      () => null,
    ),
    curves: await orIfDamaged<StatusReport['curves']>(
      async () => curvesOf({ ...place, lineage: await currentLineage(place) }, Infinity),
      () => null,
    ),
  };
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
  const reading = Promise.all([readSinkStates(store), noticesIn(uri, run), measuredIn(uri, run)]).then(
    ([sinks, noticed, measured]): Sinks => ({ sinks, sinksError: null, ...measured, ...noticed }),
    (error: unknown): Sinks => nothingTold(rootMessage(error)),
  );
  const late = delay(bucketPatienceMs, undefined, { signal: patience.signal }).then((): Sinks =>
    nothingTold(`${store.uri} has not answered within ${bucketPatienceMs / 1000} s`),
  );
  late.catch(() => undefined); // it answered sooner
  try {
    return await Promise.race([reading, late]);
  } finally {
    patience.abort();
  }
}
