import { committedRun, type CommittedRun } from '../../runs/lineages/committed-run.ts';
import { type Curves, curvesOf } from '../../runs/metrics/curves.ts';
import { storedSpec } from '../../runs/forms/stored-spec.ts';
import type { SpecSource } from '../../runs/forms/spec-source.ts';
import { currentLineage, readHead, type RunPlace, storeOf } from '../../runs/run-access.ts';
import { resolveStoreUri } from '../../store/index.ts';
import {
  askedOf,
  type Stand,
  standingsIn,
  type StoredStanding,
  type StoredState,
} from '../../runs/lineages/standing.ts';
import { RatchetError } from '../../core/errors.ts';
import { refuseUnfinishedFork } from '../../runs/lineages/unfinished-fork.ts';
import { describeSolved, solvedShare } from '../../core/rl/advice/left-to-learn.ts';
import { fromHere } from '../output/from-here.ts';
import { stepRecords } from '../../runs/metrics/step-records.ts';
import { findRunFolder, defaultStore } from './run-place.ts';
import { trainAgain, type TypedCommand, withMaxSteps, withoutResume } from '../typed/typed-command.ts';

/** Facts about a run from its folder, for use without a Temporal server. */
export interface StoredRun extends CommittedRun, Curves {
  readonly model: string;
  readonly maxSteps: number;
  readonly state: StoredState;
  readonly store: string;
  /** Path of the newest version, relative to the run's folder. */
  readonly weights: string;
  readonly policyDigest: string;
  /** Share of groups in which every rollout is solved, when more steps would improve little; else null. */
  readonly solved: number | null;
  /** Command that continues the run; null when the run file it was read from is not recorded. */
  readonly goOn: string | null;
}

/**
 * null before the run's first commit; throws for a fork that was interrupted before it, which does not get there by
 * itself.
 */
async function storedRun(place: RunPlace): Promise<StoredRun | null> {
  const committed = await committedRun(place);
  const lineage = await currentLineage(place);
  const head = await readHead({ ...place, lineage });
  if (committed === null || head === null) {
    await refuseUnfinishedFork(place);
    return null;
  }
  const [{ spec, source, stand }, curves, steps] = await Promise.all([
    askedOf(place, head.commit),
    curvesOf({ ...place, lineage }, committed.step),
    stepRecords(place),
  ]);
  return {
    ...committed,
    ...curves,
    model: spec.model,
    ...stand,
    store: storeOf(place).uri,
    weights: head.commit.policy.weights,
    policyDigest: head.commit.policy.digest,
    solved: solvedShare(steps.map(({ metrics }) => metrics)),
    goOn: source && goOnWith(commandOf(place.name, source), stand),
  };
}

/** Command that continues a run from its position; null when no folder here records its run file. */
export async function goOnFromHere(run: string, store: string | undefined): Promise<string | null> {
  const place = await findStoredPlace(run, store);
  if (place === null) return null;
  try {
    const { source } = await storedSpec(place);
    return source && trainAgain(commandOf(run, source));
  } catch (error) {
    if (error instanceof RatchetError) return null; // a damaged record does not stop anyone from watching the run
    throw error;
  }
}

/** Command that continues a run from its position; a finished run gets more steps. */
export function goOnWith(command: TypedCommand, { maxSteps, state }: Stand): string {
  return trainAgain(state === 'finished' && maxSteps > 0 ? withMaxSteps(command, 2 * maxSteps) : command);
}

/** The original command, without the step to resume from. */
function commandOf(run: string, { config, over = [], dialect, overrides }: SpecSource): TypedCommand {
  return withoutResume({
    file: fromHere(config),
    over: over.map((layer) => ({ ...layer, file: fromHere(layer.file) })),
    ...(dialect === undefined ? {} : { dialect }),
    name: run,
    overrides,
  });
}

/** The suggested next command, if any. */
export function describeGoOn({ state, solved, goOn }: Pick<StoredRun, 'state' | 'solved' | 'goOn'>): string[] {
  if (state === 'finished' && solved !== null) return [describeSolved(solved)];
  if (goOn === null) return [];
  return [`${state === 'finished' ? 'more steps   ' : 'continue with'} ${goOn}`];
}

/** Standings of the runs below `storeUri` (default: ./outputs). */
export async function storedStandings(storeUri: string | undefined): Promise<StoredStanding[]> {
  return standingsIn(resolveStoreUri(storeUri ?? defaultStore, process.cwd()));
}

/** Null when there is no such run below `store` (or ./outputs). */
export async function findStoredRun(run: string, store: string | undefined): Promise<StoredRun | null> {
  const place = await findStoredPlace(run, store);
  return place && storedRun(place);
}

export async function findStoredPlace(run: string, store: string | undefined): Promise<RunPlace | null> {
  try {
    return await findRunFolder(run, store, { asksTemporal: false });
  } catch (error) {
    if (error instanceof RatchetError && error.code === 'RunNotFound') return null;
    throw error;
  }
}
