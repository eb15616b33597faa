import { RatchetError } from '../core/errors.ts';
import type { RolloutFilter, RolloutOrder } from '../runs/rollout-index/search.ts';
import type { RunPlace } from '../runs/run-access.ts';
import type { ReportData, RolloutLine } from './answers.ts';
import { reportHtml } from './page-files.ts';
import { type AskRun, pointsMax, RunSource } from './run-source.ts';

interface ReportLimits {
  /** Groups whose rollouts are in it. */
  readonly groups: number;
  /** Bytes of all conversations and tokens together as JSON, at most. */
  readonly bytes: number;
}

export const defaultLimits: ReportLimits = { groups: 200, bytes: 12_000_000 };

/** Evaluations of one environment with rows in a report: the first ones, which show the start, and the newest. */
const evaluationsInFull = { first: 2, newest: 4 };

/** Rollouts that a reader of the report probably wants: the newest, the best, the worst, the longest, and failures. */
const wanted: readonly { readonly filter: RolloutFilter; readonly order: RolloutOrder; readonly share: number }[] = [
  { filter: {}, order: 'newest', share: 0.3 },
  { filter: {}, order: 'reward', share: 0.2 },
  { filter: {}, order: '-reward', share: 0.15 },
  { filter: {}, order: 'tokens', share: 0.1 },
  { filter: { end: 'filtered' }, order: 'newest', share: 0.1 },
  { filter: { end: 'failed' }, order: 'newest', share: 0.05 },
  { filter: { outcome: 'infra_failure' }, order: 'newest', share: 0.05 },
  { filter: { outcome: 'truncated' }, order: 'newest', share: 0.05 },
];

/** A run's page in one file: everything except most rollouts, of which it has some with their whole groups. */
export async function makeReport(
  place: RunPlace,
  ask: AskRun,
  limits: ReportLimits = defaultLimits,
): Promise<{
  readonly html: string;
  readonly rollouts: number;
  readonly of: number;
  /** One line for each part of the run that could not be read, with the reason. */
  readonly missing: readonly string[];
}> {
  const source = new RunSource(place, ask);
  await source.askRun();
  await source.rollouts.bringUpToDate();
  const overview = await source.overview();
  const missing: string[] = [];
  /** A damaged part does not hide the rest of the run. */
  const orSay = async <T>(what: string, otherwise: T, make: () => Promise<T>): Promise<T> => {
    try {
      return await make();
    } catch (error) {
      if (!(error instanceof RatchetError)) throw error;
      missing.push(`${what}: ${error.message}`);
      return otherwise;
    }
  };
  if (overview.damage !== null) missing.push(`its newest commit: ${overview.damage}`);
  missing.push(...overview.damagedNotices.map((why) => `a notice: ${why}`));
  if (overview.index.error !== null) missing.push(`some of its rollouts: ${overview.index.error}`);
  const { groups, tokens, lines, of } = await orSay('its rollouts', noGroups, () => someGroups(source, limits, orSay));
  const data: ReportData = {
    overview,
    series: await orSay('its curves', noSeries, () => source.series(overview.metrics, pointsMax / 2)),
    markers: await orSay('what happened', [], () => source.markers()),
    timeline: await orSay('its workers', noTimeline, () => source.timeline(null)),
    history: await orSay('its ledger', noHistory, () => source.history.tell()),
    histograms: await orSay('rewards over time', {}, () => histogramsOf(source, overview.environments)),
    ...(await orSay('its evaluations', noEvaluations, () => evaluationsOf(source))),
    ...(await orSay('its prompt searches', noSearches, () => searchesOf(source))),
    rollouts: lines,
    of,
    groups,
    tokens,
    missing,
  };
  const html = await reportHtml(
    { run: place.name, compare: [], isReport: true, canSteer: false, madeAt: new Date().toISOString() },
    data,
  );
  return { html, rollouts: lines.length, of, missing };
}

type OrSay = <T>(what: string, otherwise: T, make: () => Promise<T>) => Promise<T>;

