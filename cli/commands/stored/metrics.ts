import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { nearestName } from '../../../core/suggest.ts';
import { layout } from '../../../runs/layout.ts';
import { unreadableRows } from '../../../runs/metrics/metrics.ts';
import { currentLineage, readHead, type RunPlace, storeOf } from '../../../runs/run-access.ts';
import { findRunFolder } from '../../stored/run-place.ts';
import { readCount } from '../../typed/read-count.ts';
import { type StepRecord, stepRecords } from '../../../runs/metrics/step-records.ts';
import { storeOption, withStore } from '../../typed/store-option.ts';
import { print, printAside } from '../../output/print.ts';
import { jsonText } from '../../output/plain-text.ts';

export const metricsCommand = new Command('metrics')
  .description(
    "a run's committed metrics, one row per step; without names, those one looks at first. Of several runs, metric by metric beside one another",
  )
  .argument('<run>')
  .argument('[names...]', "further runs, then names, * for any part of one: 'train/*' '*/reward/mean'")
  .option('--last <n>', 'the last n steps (default: 20 in the table, every step with --csv or --json)')
  .option('--all', 'every step')
  .option('--names', 'only the names there are')
  .option('--csv', 'comma-separated, every matching name')
  .option('--json', 'one JSON object per step and line, every matching name')
  .option(...storeOption)
  .action(async (run, further, options) => {
    const first = await measuredRun(await findRunFolder(run, options.store), options.store);
    const { others, names } = await runsAndNames(first, further, options.store);
    const runs = [first, ...others];
    print((others.length === 0 ? show(first.records, names, options) : showSeveral(runs, names, options)).join('\n'));
  });

export interface MeasuredRun {
  readonly run: string;
  readonly records: readonly StepRecord[];
}

async function measuredRun(place: RunPlace, store: string | undefined): Promise<MeasuredRun> {
  const toRepair = withStore(`npx ratchet-rl fsck ${place.name} --repair`, store);
  const records = await stepRecords(place);
  const unreadable = await unreadableRows(storeOf(place));
  if (records.length === 0) await refuseWithoutRows(place, unreadable > 0 ? toRepair : null);
  if (unreadable > 0) printAside(`${unreadable} lines of metrics.jsonl cannot be read: ${toRepair}`);
  return { run: place.name, records };
}

/** Names begin with the first word that is a metric of the first run, or has a star. The words before it are runs. */
export async function runsAndNames(
  { records }: MeasuredRun,
  further: readonly string[],
  store: string | undefined,
): Promise<{ readonly others: readonly MeasuredRun[]; readonly names: readonly string[] }> {
  const known = knownNames(records);
  const others: MeasuredRun[] = [];
  for (const [i, word] of further.entries()) {
    const isName = word.includes('*') || known.includes(word);
    const place = isName ? null : await findRunFolder(word, store).catch(noSuchRun);
    if (place === null) return { others, names: further.slice(i) };
    others.push(await measuredRun(place, store));
  }
  return { others, names: [] };
}

function noSuchRun(error: unknown): null {
  if (error instanceof RatchetError && error.code === 'RunNotFound') return null;
  throw error;
}

/** The commits have metrics but the file has none, so it is damaged and not just new. */
async function refuseWithoutRows(place: RunPlace, toRepair: string | null): Promise<void> {
  const head = await readHead({ ...place, lineage: await currentLineage(place) });
  const hasMetrics = head?.commit.origin === undefined && Object.keys(head?.commit.metrics ?? {}).length > 0;
  if (toRepair === null && !hasMetrics) return;
  const again = toRepair ?? 'npx ratchet-rl train FILE';
  throw new RatchetError(
    'CheckpointDamaged',
    `${storeOf(place).uri}${layout.metrics()}: expected rows of metrics, found none that can be read. What writes it again from the commits: ${again}`,
  );
}

interface MetricsOptions {
  readonly last?: string;
  readonly all?: boolean;
  readonly names?: boolean;
  readonly csv?: boolean;
  readonly json?: boolean;
  readonly store?: string;
}

/** Default columns, as far as a run has them. */
const headline = [
  'train/reward',
  'train/agg/all/metrics/exact_match',
  'eval/*/reward/mean',
  'train/loss',
  'entropy',
  'train/kl_divergence',
  'grad_norm',
  'rollout/mean_length',
  'train/learning_rate',
  'time/step',
];

export function show(records: readonly StepRecord[], patterns: readonly string[], options: MetricsOptions): string[] {
  const known = knownNames(records);
  if (known.length === 0) return ['no metrics yet: the first step is not committed'];
  const isAll = patterns.length === 0 && (options.names || options.json || options.csv);
  const names = isAll ? known : matching(known, patterns.length === 0 ? headline : patterns, patterns.length > 0);
  if (options.names) return names;
  const shown = chosen(records, options);
  if (options.json) return shown.map((record) => jsonText({ ...record, metrics: pick(record.metrics, names) }));
  if (options.csv)
    return [['step', 'lineage', ...names].map(csvCell).join(','), ...shown.map((record) => csvRow(record, names))];
  const left = records.length - shown.length;
  return [
    ...tableOf(shown, names, process.stdout.isTTY ? process.stdout.columns : Number.POSITIVE_INFINITY),
    ...(left > 0 && options.last === undefined ? [`${left} earlier steps: --all`] : []),
  ];
}

function knownNames(records: readonly StepRecord[]): string[] {
  return [...new Set(records.flatMap(({ metrics }) => Object.keys(metrics)))].sort();
}

/** Shown of several runs: a table for each metric, with a column for each run. */
const headlineOfSeveral = ['train/reward', 'eval/*/reward/mean', 'eval/*/greedy/reward/mean'];

