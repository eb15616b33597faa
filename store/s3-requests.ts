import { present } from '../core/present.ts';
import { setTimeout as delay } from 'node:timers/promises';
import PQueue from 'p-queue';
import type * as Sdk from '@aws-sdk/client-s3';
import { RatchetError } from '../core/errors.ts';
import { requireGrant } from '../host/grants.ts';
import { storeCredentials } from './s3-credentials.ts';
import { isDiskError } from './file-store.ts';
import { lineOfStore, type S3Location } from './store-uri.ts';

/** Bounds of one S3 client, with reasons. Tests lower them. */
export interface S3Limits {
  /**
   * Concurrent requests of a process, over all stores of one server: enough to fill a line, few enough for its memory.
   */
  readonly requestsMax: number;
  /** Larger objects are transferred in parts of this size, several at once; S3 requires at least 5 MiB. */
  readonly partBytes: number;
  /** Concurrent parts of one object; a transfer holds this times the size of a part in memory. */
  readonly partsAtOnce: number;
  readonly connectMs: number;
  /** A silent connection is given up after this time. */
  readonly idleMs: number;
  /** Time for retries of a request before Temporal's retry takes over and the run reports what it waits for. */
  readonly patienceMs: number;
  readonly attemptsMax: number;
  /** Upper bound of the first wait; doubled with each failure. */
  readonly backoffMs: number;
}

export const s3Limits: S3Limits = {
  requestsMax: 16,
  partBytes: 8 * 1024 * 1024,
  partsAtOnce: 4,
  connectMs: 5_000,
  idleMs: 15_000,
  patienceMs: 20_000,
  attemptsMax: 10,
  backoffMs: 200,
};

const backoffMsMax = 5_000;

/** Interval of log lines about a server in trouble. */
const complaintsMs = 5_000;

type S3Server = Omit<S3Location, 'prefix'>;

export interface S3Session {
  readonly client: Sdk.S3Client;
  readonly sdk: typeof Sdk;
}

interface S3Failure {
  /** S3's code (`NoSuchKey`, `PreconditionFailed`), or the error's name. */
  readonly code: string;
  /** HTTP's status; 0 when there was no whole answer. */
  readonly status: number;
}

interface Request<T> {
  /** S3's name of the operation: `PutObject`. */
  readonly operation: string;
  readonly key: string;
  readonly send: (session: S3Session) => Promise<T>;
  /** Failures, by code or status, that count as answers: neither retried nor thrown. */
  readonly answers?: (failure: S3Failure) => { readonly value: T } | undefined;
}

/**
 * Requests to one server: bounded in number, and retried with growing random waits while the trouble may pass. The
 * SDK's own retries are off: they end at the header of an answer, these include its body.
 */
export class S3Requests {
  readonly location: S3Server;
  readonly limits: S3Limits;
  readonly #session: Promise<S3Session>;
  readonly #slots: PQueue;
  #complainedAt = -Infinity;

  constructor(location: S3Server, limits: S3Limits) {
    this.location = location;
    this.limits = limits;
    this.#slots = new PQueue({ concurrency: limits.requestsMax });
    this.#session = openSession(location, limits);
    this.#session.catch(() => undefined); // the next request gets the error
  }

  /** Place of the bucket, for people. */
  get place(): string {
    return `${this.location.bucket} at ${this.location.endpoint ?? 'AWS'}`;
  }

