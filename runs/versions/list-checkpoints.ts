import { isUnreadable } from '../../store/objects.ts';
import { layout, stepOf } from '../layout.ts';
import { firstLineage } from '../../core/names.ts';
import { type ReadAnew, verifyVersion, weightBytes } from '../../store/version-files.ts';
import { optimizerObjects, verifyOptimizer } from './optimizer-state.ts';
import { readManifest, sealedFor, sealedSteps } from './checkpoints.ts';
import { reachableSteps } from '../lineages/lineages.ts';
import {
  committedSteps,
  currentLineage,
  isLastStep,
  type LineagePlace,
  lineagesOf,
  requireCommit,
  type RunPlace,
  storeOf,
} from '../run-access.ts';

export interface CheckpointReport {
  readonly step: number;
  readonly lineage: string;
  /** `sealed`: all files compared with their sha256. */
  readonly state: 'sealed' | 'damaged' | 'unsealed';
  /** Reason of its state. */
  readonly problem: string | null;
  /** Weights and the optimizer's state. */
  readonly bytes: number;
  readonly digest: string;
  /** `latest`: a lost trainer is restored from it first. */
  readonly usableFor: readonly ('latest' | 'rewind' | 'fork')[];
}

export interface CheckpointList {
  readonly current: string;
  /** Last committed step of the current lineage; null without a commit. */
  readonly head: number | null;
  readonly checkpoints: readonly CheckpointReport[];
  /** Steps that a rewind can continue from: checkpoints, and steps that stored batches lead to from one. */
  readonly reachable: readonly number[];
}

/** Every checkpoint of a run, read and compared with its sha256. */
export async function listCheckpoints(run: RunPlace, anew: ReadAnew = new Map()): Promise<CheckpointList> {
  const lineage = await currentLineage(run);
  const here = { ...run, lineage };
  const usable = new Set((await sealedFor(here)).map((sealed) => `${sealed.lineage}/${sealed.step}`));
  const reports: CheckpointReport[] = [];
  for (const name of await lineagesOf(run)) {
    const place = { ...run, lineage: name };
    for (const step of await begunCheckpoints(place)) {
      const report = await inspect(place, step, anew);
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
    reachable: (await reachableSteps(here, { anew })).map(({ step }) => step),
  };
}

/** Steps of which there is anything of a checkpoint, ascending. */
async function begunCheckpoints(run: LineagePlace): Promise<number[]> {
  const keys = await storeOf(run).list(layout.allCheckpoints(run.lineage));
  const ours = keys.filter((key) => !key.startsWith(layout.allWarmUps()));
  const steps = [...ours.map(stepOf).filter((step) => step !== null), ...(await promisedCheckpoints(run))];
  return [...new Set(steps)].sort((a, b) => a - b);
}

/** Checkpoints that retention never removes, even if their objects are gone: the run's beginning, and the newest. */
async function promisedCheckpoints(run: LineagePlace): Promise<number[]> {
  const steps = await committedSteps(run);
  const [first] = steps;
  if (first === undefined) return [];
  const newest = await newestSnapshot(run, steps);
  return [...(run.lineage === firstLineage ? [first] : []), ...(newest === null ? [] : [newest])];
}

/** Newest commit of this lineage that stored its optimizer for a checkpoint. */
async function newestSnapshot(run: LineagePlace, steps: readonly number[]): Promise<number | null> {
  for (const step of steps.toReversed()) {
    const { optimizer, origin } = (await requireCommit(run, step)).commit;
    if (optimizer !== null && origin === undefined) return step;
  }
  return null;
}

/** Whether a checkpoint without a manifest must have had one: a later step began, or it is the run's last. */
async function wasSealed(run: LineagePlace, step: number, sealed: readonly number[]): Promise<boolean> {
  const steps = await committedSteps(run);
  if (!steps.includes(step)) return false; // left by an attempt that never committed
  const { commit } = await requireCommit(run, step);
  if (commit.optimizer === null && step !== steps[0]) return false;
  const isPast = (steps.at(-1) ?? 0) >= step + 2 || sealed.some((other) => other > step);
  return isPast || isLastStep(storeOf(run), commit);
}

async function inspect(run: LineagePlace, step: number, anew: ReadAnew): Promise<CheckpointReport> {
  const store = storeOf(run);
  const report = { step, lineage: run.lineage, bytes: 0, digest: '', usableFor: [] };
  const sealed = await sealedSteps(store, run.lineage);
  if (!sealed.includes(step)) {
    const isGone = await wasSealed(run, step, sealed).catch(problemOf);
    const manifest = `${layout.checkpoint(run.lineage, step)}manifest.json`;
    return isGone === false
      ? { ...report, state: 'unsealed', problem: 'its manifest was not written (yet)' }
      : { ...report, state: 'damaged', problem: isGone === true ? `${manifest} is missing` : isGone };
  }
  const read = await readManifest(run, step).catch(problemOf);
  if (typeof read === 'string') return { ...report, state: 'damaged', problem: read };
  const { policy, optimizer } = read;
  const objects = optimizer === null ? [] : await optimizerObjects(store, optimizer).catch(problemOf);
  if (typeof objects === 'string') return { ...report, state: 'damaged', problem: objects };
  const described = {
    ...report,
    bytes: objects.reduce((sum, { bytes }) => sum + bytes, await weightBytes(store, policy)),
    digest: policy.digest,
  };
  const problem = await verifyVersion(store, policy, { anew })
    .then(() => (optimizer ? verifyOptimizer(store, optimizer) : undefined))
    .then(() => null, problemOf);
  if (problem !== null) return { ...described, state: 'damaged', problem };
  return { ...described, state: 'sealed', problem: null };
}

function problemOf(error: unknown): string {
  if (isUnreadable(error)) return error.message;
  throw error;
}