const noGroups = { groups: {}, tokens: {}, lines: [], of: 0 };
const noSeries = { path: { lineage: '', step: [], time: [], values: {} }, left: [], stepsPerPoint: 1 };
const noTimeline = { from: 0, to: 0, lanes: [], leftOut: 0 };
const noHistory = {
  lineages: [],
  issued: 0,
  counts: {},
  pending: 0,
  superseded: 0,
  timedOut: {},
  effects: {},
  isSound: false,
};
const noEvaluations = { evals: { evaluations: [], incomplete: [] }, evalRows: {} };
const noSearches = { searches: { searches: [], damaged: [] }, searchesInFull: {} };

async function histogramsOf(source: RunSource, environments: readonly string[]): Promise<ReportData['histograms']> {
  const all: Record<string, ReportData['histograms'][string]> = { '': await source.rollouts.histogram(null) };
  if (environments.length > 1) for (const name of environments) all[name] = await source.rollouts.histogram(name);
  return all;
}

/** Rows of the first and of the newest evaluations of each environment. */
async function evaluationsOf(source: RunSource): Promise<Pick<ReportData, 'evals' | 'evalRows'>> {
  const evals = await source.evaluations.list();
  const evalRows: Record<string, ReportData['evalRows'][string]> = {};
  for (const name of new Set(evals.evaluations.map(({ environment }) => environment)))
    for (const { id } of endsOf(evals.evaluations.filter(({ environment }) => environment === name)))
      evalRows[id] = await source.evaluations.rows(id);
  return { evals, evalRows };
}

function endsOf<One>(all: readonly One[]): readonly One[] {
  const { first, newest } = evaluationsInFull;
  return all.filter((_, i) => i < first || i >= all.length - newest);
}

const searchesInFull = 8;

/** The newest searches with their prompts. */
async function searchesOf(source: RunSource): Promise<Pick<ReportData, 'searches' | 'searchesInFull'>> {
  const searches = await source.searches.list();
  const newest = searches.searches.slice(-searchesInFull);
  const inFull = await Promise.all(newest.map(async ({ id }) => [id, await source.searches.one(id)] as const));
  return { searches, searchesInFull: Object.fromEntries(inFull) };
}

async function someGroups(
  source: RunSource,
  limits: ReportLimits,
  orSay: OrSay,
): Promise<Pick<ReportData, 'groups' | 'tokens' | 'of'> & { readonly lines: readonly RolloutLine[] }> {
  const chosen = new Map<string, { readonly step: number; readonly group: number }>();
  let of = 0;
  for (const { filter, order, share } of wanted) {
    const found = await source.rollouts.find(filter, { order, limit: limits.groups * 4 });
    of = found.of;
    let left = Math.ceil(limits.groups * share);
    for (const { step, group } of found.rollouts) {
      const name = `${step}/${group}`;
      if (left === 0 || chosen.size >= limits.groups || chosen.has(name)) continue;
      chosen.set(name, { step, group });
      left -= 1;
    }
  }
  const groups: Record<string, ReportData['groups'][string]> = {};
  const tokens: Record<string, ReportData['tokens'][string]> = {};
  const lines: RolloutLine[] = [];
  let bytes = 0;
  for (const [name, at] of [...chosen].sort(([, a], [, b]) => b.step - a.step || b.group - a.group)) {
    const group = await orSay(`group ${at.group} of step ${at.step}`, null, () => source.rollouts.group(at));
    if (group === null) continue;
    const ofGroup: [string, ReportData['tokens'][string]][] = [];
    for (const { index, turns } of group.rollouts)
      if (turns.length > 0) ofGroup.push([`${name}/${index}`, await source.rollouts.tokens(at, index)]);
    bytes += JSON.stringify([group, ofGroup]).length;
    if (bytes > limits.bytes) break;
    groups[name] = group;
    Object.assign(tokens, Object.fromEntries(ofGroup));
    const found = await source.rollouts.find({ step: [at.step, at.step], group: at.group }, { limit: 1_000 });
    lines.push(...found.rollouts);
  }
  return { groups, tokens, lines, of };
}
