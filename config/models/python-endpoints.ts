import type { KeyPath } from '../toml/positions.ts';
import { PythonProblem, type PythonLiteral, readPythonAssignment } from './python-literal.ts';
import type { FileOptions, ReadFile } from '../toml/read-file.ts';
import { type Reading, readTable } from '../toml/read-table.ts';
import { describe, Reporter } from '../toml/reporter.ts';
import { isTable, type Table } from '../toml/tables.ts';

const assigned = 'ENDPOINTS';

/**
 * Converts the literal of an `endpoints.py` to tables of an `endpoints.toml`; problems have positions in the Python
 * file.
 */
export function parsePythonEndpoints(text: string, { file }: FileOptions, reading: Reading): ReadFile {
  let literal: PythonLiteral;
  try {
    literal = readPythonAssignment(text, assigned);
  } catch (error) {
    if (!(error instanceof PythonProblem)) throw error;
    const { line, column } = error.position;
    const expected = `${assigned} = {…} and nothing else: texts, numbers, True, False, None, dictionaries and lists. The file is read, never run`;
    return { ok: false, problems: [{ file, line, column, path: '', expected, received: error.received }] };
  }
  const { entries, ways } = entriesOf(literal.value);
  const overrides = { table: {}, isOverridden: () => false, misplaced: [] };
  const reporter = new Reporter(file, literal, overrides);
  if (entries === undefined) {
    const expected = `a dictionary of aliases: ${assigned} = {"gpt-4.1": {"model": …, "url": …, "key": …}}`;
    reporter.add({ path: [assigned], expected, received: describe(literal.value) });
    return { ok: false, problems: reporter.inOrder() };
  }
  reporter.speakOf(([, i, ...rest]) => (typeof i === 'number' ? [...ways[i]!, ...rest] : [assigned]));
  const written = { endpoint: entries };
  const table = readTable(written, reading, reporter);
  const warnings = [
    ...literal.repeated.map(
      ({ path, position }) =>
        `${file}:${position.line}: ${JSON.stringify(path.at(-1))} is there twice; the last one counts, as in Python`,
    ),
    ...literal.passedOver.map((line) => `"${line}" is not run`),
  ];
  return { ok: true, table, written, reporter, warnings };
}

/** One entry for each alias, or for each of its replicas; `ways` has their paths in the literal. */
function entriesOf(value: unknown): { entries?: unknown[]; ways: KeyPath[] } {
  if (!isTable(value)) return { ways: [] };
  const found = Object.entries(value).flatMap(([id, given]): { entry: unknown; way: KeyPath }[] => {
    const named = (entry: unknown, way: KeyPath) => ({
      entry: isTable(entry) ? { endpoint_id: id, ...withoutNone(entry) } : entry,
      way,
    });
    if (!Array.isArray(given)) return [named(given, [assigned, id])];
    return given.map((replica, i) => named(replica, [assigned, id, i]));
  });
  return { entries: found.map(({ entry }) => entry), ways: found.map(({ way }) => way) };
}

/** Drops None, which Python writes for a missing value. */
function withoutNone(entry: Table): Table {
  return Object.fromEntries(Object.entries(entry).filter(([, value]) => value !== null));
}
