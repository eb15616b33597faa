import path from 'node:path';
import { parseSweepFile, type SweepSpec } from '../../config/sweeps/parse-sweep-file.ts';
import { ConfigProblems, type Problem } from '../../config/toml/problems.ts';
import { RatchetError } from '../../core/errors.ts';
import { rungSteps } from '../../core/sweep/halving.ts';
import type { SweepInput } from '../../core/sweep/sweep.ts';
import { describeRow, sweepRuns } from '../../core/sweep/table.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { loadRunConfig, readRunFile } from '../../load/load-run-config.ts';
import { readRunText } from '../../load/run-text.ts';
import { runRecordIn } from '../../runs/forms/record-shapes.ts';
import { layout } from '../../runs/layout.ts';
import { differencesBetween, refuseOtherRun, showSetting } from '../../runs/run-identity.ts';
import { openRunStore } from '../../store/index.ts';
import { openTraining } from '../start/load-for-training.ts';

/** Throws with every problem of the file. */
export async function readSweepFile(file: string, projectFolder: string): Promise<SweepSpec> {
  const parsed = parseSweepFile(await readRunText(path.resolve(projectFolder, file), file, undefined), { file });
  if (!parsed.ok) throw new ConfigProblems(parsed.problems);
  return parsed.spec;
}

interface PlannedSweep {
  readonly input: SweepInput;
  /** Of the run file alone. */
  readonly spec: RunSpec;
}

/**
 * Reads a file of a sweep and its run file, and checks each run as `ratchet train` would. Throws with what is wrong
 * before anything starts.
 */
export async function planSweep(
  file: string,
  {
    projectFolder,
    yes,
    say,
  }: { readonly projectFolder: string; readonly yes: boolean; readonly say: (line: string) => void },
): Promise<PlannedSweep> {
  const { name, rows, seeds, metric, halving, atOnce, run } = await readSweepFile(file, projectFolder);
  const config = path.join(path.dirname(file), run);
  const read = await readRunFile(config, { projectFolder });
  const runs = sweepRuns(name, rows, seeds);
  const base = await openTraining(config, { projectFolder, read, over: [] }, { name: runs[0]!.name, yes }, say);
  const seen = new Map<string, string>();
  const texts: Record<string, string> = {};
  const beside: Record<string, string> = {};
  const typed = runs.map((one) => ({ ...one, overrides: { ...base.overrides, ...one.overrides } }));
  for (const one of typed) {
    const where = `${file}: row ${one.row + 1} (${describeRow(rows[one.row]!)})`;
    const { spec, sent } = await loadRunConfig(config, {
      projectFolder,
      read,
      overrides: one.overrides,
      run: one.name,
    }).catch((error: unknown) => {
      if (!(error instanceof ConfigProblems)) throw error;
      const { message } = new ConfigProblems(error.problems.map((one) => ofSweepFile(one, file)));
      throw new RatchetError('ConfigInvalid', `${where} is no run of ${config}:\n${message}`, { cause: error });
    });
    Object.assign(texts, sent.texts);
    Object.assign(beside, sent.beside);
    const same = JSON.stringify({ ...spec, name: '' });
    const before = seen.get(same);
    if (before !== undefined)
      throw new RatchetError(
        'ConfigInvalid',
        `${where}: expected a run that differs from ${before}, got the same settings.`,
      );
    seen.set(same, one.name);
    await refuseChanged(spec, `row ${one.row + 1} (${describeRow(rows[one.row]!)})`, file);
    await refuseOtherRun(spec);
  }
  refuseMetric(metric.name, base.spec, { file, config });
  const { maxSteps } = base.spec;
  if (maxSteps < 1)
    throw new RatchetError('ConfigInvalid', `${config}: expected max_steps from 1 for a sweep, got ${maxSteps}.`);
  if (halving !== null && rungSteps(maxSteps, halving).length < 2) {
    const got = `min_steps = ${halving.minSteps} of ${maxSteps} steps`;
    throw new RatchetError(
      'ConfigInvalid',
      `${file}: [sweep.halving]: expected a rung before the end of a run, got ${got}.`,
    );
  }
  const input: SweepInput = {
    name,
    store: base.spec.store.uri,
    config,
    sent: { texts, beside },
    rows,
    runs: typed,
    metric,
    maxSteps,
    halving,
    atOnce,
  };
  return { input, spec: base.spec };
}

/** Settings of a row are read as if they were typed; nobody typed them. */
function ofSweepFile(problem: Problem, file: string): Problem {
  return problem.file === 'command line' ? { ...problem, file } : problem;
}

/** Parts of a spec that say where and how a run is trained, and not what it learns. */
const mayChange =
  /^(?:store|inference|requested|checkpoints|breaker|budget|cost|notify|wandb|mlflow|opentelemetry|heartbeatTimeoutS|generationTimeoutS|tokenScores)\b/;

/** Rows that were begun under other settings are not compared by what the file says now. */
async function refuseChanged(spec: RunSpec, row: string, file: string): Promise<void> {
  const store = openRunStore(spec.store.uri, spec.name);
  const there = await store.read(layout.run());
  if (there === null) return;
  const changed = differencesBetween(spec, runRecordIn(there, store.uri + layout.run())).filter(
    ({ at, isOfProcesses }) => !isOfProcesses && !mayChange.test(at),
  );
  if (changed.length === 0) return;
  const lines = changed.map(({ name, was, now }) => `  ${name}: was ${showSetting(was)}, now ${showSetting(now)}`);
  throw new RatchetError(
    'ConfigInvalid',
    [
      `${file}: the run ${spec.name} was begun with other settings than ${row} has now:`,
      ...lines,
      'A sweep continues with the rows and the run file that it began with; further rows and seeds may follow behind them. For another table, name another sweep: name = "…" in [sweep].',
    ].join('\n'),
  );
}

/** Figures of an evaluation, as docs/guide/metrics.md has them. */
const ofEvaluation =
  /^(?:greedy\/)?(?:reward|num_output_tokens|num_turns|is_truncated|has_error|timed_out)\/|^(?:greedy\/)?metrics\/|^(?:avg|pass)@\d+$/;

/** A metric that no evaluation gives would leave every rung undecided. Other names show only once a step is committed. */
function refuseMetric(
  metric: string,
  spec: RunSpec,
  { file, config }: { readonly file: string; readonly config: string },
): void {
  if (!metric.startsWith('eval/')) return;
  const names = spec.eval?.environments.map(({ name }) => name) ?? [];
  const own = names.find((name) => metric.startsWith(`eval/${name}/`));
  if (own !== undefined && ofEvaluation.test(metric.slice(`eval/${own}/`.length))) return;
  const there =
    names.length === 0
      ? `${config} has no [eval]`
      : `the evaluations of ${config} give ${names.map((name) => `eval/${name}/reward/mean`).join(', ')} and what docs/guide/metrics.md lists`;
  throw new RatchetError(
    'ConfigInvalid',
    `${file}: sweep.metric: expected a metric that the runs have, got ${JSON.stringify(metric)}; ${there}.`,
  );
}
