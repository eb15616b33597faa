import { evaluationsMax } from '../../core/limits.ts';
import { withNames } from '../settings/environments.ts';
import { inSpec } from '../settings/setting.ts';
import {
  course,
  type EvalEntry,
  evalEntry,
  EvalFile,
  evalIgnored,
  EvalRunSpec,
  limitedSpec,
  evalSynonyms,
  evaluated,
  type EvaluationSpec,
  sweptTables,
} from './eval-file.ts';
import { accessSpec, headersFrom, reportSecretHeaders, secretHeadersIn } from '../models/model-access.ts';
import { formatPath, type KeyPath } from '../toml/positions.ts';
import type { Problem } from '../toml/problems.ts';
import { parseToml, type TomlFile } from '../toml/parse-toml.ts';
import { type FileOptions, readFile } from '../toml/read-file.ts';
import { reportSecrets, rotateTyped } from '../toml/report-secrets.ts';
import { quoted, type Reporter } from '../toml/reporter.ts';
import { mergedSampling, type RequestSampling, samplingWarnings, withTemplateSwitches } from './request-sampling.ts';
import { findSecrets } from '../toml/secrets.ts';
import { expectedAt } from '../toml/schema-reader.ts';
import { isTable, type Table } from '../toml/tables.ts';
import { fromVerifiersEval, shownAsVerifiersEval } from './verifiers-eval-file.ts';

export type ParsedEvalFile =
  | { readonly ok: true; readonly spec: EvalRunSpec; readonly warnings: string[] }
  | { readonly ok: false; readonly problems: Problem[] };

interface EvalFileOptions extends FileOptions {
  /** Settings of the command line, in the file's words: they hold for each evaluation, whatever the file says. */
  readonly settings?: Table;
}

/**
 * Reads a file of evaluations. Settings at its top apply to each `[[eval]]` that does not override them. An
 * `[[ablation]]` is one evaluation for each combination of its sweep. Reports all errors at once.
 */
export function parseEvalFile(
  source: string | TomlFile,
  { settings = {}, ...options }: EvalFileOptions,
): ParsedEvalFile {
  const { file, said } = inOwnWords(typeof source === 'string' ? parseToml(source, options.file) : source);
  const read = readFile(file, options, { schema: EvalFile, synonyms: evalSynonyms });
  if (!read.ok) return read;
  const { table, written, reporter } = read;
  reportSecrets(written, reporter);
  const evals = table === undefined ? undefined : (table as EvalFile);
  const combined = evals === undefined ? [] : combine(evals, reporter);
  for (const { path, entry } of levelsOf(written)) {
    reportSecretHeaders(entry['headers'], [...path, 'headers'], reporter);
    reportSecretHeaders(entry['header'], [...path, 'header'], reporter);
  }
  const typed = readOver(settings, reporter);
  if (reporter.problems.length > 0) return { ok: false, problems: reporter.inOrder() };
  const entries = combined.map((entry) => overruled(entry, typed));
  const evaluations = withNames(entries.map((entry) => ({ ...entry, id: idOf(entry)! }))).map(evaluationOf);
  return {
    ok: true,
    spec: EvalRunSpec.parse({ schemaVersion: 1, evaluations }),
    warnings: [...said, ...warningsOf(written)],
  };
}

/** Translates a file of verifiers 0.4 or of prime-rl’s `eval` into our words. */
function inOwnWords(file: TomlFile): { readonly file: TomlFile; readonly said: readonly string[] } {
  if (file.table === undefined || shownAsVerifiersEval(file.table) === undefined) return { file, said: [] };
  const { table, warnings } = fromVerifiersEval(file.table);
  return { file: { ...file, table }, said: warnings };
}

type Entry = EvalEntry & { readonly [key: string]: unknown };

