import { unwatchFile, watchFile } from 'node:fs';
import { RatchetError } from '../../../core/errors.ts';
import type { EndpointsRef } from '../../../config/run-spec.ts';
import { parseEndpoints } from '../../../config/models/parse-endpoints.ts';
import { formatProblems } from '../../../config/toml/problems.ts';
import { grantByTrustedFile, linesOfServer } from '../../../host/grants.ts';
import { trustedFile } from '../../../host/trusted-files.ts';
import { quotingNothing } from '../../untold.ts';
import { serverKeysOf, type ServerAddress } from '../model-server.ts';
import { readRegularSync, whyUnreadable } from '../../../host/regular-file.ts';

/** Interval of checks of the file. */
const lookMs = 2_000;

/** The servers of an alias in the current `endpoints.toml`. Throws `ConfigInvalid`. */
export function readEndpoints(ref: EndpointsRef): ServerAddress[] {
  // A run asks for its own versions by name, whatever model the file says.
  return readEndpointModels(ref).map((server) => ({ ...server, model: null }));
}

/** The servers of an alias with the file's model. */
export function readEndpointModels(ref: EndpointsRef): (ServerAddress & { readonly model: string })[] {
  const text = readText(ref.path);
  const expected = `an endpoints.toml with the alias "${ref.id}" and servers that a run can train with`;
  const servers = quotingNothing(ref.path, expected, () => replicasIn(text, ref));
  grantByTrustedFile(servers.flatMap((server) => linesOfServer({ url: server.url, keys: serverKeysOf(server) })));
  return servers;
}

function replicasIn(text: string, { path, id }: EndpointsRef): (ServerAddress & { readonly model: string })[] {
  const parsed = parseEndpoints(text, { file: path });
  if (!parsed.ok) throw new RatchetError('ConfigInvalid', formatProblems(parsed.problems));
  const { endpoints } = parsed.spec;
  const found = endpoints.find((endpoint) => endpoint.id === id);
  if (!found) {
    const known = endpoints.map((endpoint) => endpoint.id).join(', ');
    throw new RatchetError(
      'ConfigInvalid',
      `${path}: expected an [[endpoint]] with endpoint_id = "${id}", found ${known}.`,
    );
  }
  const strange = found.replicas.find(({ clientType }) => clientType !== null && !speaksOpenAi.has(clientType));
  if (strange) {
    throw new RatchetError(
      'ConfigInvalid',
      `${path}: "${id}" has a server of type "${strange.clientType}", which gives no token ids: no run can train with it. Expected ${[...speaksOpenAi].join(', ')}.`,
    );
  }
  return found.replicas.map(({ model, baseUrl, apiKeyVar, headers }) => {
    return { url: baseUrl, apiKeyVar, headers, headersFromEnv: {}, model };
  });
}

const speaksOpenAi: ReadonlySet<string> = new Set([
  'openai_completions',
  'openai_chat_completions',
  'openai_chat_completions_token',
  'renderer',
]);

/** Watches the file for changes. An unreadable file changes nothing, and is reported. Returns a function that stops. */
export function watchEndpoints(
  ref: EndpointsRef,
  changed: (servers: ServerAddress[]) => void,
  say: (line: string) => void,
): () => void {
  const look = (): void => {
    try {
      changed(readEndpoints(ref));
    } catch (error) {
      if (!(error instanceof RatchetError)) throw error;
      say(`the inference servers stay as they are: ${error.message}`);
    }
  };
  watchFile(ref.path, { interval: lookMs, persistent: false }, look);
  return () => unwatchFile(ref.path, look);
}

function readText(path: string): string {
  const file = trustedFile(path, 'The endpoints file');
  try {
    return readRegularSync(file).toString('utf8');
  } catch (cause) {
    throw new RatchetError(
      'ConfigInvalid',
      `${path}: ${whyUnreadable(cause)}; expected an endpoints.toml with the inference servers, on every machine with workers.`,
      { cause },
    );
  }
}
