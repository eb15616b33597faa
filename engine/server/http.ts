import type { IncomingMessage, ServerResponse } from 'node:http';
import { RatchetError } from '../../core/errors.ts';
import { requestBodyBytesMax } from '../limits.ts';

/** An answer that is an error, in the words of OpenAI's API. */
export class HttpError extends Error {
  readonly status: number;
  /** The body key at fault, if one is. */
  readonly param: string | null;
  readonly code: string | null;
  readonly headers: Readonly<Record<string, string>>;

  constructor(
    status: number,
    message: string,
    options: { param?: string; code?: string; headers?: Readonly<Record<string, string>>; cause?: unknown } = {},
  ) {
    super(message, { cause: options.cause });
    this.status = status;
    this.param = options.param ?? null;
    this.code = options.code ?? null;
    this.headers = options.headers ?? {};
  }
}

export function sendJson(
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): void {
  sendText(response, status, JSON.stringify(body), { 'content-type': 'application/json', ...headers });
}

export function sendText(
  response: ServerResponse,
  status: number,
  text: string,
  headers: Readonly<Record<string, string>>,
): void {
  if (response.destroyed || response.headersSent) return;
  const bytes = Buffer.from(text);
  response.writeHead(status, { ...headers, 'content-length': bytes.length });
  response.end(bytes);
}

export function sendError(response: ServerResponse, error: unknown): void {
  const { status, message, param, code, headers } = toHttpError(error);
  const type = status >= 500 ? 'server_error' : 'invalid_request_error';
  sendJson(response, status, { error: { message, type, param, code } }, headers);
}

function toHttpError(error: unknown): HttpError {
  if (error instanceof HttpError) return error;
  if (error instanceof RatchetError) {
    const headers = error.isRetryable ? {} : { 'x-should-retry': 'false' };
    return new HttpError(statusOf(error), error.message, { code: error.code, cause: error, headers });
  }
  return new HttpError(500, error instanceof Error ? error.message : String(error), { cause: error });
}

function statusOf({ code }: RatchetError): number {
  switch (code) {
    case 'InferenceRejected':
    case 'ModelUnsupported':
      return 400;
    case 'CheckpointDamaged':
      return 422;
    default:
      return 500;
  }
}

/** The body as JSON. An empty body is an empty object, so that commands need none. */
export async function readJson(request: IncomingMessage): Promise<unknown> {
  const body = await readBody(request);
  if (body.length === 0) return {};
  try {
    return JSON.parse(body.toString('utf8'));
  } catch (cause) {
    throw new HttpError(400, `The body is not JSON: ${String(cause)}`, { cause });
  }
}

async function readBody(request: IncomingMessage): Promise<Buffer> {
  const declared = Number(request.headers['content-length'] ?? 0);
  if (declared > requestBodyBytesMax) throw bodyTooLarge();
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > requestBodyBytesMax) throw bodyTooLarge();
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

function bodyTooLarge(): HttpError {
  const message = `The body is larger than ${requestBodyBytesMax} bytes. Send the prompts in several requests.`;
  return new HttpError(413, message, { headers: { connection: 'close' } });
}
