import {
  describeRest,
  type Effectiveness,
  effectivenessOf,
  timeMetrics,
  type TimedCommit,
} from '../core/rl/effectiveness.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { firstLineage, shortModelName } from '../core/names.ts';
import {
  begunLineages,
  currentLineage,
  type FoundCommit,
  type RunPlace,
  storeOf,
  stretchesOf,
} from '../runs/run-access.ts';
import { askedOf } from '../runs/lineages/standing.ts';
import { readRunRecord } from '../runs/forms/stored-spec.ts';
import { showStoreUri } from '../store/index.ts';
import { branchInPlayText } from '../core/gepa/figures.ts';
import type { BranchFigures } from '../core/gepa/prompt-search.ts';
import type { BranchUnderWay, RunEvent, RunStatus } from '../workflows/control/messages.ts';
import type { LiveStatus, RunOverview, SeriesAnswer } from './answers.ts';
import type { MetricsTable } from './metrics-table.ts';
import { budgetLines } from '../runs/budgets/budget-lines.ts';
import { costIn, spentBy, spentNames } from './spent.ts';

export interface ToldByRun {
  readonly status: RunStatus;
  readonly events: readonly RunEvent[];
  readonly temporalUrl: string | null;
  /** How far its searches for better prompts are. */
  readonly branches?: BranchFigures;
}

/** The overview made from metrics, commits and the run's own answer. */
export type ToldOverview = Omit<RunOverview, 'index' | 'notices' | 'noticesOf' | 'damagedNotices'>;

/** Steps whose median is the pace. */
const stepsOfPace = 20;

/** The position and effectiveness that the commits show. */
export interface CommittedStand {
  readonly lineage: string;
  readonly head: FoundCommit | null;
  readonly effect: Effectiveness;
  /** Why there is no head that can be read. */
  readonly damage: string | null;
}

/** The run's position, what it waits for, and its pace. */
export async function overviewOf(
  place: RunPlace,
  table: MetricsTable,
  { lineage, head, effect, damage }: CommittedStand,
  told: ToldByRun | null,
): Promise<ToldOverview> {
  const { spec, stand } = head === null ? await unbegun(place) : await askedOf(place, head.commit);
  const rows = table.rowsOf(lineage);
  const paces = rows.slice(-stepsOfPace).flatMap((row) => table.value(row, timeMetrics.step) ?? []);
  const stepSeconds = paces.toSorted((a, b) => a - b)[Math.floor((paces.length - 1) / 2)] ?? null;
  const lastRow = rows.at(-1);
  const measured = damage === null || lastRow === undefined ? 0 : table.stepOf(lastRow);
  const step = told?.status.step ?? head?.commit.step ?? measured;
  const maxSteps = told?.status.maxSteps ?? stand.maxSteps;
  return {
    run: place.name,
    model: spec.model,
    modelName: shortModelName(spec.model),
    environments: spec.environments.map(({ name }) => name),
    state: told ? stateOf(told.status) : damage === null ? stand.state : 'damaged',
    damage,
    live: told && liveOf(told),
    maxSteps,
    step,
    lineage,
    committedAt: head?.commit.committedAt ?? null,
    store: showStoreUri(storeOf(place).uri),
    stepSeconds,
    etaSeconds: stepSeconds === null || step >= maxSteps ? null : (maxSteps - step) * stepSeconds,
    ettr: effect.ettr,
    rest: describeRest(effect),
    wallSeconds: effect.wallSeconds,
    pausedSeconds: effect.pausedSeconds,
    lost: effect.lost,
    cost: costIn(table, damage === null ? await rowsOnTheWay(place, table) : rows, spec.cost?.currency),
    budget: await budgetLines(place, spec),
    metrics: [...table.names, ...spentNames(table)],
    temporalUrl: told?.temporalUrl ?? null,
  };
}

async function unbegun(
  place: RunPlace,
): Promise<{ spec: RunSpec; stand: { readonly maxSteps: number; readonly state: string } }> {
  const spec = await readRunRecord(place);
  return { spec, stand: { maxSteps: spec.maxSteps, state: 'nothing committed yet' } };
}

