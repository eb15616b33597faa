import { type Dialect, translate } from './dialects/dialect.ts';
import { ratchetReading, readingOf } from './dialects/reading.ts';
import type { Layer } from './toml/layers.ts';
import { type UnsupportedSetting, unsupportedSettings, keptLater } from './not-yet.ts';
import type { ParseOptions, RunConfig } from './run-config.ts';
import type { KeyPath } from './toml/positions.ts';
import type { Place, Problem } from './toml/problems.ts';
import { describe, type Reporter } from './toml/reporter.ts';
import { readTable } from './toml/read-table.ts';
import { findEnvironments, withFound } from './run-environments.ts';
import { runName } from './run-name.ts';
import { RunSpec } from './run-spec.ts';
import { adviseSettings } from './setting-advice.ts';
import { RatchetConfig, resumeStepOf } from './settings/index.ts';
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
  const later = table && own ? unsupportedSettings(table, own) : [];
  if (reporter.problems.length === 0) refuseWhatIsNotThere(later, reporter);
  if (reporter.problems.length > 0 || !config || !own || !environments) {
    return { ok: false, problems: reporter.inOrder() };
  }

  // A valid config that gives no RunSpec is a bug of the dialect, so this may throw.
  const spec = RunSpec.parse({ ...toRunSpec(config, name), later: keptLater(later) });
  const placeOf = (...names: KeyPath[]): Place => reporter.placeOf(names);
  return {
    ok: true,
    spec: withFound(spec, environments.found),
    warnings: [...own.warnings, ...warningsOf(config), ...environments.said],
    resumeStep: resumeStepOf(config),
    missing: environments.missing,
    ours: dialect.schema ? written : own.table,
    notYet: later.flatMap(({ path, value, feature, here, written }) =>
      written.length > 0
        ? written.map((one) => ({ ...reporter.placeOfWritten(one.path), value: one.value, feature, here }))
        : path.at(-1) === 'dtype'
          ? [] // every other system's default is bfloat16, and float32 is what it stands for
          : [{ ...placeOf(path), value, feature, here }],
    ),
    advice: adviseSettings(spec).map(({ paths, ...said }) => ({ ...said, ...placeOf(...paths) })),
    placeOf,
  };
}

/** Names the first of several fields of one feature. */
function refuseWhatIsNotThere(later: readonly UnsupportedSetting[], reporter: Reporter): void {
  const refused = later.filter(({ instead }) => instead !== null);
  for (const feature of new Set(refused.map((setting) => setting.feature))) {
    const [first, ...others] = refused.filter((setting) => setting.feature === feature);
    const { path, value, instead } = first!;
    reporter.addRelation([path, ...others.map((other) => other.path)], {
      expected: instead!,
      received: describe(value),
      suggestion: `known, not supported yet: ${feature}`,
    });
  }
}
