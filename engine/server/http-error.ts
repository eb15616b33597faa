import { RatchetError } from '../../core/errors.ts';

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

export function errorBody({ status, message, param, code }: HttpError): Record<string, unknown> {
  const type = status >= 500 ? 'server_error' : status === 429 ? 'rate_limit_error' : 'invalid_request_error';
  return { error: { message, type, param, code } };
}

export function toHttpError(error: unknown): HttpError {
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
    case 'ConfigInvalid':
      return 400;
    case 'CheckpointDamaged':
      return 422;
    case 'Unsupported':
      return 501;
    default:
      return 500;
  }
}
