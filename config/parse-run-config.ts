import { detectDialect } from './dialects/detect.ts';
import type { Dialect } from './dialects/dialect.ts';
import { dialectNamed, dialects } from './dialects/index.ts';
import { dialectsIn } from './dialects/prime-rl/prime-rl-files.ts';
import { type Layer, mergedLayers } from './toml/layers.ts';
import { parseToml, type TomlFile } from './toml/parse-toml.ts';
import { partOfPrimeRl } from './part-of-prime-rl.ts';
import { readInDialect } from './read-in-dialect.ts';
import type { ParsedRunConfig, ParseOptions } from './run-config.ts';
import type { RunSpec } from './run-spec.ts';
import { nameInFile } from './setting-names.ts';
import { differencesOf } from './toml/tables.ts';

export { formatProblems } from './toml/problems.ts';
export type { Problem } from './toml/problems.ts';
export { runNameFromFile } from './run-name.ts';

/** Reads a run's TOML, or what was parsed of it before. Says everything that is wrong with it at once, each problem with its line and what to do. */
export function parseRunConfig(source: string | TomlFile, options: ParseOptions): ParsedRunConfig {
  const first = typeof source === 'string' ? parseToml(source, options.file) : source;
  const layers: readonly Layer[] = [first, ...(options.over ?? [])];
  const parsed = [first, ...layers.slice(1).map(({ text, file, toml }) => toml ?? parseToml(text, file))];
  const problems = parsed.flatMap(({ problem }) => problem ?? []);
  if (problems.length > 0) return { ok: false, problems, readAs: null };
  const written = mergedLayers(parsed.flatMap(({ table }, i) => (table ? { layer: layers[i]!, table } : [])));
  const possible = dialectsIn(options.file, written, dialects);
  const part = options.dialect === undefined ? partOfPrimeRl(written) : undefined;
  if (part) return { ok: false, problems: [{ ...part, file: first.file, line: 1, column: 1 }], readAs: null };
  const candidates = options.dialect === undefined ? detectDialect(written, possible) : [dialectOf(options.dialect)];
  const [dialect, ...others] = candidates as [Dialect, ...Dialect[]];
  const read = readInDialect(dialect, written, layers, options);
  const byKeys = possible === dialects ? 'its keys' : 'its keys, and the folder prime-rl that it is in';
  const because = options.dialect === undefined ? (dialect.proof?.(written) ?? byKeys) : '--dialect';
  const known = { dialect: dialect.name, title: dialect.title, because };
  if (!read.ok) return { ...read, readAs: { ...known, alternatives: [] } };
  const alternatives = others.flatMap((other) => {
    const alternative = readInDialect(other, written, layers, options);
    if (!alternative.ok) return [];
    const differs = differences(read.spec, alternative.spec);
    return differs.length === 0 ? [] : [{ dialect: other.name, title: other.title, differs }];
  });
  return { ...read, readAs: { ...known, alternatives } };
}

function dialectOf(given: string | Dialect): Dialect {
  return typeof given === 'string' ? dialectNamed(given) : given;
}

/** Differences between two readings of a file, as `trainer.loss.type: "cispo" here, "dppo" there`. */
function differences(spec: RunSpec, other: RunSpec): string[] {
  return [...differencesOf(spec, other)].map(({ path, here, there }) => {
    const [one, another] = [here, there].map((value) => JSON.stringify(value));
    return `${nameInFile(path.join('.'))}: ${one} here, ${another} there`;
  });
}
