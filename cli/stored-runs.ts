import { committedRun, type CommittedRun } from '../runs/committed-run.ts';
import { type Curves, curvesOf } from '../runs/curves.ts';
import { readRunRecord, specAskedSince, storedSpec } from '../runs/stored-spec.ts';
import type { SpecSource } from '../runs/spec-source.ts';
import { currentLineage, readHead, type RunPlace, storeOf } from '../runs/run-access.ts';
import { readMetrics } from '../runs/metrics.ts';
import { resolveStoreUri } from '../backends/store/index.ts';
import { listRunNames } from '../runs/list-runs.ts';
import { RatchetError } from '../core/errors.ts';
import { layout } from '../runs/layout.ts';
import { describeUnfinished, refuseUnfinishedFork, unfinishedFork } from '../runs/unfinished-fork.ts';
import { describeSolved, solvedShare } from '../core/rl/left-to-learn.ts';
import type { StepCommit } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import type { RunEvent } from '../workflows/control/messages.ts';
import { fromHere } from './from-here.ts';
import { findRunFolder, usualStore } from './run-place.ts';
import { stepRecords } from './run-records.ts';
import { trainAgain, type TypedCommand, withMaxSteps, withoutResume } from './typed-command.ts';

/** What a run's folder tells of it when no Temporal server is there to be asked. */
export interface StoredRun extends CommittedRun, Curves {
  readonly model: string;
  readonly maxSteps: number;
  /** `not running`: it has steps to make; a server may have it open, which nobody can tell from here. */
  readonly state: StoredState;
  readonly store: string;
  /** Of the newest version, relative to the run's folder. */
  readonly weights: string;
  readonly policyDigest: string;
  /** Where more steps would teach little: the share of groups that everybody solves. */
  readonly solved: number | null;
  /** What to type for the run to go on; null where it is not written down from which file it was read. */
  readonly goOn: string | null;
}

type Stand = Pick<StoredRun, 'maxSteps' | 'state'>;

type StoredState = 'finished' | 'stopped' | 'not running';

/** Null before the run's first commit; refuses a fork that was cut off before it, which does not get there by itself. */
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

/** What to type for a run to go on from where it stands; null where no folder here says from which file it was read. */
export async function goOnFromHere(run: string, store: string | undefined): Promise<string | null> {
  const place = await findStoredPlace(run, store);
  if (place === null) return null;
  try {
    const { source } = await storedSpec(place);
    return source && trainAgain(commandOf(run, source));
  } catch (error) {
    if (error instanceof RatchetError) return null; // a damaged record keeps nobody from watching the run
    throw error;
  }
}

/** What to type for a run to go on from where it stands: one that has finished goes on with more steps. */
export function goOnWith(command: TypedCommand, { maxSteps, state }: Stand): string {
  return trainAgain(state === 'finished' && maxSteps > 0 ? withMaxSteps(command, 2 * maxSteps) : command);
}

/** Where a run stands by its newest commit; null before its first. */
export async function standOfRun(place: RunPlace): Promise<Stand | null> {
  const head = await readHead({ ...place, lineage: await currentLineage(place) });
  return head && standOf(head.commit, (await storedSpec(place)).spec);
}

/** As it was typed, without the step that it was to go on from. */
function commandOf(run: string, { config, over = [], dialect, overrides }: SpecSource): TypedCommand {
  return withoutResume({
    file: fromHere(config),
    over: over.map((layer) => ({ ...layer, file: fromHere(layer.file) })),
    ...(dialect === undefined ? {} : { dialect }),
    name: run,
    overrides,
  });
}

/** What to type next, if that makes sense. */
export function describeGoOn({ state, solved, goOn }: Pick<StoredRun, 'state' | 'solved' | 'goOn'>): string[] {
  if (state === 'finished' && solved !== null) return [describeSolved(solved)];
  if (goOn === null) return [];
  return [`${state === 'finished' ? 'more steps   ' : 'continue with'} ${goOn}`];
}

function standOf({ step, state }: StepCommit, spec: RunSpec): Stand {
  const maxSteps = state.overrides.maxSteps ?? spec.maxSteps;
  if (step >= maxSteps) return { maxSteps, state: 'finished' };
  return { maxSteps, state: step >= (state.overrides.stopAfter ?? Infinity) ? 'stopped' : 'not running' };
}

/** What the run is to make now, and where it stands with that: one that has finished may have been started again for more steps. */
async function askedOf(
  place: RunPlace,
  head: StepCommit,
): Promise<{ readonly spec: RunSpec; readonly source: SpecSource | null; readonly stand: Stand }> {
  const committed = await storedSpec(place);
  const stand = standOf(head, committed.spec);
  const since = stand.state === 'finished' ? await specAskedSince(place, head) : null;
  if (since === null || since.spec.maxSteps <= head.step) return { ...committed, stand };
  return { ...since, stand: { maxSteps: since.spec.maxSteps, state: 'not running' } };
}

