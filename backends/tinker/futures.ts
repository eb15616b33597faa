import { setTimeout as delay } from 'node:timers/promises';
import { z } from 'zod';
import { parsed, protobufType, type HttpReply, type TinkerHttp } from './http.ts';
import { isTrouble, TinkerTrouble } from './trouble.ts';

interface Waiting {
  /** Requests the result as protobuf, like SDKs ≥ 0.25. */
  readonly asProtobuf?: boolean;
  readonly signal?: AbortSignal | undefined;
  /** Time for retries of a server that is away, or only fails. */
  readonly patienceMs: number;
  /** Receives a message when the server pauses work, with the reason. */
  readonly say: (line: string) => void;
}

const route = '/api/v1/retrieve_future';
/** Servers hold a poll until there is an answer: the hosted one for less than this, SkyRL for longer. */
const pollTimeoutMs = 45_000;
/** Wait between two polls, if the server answered at once that there is nothing yet. */
const pollPauseMs = 50;
const failurePauseMs = 1_000;
const backoffMsMax = 30_000;
/** Proxies inject 400s now and then; SkyRL's are meant, and repeat. */
const badRequestsMax = 3;
/** Time for retries of an account without credit. */
const billingPauseMs = 5_000;
const billingPatienceMs = 60 * 60_000;

const Answer = z.looseObject({
  type: z.string().nullish(),
  status: z.string().nullish(),
  error: z.string().nullish(),
  category: z.string().nullish(),
  queue_state: z.string().nullish(),
  queue_state_reason: z.string().nullish(),
});

/**
 * The result of a promise by the server. All possible answers:
 *
 *     a result                       returned
 *     "try_again", 408               retried
 *     5xx                            retried after a pause
 *     429, no connection             retried with growing pauses, up to 30 s
 *     400                            retried three times, then `refused`, or `lost` if it names a model that is not loaded
 *     402                            the account is paused: retried every 5 s for an hour
 *     410                            the promise is gone: `lost`; callers that may repeat the request do
 *     "complete_metadata"            retried, for the result itself
 *     {error, category}              final: `refused` if the user is to blame, else `failed`
 */
export async function retrieve(http: TinkerHttp, requestId: string, waiting: Waiting): Promise<HttpReply> {
  try {
    return await untilSettled(http, requestId, waiting);
  } finally {
    http.waits.end(waiting);
  }
}

async function untilSettled(http: TinkerHttp, requestId: string, waiting: Waiting): Promise<HttpReply> {
  const { asProtobuf = false, signal, patienceMs, say } = waiting;
  let allowMetadataOnly = true;
  let badRequests = 0;
  let connectionFailures = 0;
  let awaySince: number | null = null;
  let unpaidSince: number | null = null;
  const wait = (ms: number): Promise<void> => delay(ms, undefined, signal ? { signal } : {});
  const giveUpAfter = (trouble: TinkerTrouble): void => {
    if (awaySince === null) say(`waiting for the Tinker server: ${trouble.message}`);
    awaySince ??= performance.now();
    if (performance.now() - awaySince > patienceMs) throw trouble;
    http.waits.begin(waiting, trouble.message);
  };
  for (;;) {
    let reply: HttpReply;
    try {
      reply = await http.once('POST', route, {
        body: { request_id: requestId, ...(allowMetadataOnly ? { allow_metadata_only: true } : {}) },
        mayRepeat: true,
        timeoutMs: pollTimeoutMs,
        ...(asProtobuf ? { accept: protobufType } : {}),
        signal,
      });
    } catch (error) {
      if (!isTrouble(error, 'away')) throw error;
      if (isTimeout(error)) continue; // it held the poll for longer than our timeout
      giveUpAfter(error);
      await wait(Math.min(failurePauseMs * 2 ** connectionFailures++, backoffMsMax));
      continue;
    }
    const { status } = reply;
    // A server that does not hold polls back would be polled without a pause.
    if (status === 408) await wait(pollPauseMs);
    if (status === 408) continue;
    if (status === 402) {
      const trouble = http.refusal(route, reply);
      if (unpaidSince === null) say(`the account is paused: ${trouble.message}`);
      unpaidSince ??= performance.now();
      http.waits.begin(waiting, trouble.message);
      if (performance.now() - unpaidSince > billingPatienceMs) throw trouble;
      await wait(billingPauseMs);
      continue;
    }
    if (status === 429) {
      giveUpAfter(http.refusal(route, reply));
      await wait(Math.min(failurePauseMs * 2 ** connectionFailures++, backoffMsMax));
      continue;
    }
    if (status >= 500) {
      giveUpAfter(http.refusal(route, reply));
      await wait(failurePauseMs);
      continue;
    }
    if (status === 400 && badRequests < badRequestsMax) {
      badRequests += 1;
      continue;
    }
    if (status >= 300) throw http.refusal(route, reply);
    if (awaySince !== null) say(`the Tinker server at ${http.address.url} answers again`);
    awaySince = unpaidSince = null;
    connectionFailures = 0;
    http.waits.end(waiting);
    if (reply.type.includes(protobufType)) return reply;
    const answer = Answer.safeParse(parsed(reply, http.address.url + route));
    const { type, status: state, error, category, queue_state, queue_state_reason } = answer.data ?? {};
    if (type === 'try_again') {
      if (queue_state != null && queue_state !== 'active') {
        const reason = `the server waits: ${queue_state_reason ?? queue_state}`;
        say(reason);
        http.waits.begin(waiting, reason);
      }
      await wait(pollPauseMs);
    } else if (state === 'complete_metadata') allowMetadataOnly = false;
    else if (error != null) {
      const kind = category === 'user' ? 'refused' : 'failed';
      throw new TinkerTrouble(kind, `${http.address.url}: the request failed (${category ?? 'unknown'}): ${error}`);
    } else return reply;
  }
}

function isTimeout(trouble: TinkerTrouble): boolean {
  return trouble.cause instanceof Error && trouble.cause.name === 'TimeoutError';
}