  async run<T>(request: Request<T>): Promise<T> {
    const { limits } = this;
    const startedAt = performance.now();
    const elapsedMs = (): number => performance.now() - startedAt;
    const session = await this.#session;
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#slots.add(() => request.send(session));
      } catch (error) {
        const failure = failureOf(error);
        const isPassing = isWeather(error, failure);
        const answer = isPassing ? undefined : request.answers?.(failure);
        if (answer) return answer.value;
        const waitMs = Math.min(backoffMsMax, limits.backoffMs * 2 ** (attempt - 1)) * (0.5 + Math.random() / 2);
        const isOver = attempt >= limits.attemptsMax || elapsedMs() + waitMs > limits.patienceMs;
        if (!isPassing || isOver) throw this.#explain(request, error, failure, attempt, elapsedMs());
        this.#complain(request, error);
        await delay(waitMs);
      }
    }
  }

  /** Logs silent waiting for this process, not for each request. */
  #complain<T>({ operation, key }: Request<T>, cause: unknown): void {
    const now = performance.now();
    if (now - this.#complainedAt < complaintsMs) return;
    this.#complainedAt = now;
    process.stderr.write(`${operation} of ${key} in ${this.place} is tried again: ${oneLine(String(cause))}\n`);
  }

  #explain<T>(request: Request<T>, cause: unknown, failure: S3Failure, attempts: number, elapsedMs: number): unknown {
    const what = `${request.operation} of ${request.key} in ${this.place}`;
    const came = cause instanceof Error ? oneLine(cause.message) : String(cause);
    const said = failure.status > 0 ? `HTTP ${failure.status} ${failure.code}: ${came}` : came;
    const tried = attempts > 1 ? `, after ${attempts} tries in ${(elapsedMs / 1000).toFixed(1)} s` : '';
    const because = (advice: string): string => `${what} failed${tried}: ${said}. ${advice}`;
    if (isFull(failure)) {
      return new RatchetError('StoreFull', because('Free some space there; the run continues by itself.'), { cause });
    }
    if (isWeather(cause, failure)) {
      return new RatchetError('StoreUnavailable', because('The run continues when the server answers again.'), {
        cause,
      });
    }
    if (isRegionMissing(cause)) {
      const advice = `Expected the region of the bucket: AWS_REGION, region in [store], or s3://${this.location.bucket}/…?region=REGION. A server that is not AWS is named by ?endpoint=URL.`;
      return new RatchetError('ConfigInvalid', because(advice), { cause });
    }
    if (failure.code === 'CredentialsProviderError') {
      const where = 'environment (AWS_ACCESS_KEY_ID, AWS_PROFILE), ~/.aws, SSO, or the role of this machine';
      const advice = `Expected credentials from the usual AWS chain: ${where}.`;
      return new RatchetError('StoreUnavailable', because(advice), { cause });
    }
    if ([401, 403].includes(failure.status) || failure.code === 'ExpiredToken' || unknownUser.test(failure.code)) {
      const advice =
        'Expected credentials that may get, put, delete and list below the prefix; renew them or the policy, and the run continues.';
      return new RatchetError('StoreUnavailable', because(advice), { cause });
    }
    if (failure.code === 'NoSuchBucket') {
      return new RatchetError('StoreUnavailable', because('Create the bucket, or correct store.uri.'), { cause });
    }
    // An error without a status came from no server: a bug of ours, or wrong inputs of the client.
    if (failure.status === 0) return cause;
    return new RatchetError('Unsupported', because('The server refuses this request; asking again will not help.'), {
      cause,
    });
  }
}

/** Some servers (versitygw) also answer 404 for an unknown access key. */
const unknownUser = /^(?:\w*UserNotFound|InvalidAccessKeyId)$/;

/** Whether the object is missing, rather than its bucket or the user. */
export function isAbsence({ status, code }: Pick<S3Failure, 'status' | 'code'>): boolean {
  return status === 404 && code !== 'NoSuchBucket' && !unknownUser.test(code);
}

/** One client per server and set of limits: its connections and credentials are shared by all stores of the process. */
const opened = new Map<string, S3Requests>();

export function openS3Requests(
  { bucket, endpoint, region, pathStyle, sse, kmsKeyId }: S3Server,
  limits: S3Limits,
): S3Requests {
  requireGrant(lineOfStore({ bucket, endpoint }), `The store s3://${bucket} at ${endpoint ?? 'AWS'}`);
  const server = { bucket, endpoint, region, pathStyle, sse, kmsKeyId };
  const key = JSON.stringify([server, limits]);
  const known = opened.get(key) ?? new S3Requests(server, limits);
  opened.set(key, known);
  return known;
}

