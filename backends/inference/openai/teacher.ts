import type { TeacherSpec } from '../../../config/run-spec.ts';
import { type Endpoint, openEndpoint } from './endpoint.ts';
import { readEndpointModels } from './endpoints-file.ts';
import type { ServerAddress } from '../model-server.ts';
import { OpenAiInference } from './openai.ts';
import { ServerPool } from '../pool.ts';
import type { Inference } from '../types.ts';

/** A teacher with servers of its own: it receives messages to generate, and token ids to score. */
export interface TeacherServers {
  readonly endpoint: Endpoint;
  readonly scorer: Pick<Inference, 'promptLogprobs'> & { promptLogprobs: NonNullable<Inference['promptLogprobs']> };
  /** The model and its place, for people. */
  readonly name: string;
}

/** Servers of a teacher; none if it is a folder. Throws `ConfigInvalid` for an invalid endpoints file. */
export function teacherServers({ urls, endpoints, model, apiKeyVar, headers }: TeacherSpec): NamedServer[] {
  if (endpoints !== null) return readEndpointModels(endpoints);
  return urls.map((url) => ({ url, apiKeyVar, headers, headersFromEnv: {}, model: model ?? '' }));
}

export type NamedServer = ServerAddress & { readonly model: string };

const opened = new Map<string, TeacherServers>();

/** One connection to a teacher per process: calls share connections and knowledge about the servers. */
export function openTeacher(spec: TeacherSpec, say: (line: string) => void = () => undefined): TeacherServers {
  const servers = teacherServers(spec);
  const options = {
    what: 'The teacher ([teacher] url)',
    timeoutMs: spec.timeoutS * 1000,
    maxConcurrent: spec.maxConcurrent,
    say,
  };
  const key = JSON.stringify([servers, spec.timeoutS, spec.maxConcurrent]);
  const known = opened.get(key);
  if (known) return known;
  const remedy = 'Is the teacher running, and is that its address?';
  const made: TeacherServers = {
    endpoint: openEndpoint(
      servers.map(({ url, ...server }) => ({ ...server, baseUrl: url })),
      options,
    ),
    scorer: new OpenAiInference(new ServerPool(servers, { ...options, provider: 'cpu', remedy })),
    name: `${servers[0]?.model ?? ''} at ${[...new Set(servers.map(({ url }) => url))].join(', ')}`,
  };
  opened.set(key, made);
  return made;
}
