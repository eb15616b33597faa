import { RatchetError } from '../../../core/errors.ts';
import { inferenceConcurrencyDefault, inferenceTimeoutDefaultS } from '../../../core/limits.ts';
import type { JsonValue } from '../../../config/run-spec.ts';
import type { EvaluatedServer } from '../../../core/eval/evaluation.ts';
import { messageForApi } from '../../../core/rl/rollout/message-parts.ts';
import type { ChatMessage, ToolSchema } from '../../../core/rl/rollout/rollout.ts';
import type { ServerAddress } from '../model-server.ts';
import { ServerPool } from '../pool.ts';
import { ServerConflict, UnusableAnswer } from './refusal.ts';
import type { ChatSample, SamplePlace } from '../types.ts';
import { callIdsIn, turnIn } from './chat-answer.ts';

export type EndpointServer = EvaluatedServer;

export interface EndpointRequest extends SamplePlace {
  readonly messages: readonly ChatMessage[];
  readonly tools?: readonly ToolSchema[] | undefined;
  /** Further fields of the request, by the API's names; nulls are left out, `extra_body` is expanded. */
  readonly fields: Readonly<Record<string, JsonValue>>;
  readonly signal?: AbortSignal | undefined;
}

interface EndpointTurn extends ChatSample {
  /** The server's own ids of `toolCalls`, where it gives them: some servers take no others back. */
  readonly callIds?: readonly (string | undefined)[];
}

/** Models behind an API for evaluations: they return text, without ids. */
export interface Endpoint {
  /**
   * Throws `InferenceUnavailable` (retry later), or `PromptTooLong` and `InferenceRejected`, which a retry does not
   * fix.
   */
  chat(request: EndpointRequest): Promise<EndpointTurn>;
  /** Why no server can be asked now; null if one can. */
  silence(): string | null;
  close(): void;
}

export interface EndpointOptions {
  /** Their name in refusals, with the setting that names them. */
  readonly what?: string;
  /** Timeout of one request. */
  readonly timeoutMs: number;
  /** Bound on requests in flight per server. */
  readonly maxConcurrent: number;
  /** Patience while no server answers. */
  readonly patienceMs?: number;
  readonly say?: ((line: string) => void) | undefined;
}

/** Any OpenAI-compatible API: one server, or replicas that share the work. */
export function openEndpoint(servers: readonly EndpointServer[], options: EndpointOptions): Endpoint {
  const pool = new ServerPool(
    servers.map(({ model, baseUrl, apiKeyVar, headers }) => ({
      url: baseUrl,
      apiKeyVar,
      headers,
      headersFromEnv: {},
      model,
    })),
    { ...options, provider: 'cpu', remedy: 'Is it running, and is that its address?' },
  );
  return {
    chat: ({ messages, tools, fields, ...call }) =>
      pool
        .use(call, async ({ server }) => {
          const { route, body } = chatCall(server.address, { messages, tools, fields });
          const answer = await server.post(route, body, call).catch((error: unknown) => {
            throw asRefusal(error, server.address.model, server.root);
          });
          const turn = turnIn(answer, { tokens: 'none' }, server.root);
          return turn.toolCalls ? { ...turn, callIds: callIdsIn(answer) } : turn;
        })
        .catch((error: unknown) => {
          throw asFinal(error);
        }),
    silence: () => pool.silence(),
    close: () => pool.close(),
  };
}

const shared = new Map<string, Endpoint>();

/** One endpoint per process for these servers: calls share connections and knowledge about the servers. */
export function sharedEndpoint(servers: readonly EndpointServer[]): Endpoint {
  const key = JSON.stringify(servers);
  const known =
    shared.get(key) ??
    openEndpoint(servers, {
      timeoutMs: inferenceTimeoutDefaultS * 1000,
      maxConcurrent: inferenceConcurrencyDefault,
      say: (line) => void process.stderr.write(`${line}\n`),
    });
  shared.set(key, known);
  return known;
}

/** The request for such a server, and its route. */
export function chatCall(
  { url, model }: Pick<ServerAddress, 'url' | 'model'>,
  { messages, tools = [], fields }: Pick<EndpointRequest, 'messages' | 'tools' | 'fields'>,
): { readonly route: string; readonly body: Readonly<Record<string, unknown>> } {
  const body = {
    model,
    messages: messages.map(messageForApi),
    ...requestFields(fields),
    ...(tools.length === 0 ? {} : { tools }),
  };
  return { route: chatRoute(url), body };
}

/**
 * Route after the root of the server's URL. OpenAI's own paths begin with /v1; other servers use the path of the URL.
 */
function chatRoute(url: string): string {
  const { pathname } = new URL(url);
  const isBare = /^\/*$/.test(pathname) || /\/v1\/*$/.test(pathname);
  return isBare ? '/v1/chat/completions' : '/chat/completions';
}

/** The fields that verifiers sends: the newer name of `max_tokens`, and no nulls. */
function requestFields({
  extra_body: extra,
  max_tokens: maxTokens,
  ...fields
}: EndpointRequest['fields']): Record<string, unknown> {
  const named = maxTokens === undefined ? fields : { ...fields, max_completion_tokens: maxTokens };
  const given = Object.entries(named).filter(([, value]) => value !== null);
  return { ...Object.fromEntries(given), ...(typeof extra === 'object' && !Array.isArray(extra) ? extra : {}) };
}

/** A server that repeats a useless answer will not improve: retrying would never end. */
function asFinal(error: unknown): unknown {
  const isFinal = error instanceof UnusableAnswer || error instanceof ServerConflict;
  return isFinal ? new RatchetError('InferenceRejected', error.message, { cause: error }) : error;
}

/** A server that gets no versions, and does not know the model, will not know it later. */
function asRefusal(error: unknown, model: string | null, root: string): unknown {
  const isUnknown = error instanceof RatchetError && error.code === 'VersionNotHeld';
  if (!isUnknown || error instanceof ServerConflict) return error;
  return new RatchetError(
    'InferenceRejected',
    `${root} does not know the model "${model ?? ''}", or has no chat completions: ${error.message}`,
    { cause: error },
  );
}
