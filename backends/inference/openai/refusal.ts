import { RatchetError } from '../../../core/errors.ts';
import {
  ncclRemedy,
  saysEngineDied,
  saysNcclFailed,
  saysOutOfMemory,
  saysOverlong,
} from '../../../core/rl/failures.ts';
import { shortened } from '../../../core/steering.ts';
import { describeRedirect } from '../../../host/redirects.ts';
import { errorIn, type ReportedError, wordsOfPage } from '../../answer-words.ts';
import { answerJson } from './answer-json.ts';
import type { HttpAnswer } from '../http-client.ts';

/** The server accepts no more at the moment; it is not failing. */
export class ServerBusy extends RatchetError {
  constructor(message: string, retryAfterMs: number | undefined) {
    super('InferenceUnavailable', message, retryAfterMs === undefined ? {} : { retryAfterMs });
  }
}

/**
 * A successful but useless answer. A retry may bring a better one; an endpoint refuses a request that never gets one.
 */
export class UnusableAnswer extends RatchetError {
  constructor(message: string) {
    super('InferenceUnavailable', message);
  }
}

/** Status 409: the server does not hold a version, or another request is in the way. */
export class ServerConflict extends RatchetError {
  constructor(message: string) {
    super('VersionNotHeld', message);
  }
}

/** Longest pause that a server can request before it is asked again. */
const retryAfterMaxMs = 60_000;
const wordsMax = 500;

/** The scope of a refusal: this prompt, all prompts, or only now. */
export function refusalOf(where: string, answer: HttpAnswer, note: string): RatchetError {
  const { status, headers, text } = answer;
  const redirect = describeRedirect({ status, location: headers.location, from: new URL(where) });
  if (redirect !== null) return new RatchetError('InferenceRejected', `${where} answered ${status}${redirect}`);
  return meaningOf(status, answer, { message: `${where} answered ${status}: ${wordsIn(text)}${note}`, text });
}

/** The refusal in an error that a server reports within a successful answer: its own status or words decide. */
export function reportedRefusal(where: string, answer: HttpAnswer, error: ReportedError): RatchetError {
  const message = `${where} answered ${answer.status} with an error: ${error.words}`;
  if (error.status === null && !saysOverlong(error.words)) return new UnusableAnswer(message);
  return meaningOf(error.status ?? 400, answer, { message, text: error.words });
}

function meaningOf(
  status: number,
  { headers }: HttpAnswer,
  { message, text }: { readonly message: string; readonly text: string },
): RatchetError {
  if (status === 507 || (status >= 500 && saysOutOfMemory(text))) return new RatchetError('OutOfMemory', message);
  if (status >= 500 && saysNcclFailed(text))
    return new RatchetError('NcclFailed', `${message} Remedies: ${ncclRemedy}.`);
  if (status >= 500 && saysEngineDied(text)) {
    const remedy =
      'Its engine is gone, and it must be started again; its log says why: out of memory wants a smaller gpu-memory-utilization or max-model-len.';
    return new RatchetError('InferenceUnavailable', `${message} ${remedy}`);
  }
  if (status === 409) return new ServerConflict(message);
  if (status === 404) return new RatchetError('VersionNotHeld', message);
  if (status < 500 && status !== 429 && saysOverlong(text)) return new RatchetError('PromptTooLong', message);
  const retryAfterMs = retryAfter(headers['retry-after']);
  if (status === 429 || (status === 503 && retryAfterMs !== undefined)) return new ServerBusy(message, retryAfterMs);
  const isRefusal = status < 500 || status === 501; // not implemented there: a retry does not help
  const isEarly = status === 408 || status === 425;
  return new RatchetError(isRefusal && !isEarly ? 'InferenceRejected' : 'InferenceUnavailable', message);
}

/** Seconds, or a date (RFC 9110, 10.2.3). */
function retryAfter(value: string | undefined): number | undefined {
  if (value === undefined) return undefined;
  const ms = /^\d+(?:\.\d+)?$/.test(value.trim()) ? Number(value) * 1000 : Date.parse(value) - Date.now();
  return Number.isNaN(ms) ? undefined : Math.min(Math.max(0, ms), retryAfterMaxMs);
}

/** The error message of a body, in the server's words; the whole body if it names none. */
function wordsIn(text: string): string {
  return errorIn(answerJson(text))?.words ?? shortened(wordsOfPage(text), wordsMax);
}
