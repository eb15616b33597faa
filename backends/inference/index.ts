import { inferenceTraits, startedWith } from '../../core/kinds/inference.ts';
import { RatchetError } from '../../core/errors.ts';
import type { InferenceSpec, RunSpec } from '../../config/run-spec.ts';
import { grantHere, linesOfServer } from '../../host/grants.ts';
import { EmbeddedInference } from './embedded.ts';
import { readEndpoints, watchEndpoints } from './openai/endpoints-file.ts';
import { examineServer, type ServerReport } from './openai/examine-server.ts';
import { serverKeysOf, ModelServer, type ServerAddress } from './model-server.ts';
import { ModuleInference } from './module.ts';
import { OpenAiInference } from './openai/openai.ts';
import { type PoolOptions, ServerPool } from './pool.ts';
import { teacherServers } from './openai/teacher.ts';
import { TinkerInference } from './tinker.ts';
import type { Inference } from './types.ts';
import { VllmInference } from './vllm/vllm.ts';
import { VllmServer } from './vllm/vllm-server.ts';
import { askWeightsAgent } from './vllm/weights-agent-client.ts';

export { examineReflection, type ReflectionReport } from './openai/examine-reflection.ts';
export type { ServerReport } from './openai/examine-server.ts';
export { examineTeacher, type TeacherReport } from './openai/examine-teacher.ts';
export {
  type Endpoint,
  type EndpointRequest,
  type EndpointServer,
  openEndpoint,
  sharedEndpoint,
} from './openai/endpoint.ts';
export type { ServerAddress } from './model-server.ts';
export { startWeightsAgent } from './vllm/weights-agent.ts';
export { meanDifference } from './all-servers.ts';
export { openTeacher, type TeacherServers } from './openai/teacher.ts';
export { hasSameTokenizer } from './openai/teacher-tokens.ts';
export type {
  ChatRequest,
  ChatSample,
  HoldOutcome,
  Inference,
  Sample,
  SamplePlace,
  SampleRequest,
  ScoreRequest,
  ServerDrift,
} from './types.ts';

/**
 * `defaultUrl` is the server of that kind that was started on this machine, '' without one. `say` receives messages
 * about the servers.
 */
export function openInference(
  spec: InferenceSpec,
  defaultUrl: string,
  say: (line: string) => void = () => undefined,
): Inference {
  switch (spec.kind) {
    case 'embedded':
      return new EmbeddedInference(openPool(spec, defaultUrl, say));
    case 'openai':
      return new OpenAiInference(openPool(spec, defaultUrl, say));
    case 'tinker':
      return new TinkerInference(spec, say);
    case 'vllm':
      return new VllmInference(openPool(spec, defaultUrl, say, vllmServers(spec)));
    case 'module':
      return new ModuleInference(spec);
    default:
      return spec satisfies never;
  }
}

const lookMs = 10_000;

/** Throws the reason why a server cannot be asked for turns. */
export async function lookAtServer(address: ServerAddress): Promise<void> {
  const server = new ModelServer(address, { timeoutMs: lookMs, provider: 'cpu' });
  try {
    await server.look();
  } finally {
    server.close();
  }
}

/**
 * Whether the engine behind a vLLM server generates: `dead` if it reports that it cannot, `silent` if it does not
 * answer (yet), or not in time.
 */
export async function lookAtEngine(
  address: ServerAddress,
  secret?: () => string | null,
): Promise<'alive' | 'dead' | 'silent'> {
  const server = new VllmServer(
    address,
    { timeoutMs: lookMs, provider: 'cpu', secret },
    { loraRank: null, servesBase: true, weights: 'auto' },
  );
  try {
    return await server.lookAtEngine();
  } finally {
    server.close();
  }
}