function readOver(settings: Table, reporter: Reporter): Entry {
  // Typed values, like written ones, end up in Temporal's history and in metadata.json.
  const headers = isTable(settings['headers']) ? settings['headers'] : {};
  const inHeaders = secretHeadersIn(headers as Record<string, string>).map((name): KeyPath => ['headers', name]);
  const known = new Set(inHeaders.map((path) => formatPath(path)));
  for (const path of [...inHeaders, ...findSecrets(settings).filter((found) => !known.has(formatPath(found)))]) {
    reporter.fromCommandLine(path, 'no secrets: what is typed is stored with the results, and in the history of the shell', 'what looks like a literal secret (not repeated here)', rotateTyped); // prettier-ignore
  }
  const read = evalEntry.safeParse(settings);
  if (read.success) return readSampling(read.data, [], reporter);
  for (const { path, message } of read.error.issues) {
    const [key] = path as KeyPath;
    const expected = expectedAt(evalEntry, key === undefined ? [] : [key]) ?? message;
    const value = settings[String(key)];
    const received = typeof value === 'string' ? quoted(value) : (JSON.stringify(value) ?? 'nothing');
    reporter.fromCommandLine(path as KeyPath, expected, received);
  }
  return {};
}

/** Typed values win; tables are merged with those of the file key by key. */
function overruled(
  entry: Entry,
  { sampling, max_tokens, temperature, args, env_args, env_vars = [], extra_env_kwargs, ...typed }: Entry,
): Entry {
  const own = samplingOf({
    ...(max_tokens === undefined ? {} : { max_tokens }),
    ...(temperature === undefined ? {} : { temperature }),
    ...(sampling === undefined ? {} : { sampling }),
  });
  const { max_tokens: _, temperature: __, ...rest } = entry;
  const laid = overlaid(rest, typed, new Set(Object.keys(typed)));
  return {
    ...laid,
    sampling: mergedSampling(samplingOf(entry), own),
    args: { ...entry.args, ...env_args, ...args },
    env_vars: [...(entry.env_vars ?? []), ...env_vars],
    extra_env_kwargs: { ...entry.extra_env_kwargs, ...extra_env_kwargs },
  };
}

/** Every evaluation of the file, merged with the shared settings. Relations between fields are reported here. */
function combine({ eval: evals = [], ablation: ablations = [], ...globals }: EvalFile, reporter: Reporter): Entry[] {
  if (evals.length === 0 && ablations.length === 0 && !reporter.has(['eval']) && !reporter.has(['ablation'])) {
    reporter.add({ path: ['eval'], expected: 'at least one [[eval]] or [[ablation]]', received: 'nothing' });
  }
  const shared = readSampling(globals, [], reporter);
  const written = evals.map((entry, i) => {
    const path = ['eval', i];
    const own = readSampling(entry, path, reporter);
    return finished(overlaid(shared, own, new Set(Object.keys(own))), path, reporter);
  });
  const swept = ablations.flatMap(({ sweep, ...fixed }, i) => {
    const path = ['ablation', i];
    return expanded(shared, readSampling(fixed, path, reporter), sweep ?? {}, path, reporter);
  });
  return [...written, ...swept];
}

/** `explicit`: the fields that the evaluation itself has. Its own alias replaces a shared model, and vice versa. */
function overlaid(shared: Entry, own: Entry, explicit: ReadonlySet<string>): Entry {
  const { model, endpoint_id, ...rest } = { ...shared, ...own };
  const isAlias = explicit.has('endpoint_id') && !explicit.has('model');
  const isModel = explicit.has('model') && !explicit.has('endpoint_id');
  return {
    ...rest,
    ...(model === undefined || isAlias ? {} : { model }),
    ...(endpoint_id === undefined || isModel ? {} : { endpoint_id }),
  };
}

/** `[sampling]` and `sampling_args` are one field; the chat template's switches are expanded. */
function readSampling({ sampling, sampling_args, ...entry }: Entry, path: KeyPath, reporter: Reporter): Entry {
  if (sampling !== undefined && sampling_args !== undefined) {
    reporter.addRelation(
      [
        [...path, 'sampling_args'],
        [...path, 'sampling'],
      ],
      {
        expected: 'only one of sampling and sampling_args: they are names of one field',
        received: 'both',
      },
    );
  }
  const given = sampling ?? sampling_args;
  return given === undefined ? entry : { ...entry, sampling: withTemplateSwitches(given) };
}

