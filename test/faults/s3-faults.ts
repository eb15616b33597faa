/** Rows in which the S3 server of a run is in trouble while all processes live: nothing may be lost. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Fate, SeenRequest } from '../backends/misbehaving-proxy.ts';
import type { Column } from './columns.ts';
import type { Row, Rows, Struck } from './row.ts';

const troubleMs = 5_000;
const lookMs = 100;

/** Longer than a request is tried again (`s3Limits.patienceMs`): activities fail, and are tried again. */
const outageMs = 30_000;
const longOutages: readonly Column[] = ['generate', 'commit'];

export const inTrouble = (strike: Row['strike']): Row => ({
  stage: 's3',
  action: 'hold',
  strike,
  losesNothing: true,
  limitMs: 300_000,
});

export const s3Faults = {
  'S3 down (generate, commit: 30 s; else 5 s)': inTrouble(down),
  'S3 answers 500': inTrouble((struck) => trouble(struck, () => ({ status: 500, code: 'InternalError' }))),
  'S3 answers SlowDown': inTrouble((struck) => trouble(struck, () => ({ status: 503, code: 'SlowDown' }))),
  'S3 slow': inTrouble((struck) => trouble(struck, () => ({ delayMs: 700 }))),
  'S3 cut mid-upload': inTrouble((struck) => trouble(struck, cutFirstUploads())),
} satisfies Rows;

/** Connections are refused: nothing reaches the server, and the logs of the workers say what they met. */
async function down({ stage, run, column, release, harmEnds }: Struck): Promise<void> {
  const { proxy } = stage.surroundings.s3!;
  const { logFolder } = stage.stack;
  const logsBefore = logsOf(logFolder).length;
  const isLong = longOutages.includes(column);
  const met = isLong
    ? new RegExp(`ECONNREFUSED 127.0.0.1:${proxy.port}`)
    : /is tried again: .*(ECONNREFUSED|ECONNRESET|hang up)/;
  await proxy.refuse();
  const keys = await run.store.list('');
  release();
  await lasting(isLong ? outageMs : troubleMs, () => met.test(logsOf(logFolder).slice(logsBefore)));
  assert.deepEqual(await run.store.list(''), keys, 'nothing reached the server');
  await proxy.accept();
  harmEnds();
}

/** Treats each request to the server in some way for a while. */
export async function trouble(
  { stage, release, harmEnds }: Struck,
  fateOf: (request: SeenRequest) => Fate,
): Promise<void> {
  const { proxy } = stage.surroundings.s3!;
  const before = proxy.spoiled;
  proxy.decide = fateOf;
  release();
  await lasting(troubleMs, () => proxy.spoiled > before);
  proxy.decide = () => 'pass';
  harmEnds();
}

/** So long, and until somebody has met it: on a busy machine that takes its time. */
async function lasting(ms: number, isMet: () => boolean): Promise<void> {
  const startedAt = performance.now();
  while (performance.now() - startedAt < ms || !isMet()) await delay(lookMs);
}

/** The first upload of every object is cut in the middle of its body: rollouts, batches, plans, weights, commits, logs alike. */
function cutFirstUploads(): (request: SeenRequest) => Fate {
  const cut = new Set<string>();
  return ({ operation, url }) => {
    const isUpload = operation === 'PutObject' || operation === 'UploadPart';
    if (!isUpload || cut.has(url)) return 'pass';
    cut.add(url);
    return 'cut upload';
  };
}

function logsOf(folder: string): string {
  return readdirSync(folder)
    .map((file) => readFileSync(path.join(folder, file), 'utf8'))
    .join('');
}