/** Checks a run's OpenAI-compatible servers for the needs of training; other kinds always meet them. */
export async function examineServers(spec: InferenceSpec): Promise<ServerReport[]> {
  const { examinedAs } = inferenceTraits(spec);
  if (!('endpoints' in spec) || examinedAs === null) return [];
  const named = serversOf(spec, '').filter(({ url }) => url !== '');
  return Promise.all(named.map((address) => examineServer(address, { isVllm: examinedAs === 'vllm' })));
}

type PoolSpec = Extract<InferenceSpec, { readonly endpoints: unknown }>;

function openPool(
  spec: PoolSpec,
  defaultUrl: string,
  say: (line: string) => void,
  openServer?: PoolOptions['openServer'],
): ServerPool {
  const { endpoints, provider, quantize, memoryGb, maxConcurrent, timeoutS } = spec;
  const more = openServer ? { openServer, remedy: vllmRemedy } : {};
  const what = 'The inference server ([inference] url)';
  const options = { what, provider, quantize, memoryGb, maxConcurrent, timeoutMs: timeoutS * 1000, say, ...more };
  if (spec.url === null && endpoints === null && defaultUrl === '')
    throw startedWith(spec) === 'vllm' ? noVllm : noServer;
  // A server started beside this process is ours, and may receive its own keys.
  if (spec.url === null && defaultUrl !== '') grantHere(linesOfServer({ url: defaultUrl, keys: serverKeysOf(spec) }));
  if (endpoints === null) return new ServerPool(serversOf(spec, defaultUrl), options);
  const pool = new ServerPool(readEndpoints(endpoints), options);
  watchEndpoints(endpoints, (servers) => pool.setServers(servers), say);
  return pool;
}

const vllmRemedy = 'Is vLLM running there, and past its start? Without [inference] url Ratchet starts one.';

const noVllm = new RatchetError(
  'ConfigInvalid',
  '[inference] kind = "vllm" has no url, and these processes were started without a vLLM. Start them with the run file, `ratchet train FILE` where nothing runs yet or `ratchet dev --serve FILE`, or name a server that runs: [inference] url.',
);

const noServer = new RatchetError(
  'ConfigInvalid',
  '[inference] has no url, and these processes were started without a policy server, for evaluations of models that others serve. End them, and start them with the run: `npx ratchet-rl train FILE`, or `npx ratchet-rl dev`; or name a server that runs: [inference] url.',
);

function vllmServers({ vllm }: Extract<InferenceSpec, { readonly kind: 'vllm' }>): PoolOptions['openServer'] {
  const { weightsAgent } = vllm;
  const locate = weightsAgent === null ? {} : { locate: askWeightsAgent(weightsAgent) };
  return (address, options) => new VllmServer(address, options, { ...vllm, ...locate });
}

/** A run's named servers, or this machine's; from an endpoints file as it is now. Throws `ConfigInvalid`. */
export function serversOf(spec: PoolSpec, defaultUrl: string): ServerAddress[] {
  if (spec.endpoints !== null) return readEndpoints(spec.endpoints);
  const { apiKeyVar, headers, headersFromEnv } = spec;
  const address = { apiKeyVar, headers, headersFromEnv, model: null };
  if (spec.url !== null) return [spec.url].flat().map((url) => ({ ...address, url }));
  return [{ ...address, url: defaultUrl, isOwn: apiKeyVar === null }];
}

/** Environment variables with the keys of a run's servers. Throws `ConfigInvalid` for an invalid endpoints file. */
export function keyVariables({ inference, teacher }: Pick<RunSpec, 'inference' | 'teacher'>): string[] {
  const named = [...namedKeys(inference), ...(teacher ? teacherServers(teacher) : [])].flatMap(serverKeysOf);
  return [...new Set(named)];
}

function namedKeys(spec: InferenceSpec): readonly Pick<ServerAddress, 'apiKeyVar' | 'headersFromEnv'>[] {
  if ('endpoints' in spec) return serversOf(spec, '');
  return 'apiKeyVar' in spec ? [{ apiKeyVar: spec.apiKeyVar, headersFromEnv: {} }] : [];
}