interface Dimension {
  readonly path: readonly string[];
  readonly values: readonly unknown[];
}

/** The evaluations of an ablation: the last dimension varies fastest. */
function expanded(shared: Entry, own: Entry, sweep: Table, path: KeyPath, reporter: Reporter): Entry[] {
  const tables = sweptTables.filter((key) => isTable(sweep[key]));
  const dimensions: Dimension[] = [
    ...Object.entries(sweep)
      .filter(([, values]) => Array.isArray(values))
      .map(([key, values]) => ({ path: [key], values: values as unknown[] })),
    ...tables.flatMap((table) =>
      Object.entries(sweep[table] as Record<string, unknown[]>).map(([key, values]) => ({
        path: [table, key],
        values,
      })),
    ),
  ];
  const at = [...path, 'sweep'];
  if (dimensions.length === 0) {
    if (reporter.has(at)) return [];
    const expected = 'an [ablation.sweep] with at least one list of values; without one, write [[eval]]';
    reporter.addRelation([at, path], { expected, received: 'nothing to sweep' });
    return [];
  }
  for (const [table, key] of dimensions.flatMap(({ path }) => (path.length === 2 ? [path] : []))) {
    const fixed = ['args', 'env_args'].includes(table!) ? { ...own.args, ...own.env_args } : (own[table!] as Table);
    if (fixed === undefined || !Object.hasOwn(fixed, key!)) continue;
    const expected = `${key} either fixed in [[ablation]] or swept, not both`;
    reporter.add({ path: [...at, table!, key!], expected, received: 'both' });
  }
  const count = dimensions.reduce((product, { values }) => product * values.length, 1);
  if (count > evaluationsMax) {
    const received = `${count} combinations`;
    reporter.addRelation([at, path], {
      expected: `at most ${evaluationsMax} evaluations of one [[ablation]]`,
      received,
    });
    return [];
  }
  const explicit = new Set([...Object.keys(own), ...dimensions.map(({ path: [key] }) => key!)]);
  const fixed = overlaid(shared, own, explicit);
  return combinations(dimensions).map((values, i) => {
    let entry = fixed;
    for (const [
      d,
      {
        path: [key, inner],
      },
    ] of dimensions.entries()) {
      entry =
        inner === undefined
          ? withSwept(entry, key!, values[d])
          : { ...entry, [key!]: { ...(entry[key!] as Table), [inner]: values[d] } };
    }
    // A broken relation breaks in all of them, so only the first reports it.
    return i === 0 ? finished(entry, path, reporter) : finished(entry, path, null);
  });
}

function withSwept(entry: Entry, key: string, value: unknown): Entry {
  if (key !== 'sampling' && key !== 'sampling_args') return { ...entry, [key]: value };
  const over = withTemplateSwitches(value as RequestSampling);
  return { ...entry, sampling: mergedSampling(entry.sampling ?? {}, over) };
}

function combinations(dimensions: readonly Dimension[]): unknown[][] {
  let all: unknown[][] = [[]];
  for (const { values } of dimensions) all = all.flatMap((start) => values.map((value) => [...start, value]));
  return all;
}

