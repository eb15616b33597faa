import { createHash } from 'node:crypto';
import { z } from 'zod';
import { askServer, type Destination } from '../../host/ask-server.ts';
import { grantHere, linesOfServer } from '../../host/grants.ts';
import { asItIs, readBodyText } from '../../host/read-body.ts';
import { RatchetError } from '../../core/errors.ts';
import { quoted } from '../../core/steering.ts';
import { errorIn, wordsOfPage } from '../answer-words.ts';
import { causeOf } from '../../host/fetch-cause.ts';
import { answerJson } from '../inference/openai/answer-json.ts';
import { turnIn } from '../inference/openai/chat-answer.ts';
import { serverRoot } from '../inference/model-server.ts';
import { lazily } from '../../core/lazily.ts';
import type { ChatMessage } from '../../core/rl/rollout/rollout.ts';
import { beginQuestion } from './judge-meter.ts';

/** A judge as an environment's argument: `args = { judge = { base_url = "…", model = "…", api_key_var = "RATCHET_JUDGE_KEY" } }`. */
export const judgeArgs = z.strictObject({
  /** Base URL of an OpenAI-compatible API, with its `/v1`. */
  base_url: z.url({ protocol: /^https?$/ }),
  model: z.string().min(1),
  /**
   * Name of the environment variable that holds the key, never the key. Missing = the endpoint needs none. Workers see
   * names that begin with RATCHET_.
   */
  api_key_var: z
    .string()
    .regex(/^[A-Z][A-Z0-9_]*$/, 'expected the NAME of an environment variable')
    .optional(),
  requests_per_minute: z.number().positive().default(600),
  /** Bound on concurrent requests. */
  max_in_flight: z.int().min(1).default(16),
  /** Retries after 408, 409, 429, 5xx, or no answer, with growing pauses or the server's. */
  max_retries: z.int().min(0).max(20).default(5),
  /** Timeout of one request. */
  timeout_s: z.number().positive().default(60),
  temperature: z.number().min(0).default(0),
  max_tokens: z.int().min(1).default(512),
});
export type JudgeArgs = z.input<typeof judgeArgs>;

export interface Judge {
  /** An equal question is sent once per process. Rejects when the retries are used up, or the endpoint refuses. */
  ask(prompt: string | readonly ChatMessage[]): Promise<string>;
}

/** Bound on cached answers; the oldest are dropped first. */
const answersMax = 10_000;

/**
 * Only code that this user may run opens one, with an address of its own or with named arguments (`requireNamed`): that
 * grants the server its key.
 */
export function openJudge(args: JudgeArgs): Judge {
  const options = judgeArgs.parse(args);
  const { base_url: url, api_key_var: keyVar } = options;
  const apiKey = keyOf(keyVar);
  const server = { what: 'The judge', url, keys: keyVar === undefined ? [] : [keyVar] };
  grantHere(linesOfServer(server));
  // Loaded at the first question: most uses of an environment ask none.
  const client = lazily(async () => {
    const [{ default: OpenAI }, { default: PQueue }] = await Promise.all([import('openai'), import('p-queue')]);
    const queue = new PQueue({
      concurrency: options.max_in_flight,
      // Spaced by the second, so that a minute's requests do not go out at once.
      intervalCap: 1,
      interval: 60_000 / options.requests_per_minute,
    });
    return new OpenAI({
      baseURL: url,
      apiKey: 'none',
      // Excludes variables that were not named for this server.
      organization: null,
      project: null,
      maxRetries: options.max_retries,
      // Waiting in the queue does not count as a request's time.
      timeout: waitMaxMs,
      fetch: async (at, init) => {
        const authorization = { authorization: `Bearer ${apiKey}` };
        // Some servers without a key still refuse a request without the header.
        const sent = keyVar === undefined ? { headers: authorization } : { headers: {}, secrets: () => authorization };
        return queue.add(() =>
          fetchWhole(server, at as string, { ...sent, init, timeoutMs: options.timeout_s * 1000 }),
        );
      },
    });
  });
  const answers = new Map<string, Promise<string>>();

  async function complete(messages: readonly ChatMessage[]): Promise<string> {
    const { model, temperature, max_tokens } = options;
    const sent = messages.map(({ role, content }) => ({ role: role === 'tool' ? 'user' : role, content }));
    const { chat } = await client();
    const settle = beginQuestion();
    const asking = chat.completions.create({ model, messages: sent, temperature, max_tokens });
    const completion: unknown = await asking.catch((cause: unknown) => {
      throw cause instanceof RatchetError ? cause : new Error(`The judge at ${url}: ${whyOf(cause)}`, { cause });
    });
    const { text, isRefusal, usage } = turnIn(completion, { tokens: 'none' }, serverRoot(url));
    settle(usage === null ? 0 : usage.promptTokens + usage.completionTokens);
    if (text !== '' && !isRefusal) return text;
    const came = isRefusal ? `a refusal: ${quoted(text, wordsMax)}` : 'an answer without one';
    throw new Error(`The judge at ${url}: expected ${model}'s answer as a text, got ${came}.`);
  }

  return {
    ask(prompt) {
      const messages = typeof prompt === 'string' ? [{ role: 'user' as const, content: prompt }] : prompt;
      const key = createHash('sha256').update(JSON.stringify(messages)).digest('base64');
      const known = answers.get(key);
      if (known) return known;
      const asking = complete(messages);
      answers.set(key, asking);
      // A failed question may be asked again; its awaiting caller gets the error.
      asking.catch(() => answers.delete(key));
      if (answers.size > answersMax) answers.delete(answers.keys().next().value!);
      return asking;
    },
  };
}