/** One line of a list. */
export interface StoredStanding {
  readonly run: string;
  readonly state: StoredState | 'unfinished fork' | 'cannot be read';
  readonly step: number | null;
  readonly maxSteps: number | null;
  readonly reward: number | null;
  /** ISO time of its newest commit; null before the first. */
  readonly committedAt: string | null;
  readonly note: string | null;
}

/** The runs whose folders lie in a store, the newest commit first; of a bucket none, as its runs cannot be listed cheaply. */
export async function storedStandings(storeUri: string | undefined): Promise<StoredStanding[]> {
  const store = resolveStoreUri(storeUri ?? usualStore, process.cwd());
  const standings = await Promise.all((await listRunNames(store)).map((name) => standingOf({ name, store })));
  return standings.sort((a, b) => (b.committedAt ?? '').localeCompare(a.committedAt ?? ''));
}

/** A run that is damaged must not hide the others. */
async function standingOf(place: RunPlace): Promise<StoredStanding> {
  const nothing = { run: place.name, step: null, maxSteps: null, reward: null, committedAt: null, note: null };
  try {
    await readRunRecord(place);
    const head = await readHead({ ...place, lineage: await currentLineage(place) });
    if (head === null) {
      const origin = await unfinishedFork(place);
      const note = origin === null ? 'nothing is committed yet' : describeUnfinished(place.name, origin);
      return { ...nothing, state: origin === null ? 'not running' : 'unfinished fork', note };
    }
    const { step, metrics, committedAt } = head.commit;
    const { stand } = await askedOf(place, head.commit);
    return { ...nothing, step, reward: metrics['train/reward'] ?? null, committedAt, ...stand };
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    return { ...nothing, state: 'cannot be read', note: error.message };
  }
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

/** What happened, as far as commits, evaluations and checkpoints tell: the rest is known to the Temporal server alone. */
export async function storedEvents(place: RunPlace): Promise<RunEvent[]> {
  const lineage = await currentLineage(place);
  const [records, { evals }, checkpoints, times] = await Promise.all([
    stepRecords(place),
    curvesOf({ ...place, lineage }, Infinity),
    storeOf(place).list(layout.allCheckpoints(lineage)),
    timesOf(place),
  ]);
  const sealed = new Set(checkpoints.filter((key) => key.endsWith('/manifest.json')));
  const events = records.flatMap(({ step, lineage: of, metrics }): Omit<RunEvent, 'sequence'>[] => {
    const time = times.get(`${of}/${step}`) ?? '';
    const figures = { reward: metrics['train/reward'], loss: metrics['train/loss'], step_s: metrics['time/step'] };
    const values = Object.fromEntries(Object.entries(figures).filter((one): one is [string, number] => one[1] != null));
    const said = [
      `step ${step}`,
      ...(values['reward'] === undefined ? [] : [`reward ${values['reward'].toFixed(3)}`]),
      ...(values['loss'] === undefined ? [] : [`loss ${values['loss'].toFixed(3)}`]),
      ...(values['step_s'] === undefined ? [] : [`step ${values['step_s'].toFixed(2)}s`]),
    ];
    const trained: Omit<RunEvent, 'sequence'>[] =
      'train/reward' in metrics ? [{ time, kind: 'step', step, text: said.join('  '), values }] : [];
    const evaluated = evals
      .filter((one) => one.step === step)
      .map(({ environment, reward, greedyReward }): Omit<RunEvent, 'sequence'> => ({
        time,
        kind: 'eval',
        step,
        text: `eval v${step} ${environment}: reward ${reward?.toFixed(3) ?? '–'}${greedyReward === null ? '' : `  greedy ${greedyReward.toFixed(3)}`}`,
        values: { environment, ...(reward === null ? {} : { reward }) },
      }));
    const kept: Omit<RunEvent, 'sequence'>[] = sealed.has(`${layout.checkpoint(lineage, step)}manifest.json`)
      ? [{ time, kind: 'checkpoint', step, text: `checkpoint ${step} sealed`, values: {} }]
      : [];
    return [...trained, ...evaluated, ...kept];
  });
  return events.map((event, i) => ({ sequence: i + 1, ...event }));
}

/** When each step was committed, by `lineage/step`. */
async function timesOf(place: RunPlace): Promise<Map<string, string>> {
  const rows = await readMetrics(storeOf(place));
  return new Map(
    rows.flatMap(({ lineage, step, time }) =>
      typeof time === 'string' ? [[`${lineage}/${step}`, time] as const] : [],
    ),
  );
}