/** The entry with one name for its environment and one table of arguments. */
function finished(entry: Entry, path: KeyPath, reporter: Reporter | null): Entry {
  const { id, env_id, args = {}, env_args = {}, ...rest } = entry;
  const say = (fields: readonly string[], expected: string, received: string): void => {
    const paths = fields.map((field) => [...path, field]);
    if (reporter && !paths.some((at) => reporter.has(at))) reporter.addRelation(paths, { expected, received });
  };
  if (id !== undefined && env_id !== undefined) {
    say(['env_id', 'id'], 'only one of id and env_id: they are names of one field', 'both');
  }
  const both = Object.keys(args).filter((key) => Object.hasOwn(env_args, key));
  if (both.length > 0) {
    say(
      ['args', 'env_args'],
      'each argument in only one of args and env_args: they are names of one field',
      both.join(', '),
    );
  }
  const made = { ...rest, id: id ?? env_id, args: { ...env_args, ...args } } as Entry;
  if (idOf(made) === undefined && reporter && !reporter.has([...path, 'id']) && !reporter.has([...path, 'env_id'])) {
    const expected = 'id = "…": an environment such as "reverse-text" or "owner/reverse-text"';
    reporter.add({ path: [...path, 'id'], expected, received: 'nothing' });
  }
  if (entry.model !== undefined && entry.endpoint_id !== undefined) {
    say(['endpoint_id', 'model'], 'only one of endpoint_id and model: an alias says which model', 'both');
  }
  return made;
}

/** The environment's id; of a verifiers v1 environment that of its taskset. */
function idOf({ id, taskset }: Entry): string | undefined {
  if (id !== undefined) return id;
  const named = taskset?.['id'] ?? taskset?.['taskset_id'];
  return typeof named === 'string' && named !== '' ? named : undefined;
}

function evaluationOf(entry: Entry & { readonly id: string; readonly name: string }): EvaluationSpec {
  const { id, name, num_workers: workers } = entry;
  const states = { ...headersFrom(entry.header_from_state), ...entry.headers_from_state };
  return {
    environment: { id, name, ...inSpec(evaluated, entry) },
    model: accessSpec({
      ...entry,
      headers: { ...entry.headers, ...headersFrom(entry.header) },
      headers_from_state: Object.keys(states).length > 0 ? states : undefined,
    }),
    sampling: samplingOf(entry),
    ...inSpec(course, entry),
    ...limitedSpec(entry),
    numWorkers: workers === undefined || workers === 'auto' ? null : workers,
    resume: entry.resume_path !== undefined ? { path: entry.resume_path } : entry.resume === true ? 'newest' : null,
    hub: entry.save_to_hf_hub === true ? { dataset: entry.hf_hub_dataset_name ?? null } : null,
  };
}

/** The two fields with a place of their own count unless the table has them. */
function samplingOf({ max_tokens, temperature, sampling }: Entry): RequestSampling {
  const given: RequestSampling = {};
  if (max_tokens !== undefined) given['max_tokens'] = max_tokens;
  if (temperature !== undefined) given['temperature'] = temperature;
  return Object.assign(given, sampling);
}

/** Each place of the file for an evaluation's fields. */
function levelsOf(written: Table): { readonly path: KeyPath; readonly entry: Table }[] {
  const lists = ['eval', 'ablation'].flatMap((key) => {
    const list = Array.isArray(written[key]) ? (written[key] as unknown[]) : [];
    return list.flatMap((entry, i) => (isTable(entry) ? [{ path: [key, i], entry }] : []));
  });
  return [{ path: [], entry: written }, ...lists];
}

function warningsOf(written: Table): string[] {
  const levels = levelsOf(written);
  const ignored = evalIgnored
    .filter(([key]) => levels.some(({ entry }) => key in entry))
    .map(([key, why]) => `${key} has no effect here: ${why}`);
  const sampling = levels.flatMap(({ path, entry }) =>
    ['sampling', 'sampling_args'].flatMap((key) =>
      isTable(entry[key]) ? samplingWarnings(entry[key], [...path, key]) : [],
    ),
  );
  const twice = levels.flatMap(({ path, entry }) => {
    const table = entry['sampling'] ?? entry['sampling_args'];
    return ['max_tokens', 'temperature']
      .filter((key) => key in entry && isTable(table) && key in table)
      .map((key) => {
        const said = formatPath([...path, key]);
        return `${said} = ${quoted(String(entry[key]))} does not count beside that of the sampling table`;
      });
  });
  return [...ignored, ...sampling, ...twice];
}
