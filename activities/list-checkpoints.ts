import { RatchetError } from '../core/errors.ts';
import { layout, stepOf } from '../core/layout.ts';
import { firstLineage } from '../core/names.ts';
import { readManifest, sealedFor, sealedSteps } from './checkpoints.ts';
import { reachableSteps } from './lineages.ts';
import {
  begunLineages,
  committedSteps,
  currentLineage,
  type LineagePlace,
  type RunPlace,
  storeOf,
} from './run-access.ts';

export interface CheckpointReport {
  readonly step: number;
  readonly lineage: string;
  /** Compared with sha256, byte by byte. */
  readonly state: 'sealed' | 'damaged' | 'unsealed';
  /** What is wrong with it. */
  readonly problem: string | null;
  /** Weights and the optimizer's state. */
  readonly bytes: number;
  /** Of the weights. */
  readonly digest: string;
  /** `latest` is what a lost trainer is restored from first. */
  readonly usableFor: readonly ('latest' | 'rewind' | 'fork')[];
}

export interface CheckpointList {
  readonly current: string;
  /** The last committed step of the current lineage; null when nothing is committed. */
  readonly head: number | null;
  readonly checkpoints: readonly CheckpointReport[];
  /** Steps that a rewind can go on from: checkpoints, and what stored batches lead to from one. */
  readonly reachable: readonly number[];
}

/** Every checkpoint of a run, read and compared with its sha256. */
export async function listCheckpoints(run: RunPlace): Promise<CheckpointList> {
  const lineage = await currentLineage(run);
  const here = { ...run, lineage };
  const usable = new Set((await sealedFor(here)).map((sealed) => `${sealed.lineage}/${sealed.step}`));
  const reports: CheckpointReport[] = [];
  for (const name of [firstLineage, ...(await begunLineages(run)).map((begun) => begun.lineage)]) {
    const place = { ...run, lineage: name };
    for (const step of await begunCheckpoints(place)) {
      const report = await inspect(place, step);
      const isWhole = report.state === 'sealed';
      const isUsable = isWhole && usable.has(`${name}/${step}`);
      reports.push({ ...report, usableFor: isUsable ? ['rewind', 'fork'] : isWhole ? ['fork'] : [] });
    }
  }
  const latest = reports
    .filter(({ usableFor }) => usableFor.includes('rewind'))
    .sort((a, b) => a.step - b.step)
    .at(-1);
  return {
    current: lineage,
    head: (await committedSteps(here)).at(-1) ?? null,
    checkpoints: reports.map((report) =>
      report === latest ? { ...report, usableFor: ['latest', ...report.usableFor] } : report,
    ),
    reachable: (await reachableSteps(here)).map(({ step }) => step),
  };
}

/** Steps of which there is anything of a checkpoint, ascending. */
async function begunCheckpoints(run: LineagePlace): Promise<number[]> {
  const keys = await storeOf(run).list(layout.allCheckpoints(run.lineage));
  const ours = keys.filter((key) => !key.startsWith(layout.allWarmUps()));
  return [...new Set(ours.map(stepOf).filter((step) => step !== null))].sort((a, b) => a - b);
}

async function inspect(run: LineagePlace, step: number): Promise<CheckpointReport> {
  const store = storeOf(run);
  const report = { step, lineage: run.lineage, bytes: 0, digest: '', usableFor: [] };
  const isSealed = (await sealedSteps(store, run.lineage)).includes(step);
  if (!isSealed) return { ...report, state: 'unsealed', problem: 'its manifest was not written (yet)' };
  const read = await readManifest(run, step).catch(problemOf);
  if (typeof read === 'string') return { ...report, state: 'damaged', problem: read };
  const objects = [read.policy.file, ...(read.optimizer ? [read.optimizer] : [])];
  const described = {
    ...report,
    bytes: objects.reduce((sum, { bytes }) => sum + bytes, 0),
    digest: read.policy.digest,
  };
  for (const object of objects) {
    const problem = await store.verify(object).then(() => null, problemOf);
    if (problem !== null) return { ...described, state: 'damaged', problem };
  }
  return { ...described, state: 'sealed', problem: null };
}

function problemOf(error: unknown): string {
  if (error instanceof RatchetError && error.code === 'CheckpointDamaged') return error.message;
  throw error;
}