export function showSeveral(
  runs: readonly MeasuredRun[],
  patterns: readonly string[],
  options: MetricsOptions,
): string[] {
  const known = [...new Set(runs.flatMap(({ records }) => knownNames(records)))].sort();
  const isAll = patterns.length === 0 && (options.names || options.json || options.csv);
  const wanted = patterns.length === 0 ? headlineOfSeveral : patterns;
  const names = isAll ? known : matching(known, wanted, patterns.length > 0);
  if (options.names) return names;
  const each = runs.flatMap(({ run, records }) => chosen(records, options).map((record) => ({ run, record })));
  if (options.json)
    return each.map(({ run, record }) => jsonText({ run, ...record, metrics: pick(record.metrics, names) }));
  if (options.csv)
    return [
      ['run', 'step', 'lineage', ...names].map(csvCell).join(','),
      ...each.map(({ run, record }) => `${csvCell(run)},${csvRow(record, names)}`),
    ];
  return names.flatMap((name, i) => [...(i === 0 ? [] : ['']), name, ...besideOneAnother(runs, name, options)]);
}

/** The steps at which any of the runs has the metric. */
function besideOneAnother(runs: readonly MeasuredRun[], name: string, options: MetricsOptions): string[] {
  const values = runs.map(
    ({ records }) =>
      new Map(records.flatMap(({ step, metrics }) => (name in metrics ? [[step, metrics[name]!] as const] : []))),
  );
  const all = [...new Set(values.flatMap((of) => [...of.keys()]))].sort((a, b) => a - b);
  const steps = options.all ? all : all.slice(-readCount('--last', options.last ?? lastInTable));
  const columns = [
    ['step', ...steps.map(String)],
    ...runs.map(({ run }, i) => [run, ...steps.map((step) => figure(values[i]!.get(step)))]),
  ];
  const widths = columns.map((cells) => Math.max(...cells.map(({ length }) => length)));
  return [
    ...Array.from({ length: steps.length + 1 }, (_, row) =>
      columns.map((cells, i) => cells[row]!.padStart(widths[i]!)).join('  '),
    ),
    ...(steps.length < all.length && options.last === undefined
      ? [`${all.length - steps.length} earlier steps: --all`]
      : []),
  ];
}

const lastInTable = '20';

/** Exports hold all rows unless asked for fewer: a file cannot show that rows are missing. */
function chosen(records: readonly StepRecord[], { all, last, csv, json }: MetricsOptions): readonly StepRecord[] {
  if (all || (last === undefined && (csv || json))) return records;
  return records.slice(-readCount('--last', last ?? lastInTable));
}

/** Known names that match a pattern, in the order of the patterns. */
export function matching(known: readonly string[], patterns: readonly string[], mustMatch: boolean): string[] {
  const names = new Set<string>();
  for (const pattern of patterns) {
    const found = known.filter((name) => isLike(name, pattern));
    if (found.length === 0 && mustMatch) {
      const near = nearestName(pattern, known);
      const advice = near === undefined ? '`ratchet metrics RUN --names` lists them.' : `Did you mean ${near}?`;
      throw new RatchetError('ConfigInvalid', `No run, and no metric of this run, is called ${pattern}. ${advice}`);
    }
    for (const name of found) names.add(name);
  }
  return [...names];
}

/** Searches each part between stars once, from the left: a regular expression would try every place for every star. */
function isLike(name: string, pattern: string): boolean {
  const [first = '', ...others] = pattern.split('*');
  const last = others.pop();
  if (last === undefined) return name === pattern;
  if (!name.startsWith(first)) return false;
  let at = first.length;
  for (const part of others) {
    const found = name.indexOf(part, at);
    if (found < 0) return false;
    at = found + part.length;
  }
  return name.length - last.length >= at && name.endsWith(last);
}

function pick(metrics: Readonly<Record<string, number>>, names: readonly string[]): Record<string, number> {
  return Object.fromEntries(names.flatMap((name) => (name in metrics ? [[name, metrics[name]!]] : [])));
}

function csvRow({ step, lineage, metrics }: StepRecord, names: readonly string[]): string {
  return [String(step), lineage, ...names.map((name) => String(metrics[name] ?? ''))].map(csvCell).join(',');
}

function csvCell(text: string): string {
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Shows as many columns as fit, and names the others below. */
function tableOf(records: readonly StepRecord[], names: readonly string[], width: number): string[] {
  const columns = [
    { head: 'step', cells: records.map(({ step }) => String(step)) },
    ...names.map((name) => ({ head: name, cells: records.map(({ metrics }) => figure(metrics[name])) })),
  ].map((column) => ({ ...column, width: Math.max(column.head.length, ...column.cells.map(({ length }) => length)) }));
  let used = 0;
  const fitting = columns.filter((column, i) =>
    i < 2 || (used + column.width + 2 <= width && used >= 0)
      ? ((used += column.width + 2), true)
      : ((used = Number.POSITIVE_INFINITY), false),
  );
  const line = (cells: readonly string[]): string =>
    cells.map((cell, i) => cell.padStart(fitting[i]!.width)).join('  ');
  const left = columns.slice(fitting.length).map(({ head }) => head);
  return [
    line(fitting.map(({ head }) => head)),
    ...records.map((_, row) => line(fitting.map(({ cells }) => cells[row]!))),
    ...(left.length > 0 ? [`no room for: ${left.join(', ')}   (name them, or --csv)`] : []),
  ];
}

/** Four significant digits. */
function figure(value: number | undefined): string {
  if (value === undefined) return '';
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e5 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
}