const wordsMax = 500;

/** Its client reports "Connection error." for every failure before an answer. */
function whyOf(error: unknown): string {
  if (error instanceof SyntaxError) return `its answer is not JSON (${error.message})`;
  if (!(error instanceof Error)) return String(error);
  const { cause } = error;
  const why = cause instanceof Error ? ` (${cause.cause === undefined ? cause.message : causeOf(cause)})` : '';
  return `${error.message.slice(0, wordsMax)}${why}`;
}

const waitMaxMs = 24 * 3600 * 1000;

function keyOf(variable: string | undefined): string {
  if (variable === undefined) return 'none';
  const key = process.env[variable];
  if (key !== undefined && key !== '') return key;
  throw new RatchetError(
    'ConfigInvalid',
    `judge.api_key_var: the environment variable ${variable} is not set where rollouts are scored. Workers are given variables whose names begin with RATCHET_: export one of those before \`ratchet train\` or \`ratchet dev\`, and name it here.`,
  );
}

/** Largest answer accepted from a judge. Real ones have some thousand words; error pages of servers may be longer. */
const judgeBytesMax = 16 * 1024 * 1024;

interface Sent {
  readonly headers: Readonly<Record<string, string>>;
  readonly secrets?: () => Readonly<Record<string, string>>;
  readonly init: RequestInit | undefined;
  readonly timeoutMs: number;
}

/**
 * Reads the whole answer, so that a request is in flight until its last byte. A redirect would send the prompt to
 * another server: it is an error.
 */
async function fetchWhole(
  server: Destination,
  url: string,
  { headers: own, secrets, init, timeoutMs }: Sent,
): Promise<Response> {
  const timeout = AbortSignal.timeout(timeoutMs);
  const signal = init?.signal ? AbortSignal.any([init.signal, timeout]) : timeout;
  const response = await askServer(server, url, {
    method: 'POST',
    headers: { accept: 'application/json', 'content-type': 'application/json', ...asItIs, ...own },
    ...(secrets && { secrets }),
    body: init?.body as string,
    signal,
  });
  const { status, statusText } = response;
  const text = await readBodyText(response, 'The judge', judgeBytesMax);
  const json = answerJson(text);
  if (status >= 600 || text === '' || (status < 300 && json === undefined)) {
    const came = text === '' ? ' and nothing' : `: ${quoted(wordsOfPage(text), wordsMax)}`;
    throw new Error(`expected an answer in JSON, got status ${status}${came}`);
  }
  const error = errorIn(json);
  const retryAfter = response.headers.get('retry-after');
  // The client retries by status, so an error within a 200 answer of a gateway gets its own.
  return Response.json(error === null ? (json ?? {}) : { error: { message: error.words } }, {
    status: status < 300 && error !== null ? (error.status ?? 500) : status,
    statusText,
    headers: retryAfter === null ? {} : { 'retry-after': retryAfter },
  });
}
