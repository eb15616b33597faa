import { existsSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { sinkStatesIn } from '../../runs/metrics/sink-states.ts';
import { layout } from '../../runs/layout.ts';
import { rootMessage } from '../../workers/temporal/root-message.ts';
import { readRegular } from '../../host/regular-file.ts';
import type { StatusReport } from '../describe/status.ts';

type Sinks = Pick<
  StatusReport,
  'sinks' | 'sinksError' | 'notices' | 'damagedNotices' | 'webhook' | 'cost' | 'curves' | 'budget'
>;

/** Reads a folder's records as plain files: opening stores would take longer than everything else here. */
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
    return nothingTold(rootMessage(error)); // the process that feeds the sinks writes it again
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
    import('../../store/index.ts'),
    import('../../runs/metrics/notices.ts'),
  ]);
  const store = openRunStore(uri, run);
  const kept = new Notices(store);
  const [notices, webhook] = await Promise.all([kept.all(), webhookFailure(store)]);
  return { notices, damagedNotices: kept.damaged, webhook };
}

/** Empty when the run's records are damaged; the rest of the status is shown. */
async function measuredIn(store: string, name: string): Promise<Pick<StatusReport, 'cost' | 'curves' | 'budget'>> {
  const [{ costOfRun }, { curvesOf }, { currentLineage }, { orIfDamaged }, { budgetLines }, { newestSpec }] =
    await Promise.all([
      import('../../runs/metrics/cost.ts'),
      import('../../runs/metrics/curves.ts'),
      import('../../runs/run-access.ts'),
      import('../../store/objects.ts'),
      import('../../runs/budgets/budget-lines.ts'),
      import('../../runs/forms/stored-spec.ts'),
    ]);
  const place = { store, name };
  return {
    cost: await orIfDamaged(
      () => costOfRun(place),
      () => null,
    ),
    budget: await orIfDamaged<readonly string[]>(
      async () => budgetLines(place, await newestSpec(place)),
      () => [],
    ),
    curves: await orIfDamaged<StatusReport['curves']>(
      async () => curvesOf({ ...place, lineage: await currentLineage(place) }, Infinity),
      () => null,
    ),
  };
}

/** Limit for extra requests, which must not delay the run's own answer. */
const bucketPatienceMs = 3_000;

async function sinksInBucket(run: string, uri: string): Promise<Sinks> {
  const [{ openRunStore }, { readSinkStates }] = await Promise.all([
    import('../../store/index.ts'),
    import('../../runs/metrics/run-sinks.ts'),
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
  late.catch(() => undefined); // a failure after the deadline is ignored
  try {
    return await Promise.race([reading, late]);
  } finally {
    patience.abort();
  }
}
