import type { InferenceSpec } from './spec/run-spec.ts';

/** The servers that a run file names, for people; null where it names none. */
export function namedServers(inference: InferenceSpec): string | null {
  if (inference.kind === 'module') return null;
  const { url, endpoints } = inference;
  if (endpoints !== null) return `the servers of "${endpoints.id}" in ${endpoints.path}`;
  if (url === null) return null;
  const urls = [url].flat();
  return urls.length === 1 ? `the server at ${urls[0]}` : `${urls.length} servers: ${urls.join(', ')}`;
}
