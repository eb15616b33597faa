import { type Dialect, translate } from './dialects/dialect.ts';
import { ratchetReading, readingOf } from './dialects/reading.ts';
import type { Layer } from './toml/layers.ts';
import type { ParseOptions, RunConfig } from './run-config.ts';
import { formatPath, type KeyPath } from './toml/positions.ts';
import type { Place, Problem } from './toml/problems.ts';
import { readTable } from './toml/read-table.ts';
import { findEnvironments, withFound } from './run-environments.ts';
import { runName } from './run-name.ts';
import { RunSpec } from './run-spec.ts';
import { adviseSettings } from './setting-advice.ts';
import { RatchetConfig, resumeStepOf } from './settings/index.ts';
import { unusedRequests } from './settings/requested.ts';
import { toRunSpec } from './settings/to-run-spec.ts';
import { problemsBetween, warningsOf } from './settings/relations/index.ts';
import { type Table, valueAt } from './toml/tables.ts';
import { withTyped } from './toml/with-typed.ts';

type Read = (RunConfig & { ok: true }) | { ok: false; problems: Problem[] };

/** Reads a file in a dialect: checks its words, translates them into ours, and checks their relations. */
export function readInDialect(dialect: Dialect, file: Table, layers: readonly Layer[], options: ParseOptions): Read {
  const { written, reporter } = withTyped(dialect, file, layers, options);
  const table = readTable(written, readingOf(dialect), reporter);
  const own = table && translate(dialect, table);
  for (const { paths, ...problem } of own?.problems ?? []) {
    // A missing value may have been removed from its table because it was wrong.
    const isTakenOut = valueAt(table, paths[0]!) === undefined && reporter.hasWithin(paths[0]!.slice(0, -1));
    if (!isTakenOut) reporter.addRelation(paths, problem);
  }
  // From here on everything is in our own words; errors are reported at the file's places.
  if (own) reporter.speakOf((path) => (dialect.schema ? path : (own.writtenAt(path) ?? path)));
  const ownTable = own && (dialect.schema ? table : readTable(own.table, ratchetReading, reporter));
  const config = ownTable && RatchetConfig.parse(ownTable);
  for (const { paths, ...problem } of config ? problemsBetween(config) : []) {
    if (!paths.some((path) => reporter.has(path))) reporter.addRelation(paths, problem);
  }
  const environments =
    config && findEnvironments(config, options, reporter, dialect.schema ? undefined : dialect.title);
  const name = runName(options, config, reporter);
  if (reporter.problems.length > 0 || !config || !own || !environments) {
    return { ok: false, problems: reporter.inOrder() };
  }

  // A valid config that gives no RunSpec is a bug of the dialect, so this may throw.
  const spec = RunSpec.parse(toRunSpec(config, name));
  const writtenAt = (path: KeyPath): string | undefined => {
    const found = own.writtenAt(path);
    return found && formatPath(found);
  };
  const unused = unusedRequests(spec, writtenAt);
  const placeOf = (...names: KeyPath[]): Place => reporter.placeOf(names);
  const isSaid = (...path: KeyPath): boolean => placeOf(path).line !== null || placeOf(path).file === 'command line';
  const isTrainerSaid = !('provider' in spec.trainer) || isSaid('trainer', 'kind') || isSaid('trainer', 'provider');
  return {
    ok: true,
    spec: withFound(spec, environments.found),
    // GPUs that choose the trainer, or the sampler of another system's file, are reported with that choice (cli/start/).
    warnings: [
      ...own.warnings,
      ...warningsOf(config),
      ...unused.settings,
      ...(isTrainerSaid ? unused.trainer : []),
      ...(dialect.schema ? unused.inference : []),
      ...environments.said,
    ],
    resumeStep: resumeStepOf(config),
    missing: environments.missing,
    ours: dialect.schema ? written : own.table,
    advice: adviseSettings(spec).map(({ paths, ...said }) => ({ ...said, ...placeOf(...paths) })),
    placeOf,
  };
}
