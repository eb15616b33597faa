import { type Dialect, translate } from './dialects/dialect.ts';
import { ratchetReading, readingOf } from './dialects/reading.ts';
import type { Layer } from './layers.ts';
import { keptLater, type LaterSetting, laterSettings } from './not-yet.ts';
import type { ParseOptions, RunConfig } from './parse-run-config.ts';
import type { KeyPath } from './positions.ts';
import type { Place, Problem } from './problems.ts';
import { describe, type Reporter } from './reporter.ts';
import { readTable } from './read-table.ts';
import { findEnvironments, withFound } from './run-environments.ts';
import { runName } from './run-name.ts';
import { RunSpec } from './run-spec.ts';
import { adviseSettings } from './setting-advice.ts';
import { RatchetConfig, resumeStepOf, toRunSpec } from './settings/index.ts';
import { problemsBetween, warningsOf } from './settings/relations/index.ts';
import { type Table, valueAt } from './tables.ts';
import { withTyped } from './with-typed.ts';

export type Read = (RunConfig & { ok: true }) | { ok: false; problems: Problem[] };

/** What a file means in a dialect: its words are checked, translated into ours, and held against each other. */
export function readInDialect(dialect: Dialect, file: Table, layers: readonly Layer[], options: ParseOptions): Read {
  const { written, reporter } = withTyped(dialect, file, layers, options);
  const table = readTable(written, readingOf(dialect), reporter);
  const own = table && translate(dialect, table);
  for (const { paths, ...problem } of own?.problems ?? []) {
    // What is missing may only have been taken out of its table, because it was wrong.
    const isTakenOut = valueAt(table, paths[0]!) === undefined && reporter.hasWithin(paths[0]!.slice(0, -1));
    if (!isTakenOut) reporter.addRelation(paths, problem);
  }
  // From here on everything is in our own words, and reported where it was written.
  if (own) reporter.speakOf((path) => (dialect.schema ? path : (own.writtenAt(path) ?? path)));
  const ownTable = own && (dialect.schema ? table : readTable(own.table, ratchetReading, reporter));
  const config = ownTable && RatchetConfig.parse(ownTable);
  for (const { paths, ...problem } of config ? problemsBetween(config) : []) {
    if (!paths.some((path) => reporter.has(path))) reporter.addRelation(paths, problem);
  }
  const environments =
    config && findEnvironments(config, options, reporter, dialect.schema ? undefined : dialect.title);
  const name = runName(options, config, reporter);
  const later = table && own ? laterSettings(table, own) : [];
  if (reporter.problems.length === 0) refuseWhatIsNotThere(later, reporter);
  if (reporter.problems.length > 0 || !config || !own || !environments) {
    return { ok: false, problems: reporter.inOrder() };
  }

  // A config that got this far and does not make a RunSpec is a bug of the dialect, so this may throw.
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
        : [{ ...placeOf(path), value, feature, here }],
    ),
    advice: adviseSettings(spec).map(({ paths, ...said }) => ({ ...said, ...placeOf(...paths) })),
    placeOf,
  };
}

/** Of several fields of one feature the first is named. */
function refuseWhatIsNotThere(later: readonly LaterSetting[], reporter: Reporter): void {
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
