import { z } from 'zod';
import { accessDefaults, clientTypes, providers } from '../../core/eval/model-access.ts';
import type { KeyPath } from '../toml/positions.ts';
import { rotate } from '../toml/report-secrets.ts';
import type { Reporter } from '../toml/reporter.ts';
import { looksSecret } from '../toml/secrets.ts';
import { inSpec, setting, specFields, type WrittenIn } from '../settings/setting.ts';
import { isTable } from '../toml/tables.ts';
import { choice, text } from '../toml/values.ts';

/** Settings of models, their servers and their keys, shared by several kinds of files. */

export const clientType = () => choice(...clientTypes);
export const baseUrl = (such = 'https://api.openai.com/v1') =>
  z.url({ protocol: /^https?$/ }).meta({ expected: `a URL such as "${such}"` });
/** One server, or several that share the work. */
export const serverUrls = () =>
  z
    .union([serverUrl(), z.array(serverUrl()).min(1)])
    .meta({ expected: 'a URL such as "http://127.0.0.1:8000", or a list of such' });
const serverUrl = () => z.url({ protocol: /^https?$/ }).meta({ expected: 'a URL such as "http://127.0.0.1:8000"' });
const expectedVariable = 'the name of an environment variable such as "OPENAI_API_KEY"';
export const variableName = () =>
  z
    .string()
    .refine((name) => keyOf(name)?.variable !== undefined)
    .meta({ expected: expectedVariable });
const headerName = () => z.string().regex(/^[!#$%&'*+.^`|~\w-]+$/);
export const headerTable = () =>
  z
    .record(headerName(), z.string().regex(/^[\t\x20-\x7e\x80-\xff]*$/))
    .meta({ expected: 'a table of texts of one line, by name of the header: letters, digits and "-"' });
/** Header → the name of the environment variable with its value. */
export const headersFromEnv = () =>
  z
    .record(headerName(), variableName())
    .meta({ expected: 'a table of names of environment variables, by name of the header' });
/** The same form as on the command line: `"Name: value"`, or several. */
export const headerList = (what: string) => {
  const line = z.string().regex(/^[^:\s]+:\s*\S/);
  return z.union([line, z.array(line)]).meta({ expected: `a text "NAME: ${what}", or a list of such` });
};

/**
 * The model and servers of an evaluation or a prompt optimization. Nulls are filled from the registry of endpoints,
 * else from the provider.
 */
export const access = {
  endpoint_id: setting(text(), 'an alias of the registry, in place of `model`'),
  model: setting(text(), 'a model’s id, or an alias of the registry'),
  endpoints_path: setting(
    text(),
    'the registry, endpoints.toml or endpoints.py, from the folder of the file that names it, else from the working folder; not there = no aliases',
    { neutral: accessDefaults.endpointsPath },
  ),
  provider: setting(choice(...providers), 'where servers of these are is known by name'),
  api_base_url: setting(baseUrl(), 'of its API'),
  api_key_var: setting(variableName(), 'the name of the environment variable with the key'),
  api_client_type: setting(clientType(), 'how its API is spoken to', { as: 'clientType' }),
  headers: setting(headerTable(), 'sent with every request', { neutral: {} }),
  headers_from_state: setting(headerTable(), 'header → column of the rollout’s state that gives its value', {
    neutral: { ...accessDefaults.headersFromState },
  }),
};
export const ModelAccessSpec = z
  .strictObject(specFields(access))
  .refine(({ endpointId, model }) => (endpointId === null) !== (model === null), 'either endpointId or model');
export type ModelAccessSpec = z.infer<typeof ModelAccessSpec>;

/** Fills in the default model. */
export function accessSpec(written: Partial<WrittenIn<typeof access>>): ModelAccessSpec {
  const { endpointId, model, ...spec } = inSpec(access, written);
  return { ...spec, endpointId, model: endpointId === null ? (model ?? accessDefaults.model) : null };
}

/** `"Name: value"`, one or several, as a table. */
export function headersFrom(lines: string | readonly string[] | undefined): Record<string, string> {
  const list = lines === undefined ? [] : typeof lines === 'string' ? [lines] : lines;
  return Object.fromEntries(
    list.map((line) => [line.slice(0, line.indexOf(':')).trim(), line.slice(line.indexOf(':') + 1).trim()]),
  );
}

/** Common placeholders for servers without a key. */
const placeholders = new Set(['empty', 'none', 'null', 'local', 'dummy', 'na', 'n/a', 'no-key', 'not-needed', 'nokey', 'x', 'token-abc123', 'sk-no-key-required']); // prettier-ignore

/**
 * Reads a text in the place of a key: the name of an environment variable, a placeholder (`variable: null`), or, with
 * undefined, a literal key. A name has letters, digits and underscores, in capitals with at most 20 characters or with
 * an underscore, and few digits. Keys are long, of mixed case, and full of digits.
 */
export function keyOf(value: string): { readonly variable: string | null } | undefined {
  if (placeholders.has(value.toLowerCase())) return { variable: null };
  if (looksSecret(value) || !/^[A-Za-z_]\w{0,63}$/.test(value)) return undefined;
  const digits = value.replaceAll(/\D/g, '').length;
  const isName = value.includes('_') || (value === value.toUpperCase() && value.length <= 20);
  return isName && digits <= 4 ? { variable: value } : undefined;
}

/** The named variable, or the default one; null = no key is needed. */
export function keyVariable(written: string | undefined, fallback: string | null): string | null {
  return written === undefined ? fallback : (keyOf(written)?.variable ?? null);
}

/** Refuses a literal key without repeating it. */
export function reportLiteralKey(path: KeyPath, reporter: Reporter): void {
  reporter.add({
    path,
    expected: `${expectedVariable}, or "EMPTY" for a server that asks for no key`,
    received: 'a literal key, it seems (not repeated here)',
    suggestion: rotate,
  });
}

const secretHeader = /^(?:authorization|proxy-authorization|cookie)$|(?:api|auth|access)[-_]?(?:key|token)|secret/i;

function isSecretHeader(name: string, said: unknown): boolean {
  return secretHeader.test(name) || (typeof said === 'string' && looksSecret(said));
}

/** Names of the headers that carry a key. */
export function secretHeadersIn(headers: Readonly<Record<string, string>>): string[] {
  return Object.entries(headers).flatMap(([name, said]) => (isSecretHeader(name, said) ? [name] : []));
}

/** Refuses headers with a key in a file. `path` is that of the table. */
export function reportSecretHeaders(value: unknown, path: KeyPath, reporter: Reporter): void {
  const entries: [string | number, unknown][] = isTable(value)
    ? Object.entries(value)
    : (Array.isArray(value) ? value : []).map((line, i) => [i, line]);
  for (const [key, given] of entries) {
    const [name, said] = typeof key === 'string' ? [key, given] : [String(given).split(':')[0]!.trim(), given];
    if (!isSecretHeader(name, said)) continue;
    reporter.add({
      path: [...path, key],
      expected: 'no header with a key in it: the key of api_key_var is sent by itself',
      received: `${/^[\w-]{1,40}$/.test(name) && !looksSecret(name) ? name : 'a header'} with a value (not repeated here)`,
      suggestion: rotate,
    });
  }
}
