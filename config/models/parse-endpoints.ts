import { stringify } from 'smol-toml';
import { z } from 'zod';
import { present } from '../../core/present.ts';
import { baseUrl, clientType, headerTable, keyOf, reportLiteralKey, reportSecretHeaders } from './model-access.ts';
import { type EndpointSpec, EndpointsSpec } from './endpoints-spec.ts';
import type { KeyPath } from '../toml/positions.ts';
import type { Problem } from '../toml/problems.ts';
import { parsePythonEndpoints } from './python-endpoints.ts';
import type { TomlFile } from '../toml/parse-toml.ts';
import { type FileOptions, readFile } from '../toml/read-file.ts';
import type { Reporter } from '../toml/reporter.ts';
import { looksSecret } from '../toml/secrets.ts';
import type { Table } from '../toml/tables.ts';
import { text } from '../toml/values.ts';

/** A registry of endpoints: `endpoints.toml`, or the literal in an `endpoints.py`, which is never run. */

const aKey = () =>
  z.string().meta({ expected: 'the name of the environment variable with the key, such as "OPENAI_API_KEY"' });
const entry = z.strictObject({
  endpoint_id: text(),
  model: text(),
  url: baseUrl().optional(),
  api_base_url: baseUrl().optional(),
  key: aKey().optional(),
  api_key_var: aKey().optional(),
  type: clientType().optional(),
  api_client_type: clientType().optional(),
  headers: headerTable().optional(),
  extra_headers: headerTable().optional(),
});
type Entry = z.infer<typeof entry>;
const EndpointsFile = z.strictObject({
  endpoint: z.array(entry).meta({ expected: 'a list of tables: [[endpoint]]' }).default([]),
});

const synonyms = {
  endpoints: 'endpoint',
  id: 'endpoint_id',
  alias: 'endpoint_id',
  base_url: 'url',
  api_base: 'url',
  key_var: 'key',
  client_type: 'type',
  model_id: 'model',
};

export type ParsedEndpoints =
  | { readonly ok: true; readonly spec: EndpointsSpec; readonly warnings: string[] }
  | { readonly ok: false; readonly problems: Problem[] };

/** Reads a registry; from a `.py` file the literal `ENDPOINTS = {…}`. Reports all problems at once. */
export function parseEndpoints(written: string | TomlFile, options: FileOptions): ParsedEndpoints {
  const reading = { schema: EndpointsFile, synonyms };
  const isPython = typeof written === 'string' && options.file.endsWith('.py');
  const read = isPython ? parsePythonEndpoints(written, options, reading) : readFile(written, options, reading);
  if (!read.ok) return read;
  const { table, reporter } = read;
  const warnings = [...read.warnings];
  const entries = (table?.['endpoint'] ?? []) as Entry[];
  reportKeys(read.written, reporter);
  if (entries.length === 0 && reporter.problems.length === 0) {
    const expected = isPython ? 'at least one alias in ENDPOINTS' : 'at least one [[endpoint]]';
    reporter.add({ path: ['endpoint'], expected, received: 'nothing' });
  }
  const replicas = new Map<string, EndpointSpec[]>();
  for (const [i, given] of entries.entries()) {
    const known = replicas.get(given.endpoint_id) ?? [];
    replicas.set(given.endpoint_id, [...known, endpointOf(given, ['endpoint', i], reporter)]);
  }
  for (const [id, { length }, models] of [...replicas].map(([id, list]) => [id, list, modelsOf(list)] as const)) {
    if (models.length > 1) {
      warnings.push(
        `the ${length} replicas of "${id}" name different models (${models.join(', ')}), and are asked in turn`,
      );
    }
  }
  if (reporter.problems.length > 0) return { ok: false, problems: reporter.inOrder() };
  const endpoints = [...replicas].map(([id, list]) => ({ id, replicas: list }));
  return { ok: true, spec: EndpointsSpec.parse({ schemaVersion: 1, endpoints }), warnings };
}

function modelsOf(list: readonly EndpointSpec[]): string[] {
  return [...new Set(list.map(({ model }) => model))];
}

/** Checks the file's own text, so that a key is refused whatever else is wrong with its entry. */
function reportKeys(written: Table, reporter: Reporter): void {
  const list = Array.isArray(written['endpoint']) ? (written['endpoint'] as Table[]) : [];
  for (const [i, given] of list.entries()) {
    for (const [name, value] of Object.entries(given ?? {})) {
      const path = ['endpoint', i, name];
      const isKey = /^(?:api_?)?key(?:_var)?$/i.test(name);
      if (typeof value === 'string' && (isKey ? keyOf(value) === undefined : looksSecret(value))) {
        reportLiteralKey(path, reporter);
      }
      if (name.endsWith('headers')) reportSecretHeaders(value, path, reporter);
    }
  }
}

function endpointOf(given: Entry, path: KeyPath, reporter: Reporter): EndpointSpec {
  const oneOf = (short: keyof Entry, long: keyof Entry): Entry[keyof Entry] => {
    const [one, other] = [given[short], given[long]];
    if (one !== undefined && other !== undefined && JSON.stringify(one) !== JSON.stringify(other)) {
      reporter.addRelation(
        [
          [...path, long],
          [...path, short],
        ],
        {
          expected: `the same as ${short}, or only one of the two: they are names of one field`,
          received: 'another value',
        },
      );
    }
    return one ?? other;
  };
  const url = oneOf('url', 'api_base_url') as string | undefined;
  const key = oneOf('key', 'api_key_var') as string | undefined;
  for (const [name, value, example] of [
    ['url', url, '"https://api.openai.com/v1"'],
    ['key', key, '"OPENAI_API_KEY", or "EMPTY" for a server that asks for no key'],
  ] as const) {
    if (value !== undefined) continue;
    reporter.add({ path: [...path, name], expected: `${name} = ${example}`, received: 'nothing' });
  }
  return {
    model: given.model,
    baseUrl: url ?? '',
    apiKeyVar: (key === undefined ? null : keyOf(key)?.variable) ?? null,
    clientType: (oneOf('type', 'api_client_type') as EndpointSpec['clientType'] | undefined) ?? null,
    headers: (oneOf('headers', 'extra_headers') as Record<string, string> | undefined) ?? {},
  };
}

/** The registry as an `endpoints.toml`, in the words that the samples use. */
export function endpointsToml({ endpoints }: EndpointsSpec): string {
  return stringify({
    endpoint: endpoints.flatMap(({ id, replicas }) =>
      replicas.map(({ model, baseUrl, apiKeyVar, clientType, headers }) => ({
        endpoint_id: id,
        model,
        url: baseUrl,
        key: apiKeyVar ?? 'EMPTY',
        ...present({ type: clientType ?? undefined, headers: Object.keys(headers).length === 0 ? undefined : headers }),
      })),
    ),
  });
}