/** Imported on demand: runs with a folder as store do not wait for it. */
async function openSession(location: S3Server, limits: S3Limits): Promise<S3Session> {
  const sdk = await import('@aws-sdk/client-s3');
  const region = location.region ?? (location.endpoint === null ? null : (process.env['AWS_REGION'] ?? 'us-east-1'));
  const credentials = storeCredentials();
  const client = withoutNodeNotice(
    () =>
      new sdk.S3Client({
        ...present({
          credentials: credentials ?? undefined,
          endpoint: location.endpoint ?? undefined,
          region: region ?? undefined,
        }),
        forcePathStyle: location.pathStyle,
        maxAttempts: 1,
        // The signature covers every body with its SHA-256, because servers other than AWS often support no other checksum.
        requestChecksumCalculation: 'WHEN_REQUIRED',
        responseChecksumValidation: 'WHEN_REQUIRED',
        requestHandler: {
          connectionTimeout: limits.connectMs,
          socketTimeout: limits.idleMs,
          httpAgent: { keepAlive: true, maxSockets: limits.requestsMax },
          httpsAgent: { keepAlive: true, maxSockets: limits.requestsMax },
        },
      }),
  );
  return { client, sdk };
}

/** The SDK's own switch for its warning. */
const noNodeNotice = 'AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED';

/**
 * Hides the SDK's eight-line warning on Node 20 about its later versions, which every process would print. The pinned version supports Node
 * 20. The variable is set for this call only, and child processes do not inherit it.
 */
function withoutNodeNotice<T>(open: () => T): T {
  const before = process.env[noNodeNotice];
  process.env[noNodeNotice] = before ?? 'true';
  try {
    return open();
  } finally {
    if (before === undefined) delete process.env[noNodeNotice];
  }
}

function failureOf(error: unknown): S3Failure {
  const { name = '', $metadata } = (error ?? {}) as { name?: string; $metadata?: { httpStatusCode?: number } };
  return { code: name, status: $metadata?.httpStatusCode ?? 0 };
}

/** Codes with a status below 500 that allow a retry. */
const passingCodes = new Set([
  'ConditionalRequestConflict', // another conditional write of this key is in progress
  'OperationAborted',
  'RequestTimeout',
  'RequestTimeTooSkewed', // the machine slept between signing and sending; the SDK then corrects its clock
  'IncompleteBody',
  'BadDigest', // damaged on the way
  'XAmzContentSHA256Mismatch',
  'SlowDown',
]);

function isFull({ code, status }: S3Failure): boolean {
  return status === 507 || code === 'QuotaExceeded' || code === 'XMinioStorageFull';
}

function isWeather(error: unknown, { code, status }: S3Failure): boolean {
  if (status > 0 && status < 300) return true; // a truncated answer, or an error in the body of a 200
  if (status > 0)
    return (status >= 500 && status !== 501) || status === 429 || status === 408 || passingCodes.has(code);
  if (error instanceof RatchetError || error instanceof TypeError || error instanceof RangeError) return false;
  if (isDiskError(error)) return false; // of the file that receives an answer
  return code !== 'CredentialsProviderError' && !isRegionMissing(error);
}

/** Only AWS has regions, yet the SDK requires one before it asks a server. */
function isRegionMissing(error: unknown): boolean {
  return /region is missing/i.test(String(error));
}

function oneLine(message: string): string {
  return message.split('\n')[0]!.replace(/\.$/, '').slice(0, 300);
}

/** Runs `work` over all items, `atOnce` at a time; the first failure is thrown after those in progress have ended. */
export async function inParallel<T>(
  items: readonly T[],
  atOnce: number,
  work: (item: T, index: number) => Promise<void>,
): Promise<void> {
  let next = 0;
  let failed: { readonly error: unknown } | undefined;
  const one = async (): Promise<void> => {
    while (next < items.length && !failed) {
      const index = next++;
      try {
        await work(items[index]!, index);
      } catch (error) {
        failed ??= { error };
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(atOnce, items.length) }, one));
  if (failed) throw failed.error;
}
