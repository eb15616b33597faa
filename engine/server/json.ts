import { jsonDepthMax, jsonNodesMax } from '../limits.ts';
import { parseExact } from '../../core/exact-json.ts';
import { HttpError } from './http-error.ts';

/**
 * Parses untrusted JSON. Depth and the number of strings, lists and objects are counted before anything is built: a
 * short body may otherwise become a value a hundred times its size, and a deep one overflow the stack of its reader.
 */
export function parseBoundedJson(body: Buffer): unknown {
  requireBounded(body);
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(body);
  } catch (cause) {
    throw new HttpError(400, 'The body is not JSON: expected UTF-8, got bytes that are none.', { cause });
  }
  try {
    // Chat templates write numbers and keys as they came; nothing else of a request depends on it.
    return isForTemplate.test(text) ? parseExact(text) : JSON.parse(text);
  } catch (cause) {
    throw new HttpError(400, `The body is not JSON: ${shortened(String(cause))}`, { cause });
  }
}

const isForTemplate = /"(?:messages|tools|chat_template_kwargs)"/;

/** Text of a client as an answer or the log may repeat it. */
export function shortened(text: string, lengthMax = 200): string {
  const printable = text.slice(0, lengthMax).replaceAll(/[\p{Cc}\p{Zl}\p{Zp}]/gu, '\u{FFFD}');
  return text.length <= lengthMax ? printable : `${printable}… (${text.length} characters)`;
}

const quote = 0x22;
const backslash = 0x5c;
const listOpens = 0x5b;
const listCloses = 0x5d;
const objectOpens = 0x7b;
const objectCloses = 0x7d;

function requireBounded(body: Buffer): void {
  let depth = 0;
  let nodes = 0;
  for (let i = 0; i < body.length; i++) {
    const byte = body[i]!;
    if (byte === quote) {
      nodes++;
      i = endOfString(body, i + 1);
    } else if (byte === listOpens || byte === objectOpens) {
      nodes++;
      depth++;
    } else if (byte === listCloses || byte === objectCloses) depth--;
    if (depth > jsonDepthMax) {
      throw new HttpError(400, `The body is nested deeper than ${jsonDepthMax} levels. Send flatter JSON.`);
    }
    if (nodes > jsonNodesMax) {
      const message = `The body has more than ${jsonNodesMax} strings, lists and objects. Send several requests.`;
      throw new HttpError(400, message);
    }
  }
}

/** The index of the closing quote, or the end of a torn body. */
function endOfString(body: Buffer, start: number): number {
  for (let end = body.indexOf(quote, start); end >= 0; end = body.indexOf(quote, end + 1)) {
    let backslashes = 0;
    while (end - 1 - backslashes >= start && body[end - 1 - backslashes] === backslash) backslashes++;
    if (backslashes % 2 === 0) return end;
  }
  return body.length;
}
