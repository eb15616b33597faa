import type { IncomingMessage, ServerResponse } from 'node:http';
import { requestBodyBytesMax, stalledReaderMs } from '../limits.ts';
import type { RequestBudget } from './generation/admission.ts';
import { errorBody, HttpError, toHttpError } from './http-error.ts';
import { parseBoundedJson } from './json.ts';

export function sendJson(
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): void {
  sendText(response, status, stringify(body), { 'content-type': 'application/json', ...headers });
}

/** A text of 512 MiB is the longest there is: some ten million tokens with their logprobs. */
function stringify(body: unknown): string {
  try {
    return JSON.stringify(body);
  } catch (cause) {
    if (!(cause instanceof RangeError)) throw cause;
    const message = 'The answer would be longer than 512 MiB. Ask for fewer choices or tokens in one request.';
    throw new HttpError(400, message, { param: 'n', cause });
  }
}

export function sendText(
  response: ServerResponse,
  status: number,
  text: string,
  headers: Readonly<Record<string, string>>,
): void {
  if (response.destroyed || response.headersSent) return;
  const bytes = Buffer.from(text);
  response.setTimeout(stalledReaderMs);
  response.writeHead(status, { ...headers, 'content-length': bytes.length });
  response.end(bytes);
}

export function sendError(response: ServerResponse, error: unknown): void {
  const httpError = toHttpError(error);
  sendJson(response, httpError.status, errorBody(httpError), httpError.headers);
}

/** The body as JSON. An empty body is an empty object, so that commands need none. */
export async function readJsonBody(request: IncomingMessage, budget: RequestBudget): Promise<unknown> {
  const body = await readBody(request, budget);
  return body.length === 0 ? {} : parseBoundedJson(body);
}

export async function readBody(request: IncomingMessage, budget: RequestBudget): Promise<Buffer> {
  const declared = Number(request.headers['content-length'] ?? 0);
  if (declared > requestBodyBytesMax) throw bodyTooLarge();
  let body: Buffer = Buffer.alloc(0);
  let size = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    const needed = size + chunk.length;
    if (needed > requestBodyBytesMax) throw bodyTooLarge();
    if (needed > body.length) body = grown(body, size, needed, budget);
    size += chunk.copy(body, size);
  }
  return body.subarray(0, size);
}

/** One buffer that doubles: a list of chunks would cost a hundred times the body's size if it arrives byte by byte. */
function grown(body: Buffer, size: number, needed: number, budget: RequestBudget): Buffer {
  const capacity = Math.min(requestBodyBytesMax, Math.max(needed, 2 * body.length));
  budget.takeBodyBytes(capacity - body.length);
  const larger = Buffer.allocUnsafeSlow(capacity);
  body.copy(larger, 0, 0, size);
  return larger;
}

function bodyTooLarge(): HttpError {
  const message = `The body is larger than ${requestBodyBytesMax} bytes. Send the prompts in several requests.`;
  return new HttpError(413, message, { headers: { connection: 'close' } });
}