/** The metrics have all that `effectivenessOf` needs of commits, and take one read. */
export async function effectOf(place: RunPlace, table: MetricsTable, lineage: string): Promise<Effectiveness> {
  const wanted: readonly string[] = [
    ...Object.values(timeMetrics),
    ...table.names.filter((name) => /^(?:lost|recovery)\//.test(name)),
  ];
  const steps = table.rowsOf(lineage).flatMap((row): TimedCommit[] => {
    const time = table.timeOf(row);
    if (Number.isNaN(time)) return [];
    const metrics = table.valuesOf(row, wanted);
    return [{ step: table.stepOf(row), committedAt: new Date(time).toISOString(), metrics }];
  });
  const begun = (await begunLineages(place)).find((one) => one.lineage === lineage);
  if (!begun) return effectivenessOf(steps);
  const { origin, begunAt } = begun;
  return effectivenessOf([
    { step: origin.step, committedAt: begunAt, metrics: {}, origin },
    ...steps.filter((one) => one.step > origin.step),
  ]);
}

export function stateOf({ phase }: RunStatus): string {
  return phase === 'training' ? 'running' : phase;
}

function liveOf({ status, branches = {} }: ToldByRun): LiveStatus {
  const { phase, pausedBecause, waitingOn, warnings, attempt, progress, prompts } = status;
  const { collecting, inPlay, training, quarantinedServers = [] } = progress;
  const offeredPrompts = prompts.flatMap(({ environment, offered }) => (offered === null ? [] : [environment]));
  return {
    phase,
    pausedBecause,
    waitingOn,
    warnings,
    attempt,
    collecting,
    inPlay,
    training,
    quarantinedServers,
    offeredPrompts,
    branches: prompts.flatMap(({ environment, branch }) =>
      branch === null ? [] : [{ environment, ...branchOf(branch, branches) }],
    ),
  };
}

function branchOf(
  { step, since, workflow, trial }: BranchUnderWay,
  branches: BranchFigures,
): Omit<LiveStatus['branches'][number], 'environment'> {
  const figures = (workflow === null ? undefined : branches[workflow]?.figures) ?? null;
  const calls = figures === null || figures.maxCalls === 0 ? null : { made: figures.calls, of: figures.maxCalls };
  return { step, since, calls, inPlay: branchInPlayText({ search: figures?.inPlay, trial }) };
}

/** Rows of the steps that led to the run's position, ascending. */
export async function rowsOnTheWay(place: RunPlace, table: MetricsTable): Promise<number[]> {
  const stretches = await stretchesOf({ ...place, lineage: await currentLineage(place) });
  // A step at which a lineage took over belongs to the lineage before.
  return stretches
    .toReversed()
    .flatMap(({ lineage, from, upTo }, i) => table.rowsOf(lineage, i === 0 ? 0 : from + 1, upTo));
}

/** Metrics over the steps that led to the run's position, and over steps left behind. */
export async function seriesOf(
  place: RunPlace,
  table: MetricsTable,
  names: readonly string[],
  pointsMax: number,
): Promise<SeriesAnswer> {
  const lineage = await currentLineage(place);
  const stretches = await stretchesOf({ ...place, lineage });
  const path = await rowsOnTheWay(place, table);
  const left = stretches
    .toReversed()
    .flatMap((one) =>
      one.upTo === Infinity ? [] : [{ name: one.lineage, rows: table.rowsOf(one.lineage, one.upTo) }],
    );
  const onTheWay = new Set(stretches.map((one) => one.lineage));
  const others = [firstLineage, ...(await begunLineages(place)).map((one) => one.lineage)];
  const aside = others.filter((name) => !onTheWay.has(name)).map((name) => ({ name, rows: table.rowsOf(name) }));
  const stepsPerPoint = Math.max(1, Math.ceil(path.length / pointsMax));
  const leftOf = [...left, ...aside].filter(({ rows }) => rows.length > 1);
  const lastRows = table.points(path, stepsPerPoint).map((rows) => rows.at(-1)!);
  const drawn = table.part(lineage, path, names, stepsPerPoint);
  return {
    path: { ...drawn, values: { ...drawn.values, ...spentBy(table, names, lastRows) } },
    left: leftOf.map(({ name, rows }) => table.part(name, rows, names, stepsPerPoint)),
    stepsPerPoint,
  };
}
