import type { z } from 'zod';
import { problemsIn } from '../core/problems-in.ts';
import { shortened } from '../core/steering.ts';

/** Limit on a server's words in a message. */
const wordsMax = 500;
const problemsMax = 500;

/** An error that a server reports in the body of an answer. */
export interface ReportedError {
  readonly words: string;
  /** The status that such an error would have; null if nothing in it shows one. */
  readonly status: number | null;
}

/** Describes how an answer differs from the expected one, with the server's own words if it reports an error. */
export function unlike(error: z.ZodError, answer?: unknown): string {
  const problems = problemsIn(error).slice(0, problemsMax);
  const reported = errorIn(answer);
  return reported === null ? problems : `${problems}; the server says: ${reported.words}`;
}

/**
 * The error in a JSON answer, whatever its HTTP status; null = none. Gateways name it in many ways: `error`, `errors`,
 * `detail`, `message`, `base_resp`, and the `error` of the first choice.
 */
export function errorIn(answer: unknown): ReportedError | null {
  if (Array.isArray(answer)) return isReport(fieldsOf(answer[0])['error']) ? errorIn(answer[0]) : null;
  const body = fieldsOf(answer);
  const { choices } = body;
  const hasChoices = Array.isArray(choices) && choices.length > 0;
  const named = [body['error'], ...(hasChoices ? [fieldsOf(choices[0])['error']] : [])].find(isReport);
  if (named !== undefined) return reported(named, body);
  if (hasChoices) return null;
  const { status_code: baseStatus, status_msg: baseWords } = fieldsOf(body['base_resp']);
  if (baseStatus !== undefined && Number(baseStatus) !== 0)
    return reported({ code: baseStatus, message: baseWords }, body);
  const other = reportKeys.map((key) => body[key]).find(isReport);
  return other === undefined ? null : reported(other, body);
}

/** Fields with the reason in an answer without `error` and without choices, the most telling first. */
const reportKeys = [
  'errors',
  'detail',
  'error_msg',
  'error_message',
  'errorMessage',
  'fault',
  'message',
  'Message',
  'msg',
];

/** Several servers send an empty field. */
function isReport(value: unknown): boolean {
  if (value === undefined || value === null || value === false || value === 0 || value === '') return false;
  return typeof value !== 'object' || Object.keys(value).length > 0;
}

function reported(error: unknown, body: Fields): ReportedError {
  const said = saidBy(error, 0);
  const words = shortened(said.trim() === '' ? 'an error without words' : said, wordsMax);
  return {
    words,
    status:
      statusIn(error) ?? statusIn(body) ?? statusOfWords(`${kindOf(error)} ${kindOf(body)}`) ?? statusOfWords(said),
  };
}

const depthMax = 4;

function saidBy(error: unknown, depth: number): string {
  if (typeof error === 'string') return error;
  if (Array.isArray(error) && depth < depthMax) {
    return error.map((one) => saidBy(one, depth + 1)).join('; '); // FastAPI, Cloudflare
  }
  const fields = fieldsOf(error);
  const inner = [fields['message'], fields['msg'], fields['faultstring'], fields['detail'], fields['error']].find(
    isReport,
  );
  if (inner === undefined || depth >= depthMax) return written(error);
  const where = Array.isArray(fields['loc']) ? `${fields['loc'].join('.')}: ` : '';
  // OpenRouter's own words are "Provider returned error".
  const { raw } = fieldsOf(fields['metadata']);
  return `${where}${saidBy(inner, depth + 1)}${typeof raw === 'string' && raw !== '' ? ` (${raw})` : ''}`;
}

const statusKeys = ['code', 'status', 'status_code', 'statusCode', 'http_code', 'error_code'];

function statusIn(value: unknown): number | null {
  const fields = fieldsOf(Array.isArray(value) ? value[0] : value);
  for (const key of statusKeys) {
    const status = Number(fields[key]);
    if (Number.isInteger(status) && status >= 400 && status <= 599) return status;
  }
  return null;
}

/** An error's name of its kind: `rate_limit_error`, `RESOURCE_EXHAUSTED`, `BadRequestError`. */
function kindOf(value: unknown): string {
  const {
    type,
    code,
    status,
    error_type: errorType,
    __type: awsType,
  } = fieldsOf(Array.isArray(value) ? value[0] : value);
  return [type, code, status, errorType, awsType].filter((one) => typeof one === 'string').join(' ');
}

/** The first match wins. */
const statusWords: readonly (readonly [RegExp, number])[] = [
  [/context_length_exceeded|context_window|exceed_context|prompt is too long|maximum context length/i, 400],
  [/content.?(?:policy|filter|management|moderation)|moderation|guardrail|\bflagged\b|responsible ?ai/i, 400],
  [/rate.?limit|too.?many.?requests|resource.?exhausted|throttl|\bqps\b|quota|requests per (?:minute|day)/i, 429],
  [/overload|capacity|unavailable|server (?:is )?busy|loading|try again|temporar|no healthy upstream/i, 503],
  [/time.?d?.?out|deadline/i, 504],
  [/bad gateway|upstream|connection (?:reset|refused|error)/i, 502],
  [/api.?key|unauthori[sz]ed|unauthenticated|authentication|invalid.?token/i, 401],
  [/permission|forbidden|access.?denied/i, 403],
  [/insufficient.?(?:credits|balance)|payment|billing/i, 402],
  [/model.{0,80}(?:not.?found|does not exist|not exist|unknown|not supported)|not.?found/i, 404],
  [/invalid.?request|bad.?request|validation|invalid_argument|unsupported/i, 400],
  [/internal|server.?error/i, 500],
];

function statusOfWords(words: string): number | null {
  return statusWords.find(([pattern]) => pattern.test(words))?.[1] ?? null;
}

/** The text of a page in place of JSON, mostly a proxy's. */
export function wordsOfPage(text: string): string {
  if (!/^\s*<(?:!doctype|html|head|body|\?xml)/i.test(text)) return text;
  const page = text.slice(0, pageCharsMax);
  const title = /<title[^>]*>([^<]*)/i.exec(page)?.[1] ?? '';
  const body = page.replaceAll(/<(style|script|head)\b[^]*?<\/\1>/gi, ' ').replaceAll(/<[^>]*>/g, ' ');
  const words = [title, body].map((part) => part.replaceAll(/\s+/g, ' ').trim()).filter((part) => part !== '');
  return `a page in HTML: ${words.join(': ') || 'without words'}`;
}

const pageCharsMax = 20_000;

type Fields = Readonly<Record<string, unknown>>;

function fieldsOf(value: unknown): Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Fields) : {};
}

/** A value nested too deeply to be written becomes an empty text. */
function written(value: unknown): string {
  try {
    return JSON.stringify(value) ?? '';
  } catch {
    return '';
  }
}
