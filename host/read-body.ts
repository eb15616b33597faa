import { RatchetError } from '../core/errors.ts';

/** A body that is too long, or compressed more often than allowed. A retry does not help. */
export class UnwantedBody extends RatchetError {
  constructor(message: string) {
    super('Unsupported', message);
  }
}

/** Requests an uncompressed answer. Servers may compress it once all the same. */
export const asItIs = { 'accept-encoding': 'identity' } as const;

/** Default bound for JSON and text answers: the list of a repository with 100,000 files is about 30 MB. */
const answerBytesMax = 64 * 1024 * 1024;

/**
 * Reads the whole body of a `fetch` answer, whose signal can abort it. Bytes are counted after decompression, and reading stops at
 * `bytesMax`. Throws {@link UnwantedBody} for a longer body, whatever its Content-Length says.
 */
export async function readBody(
  { headers, body }: Pick<Response, 'headers' | 'body'>,
  where: string,
  bytesMax = answerBytesMax,
): Promise<Buffer> {
  const why = whyUnwanted(headers, bytesMax);
  if (why !== null) {
    await body?.cancel().catch(() => undefined); // the answer is refused in any case
    throw new UnwantedBody(`${where}: ${why}`);
  }
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of (body ?? []) as AsyncIterable<Uint8Array>) {
    length += chunk.length;
    if (length > bytesMax) throw new UnwantedBody(`${where}: ${tooLong(bytesMax)}, got a longer one.`); // this also closes the connection
    chunks.push(chunk);
  }
  return Buffer.concat(chunks, length);
}

export async function readBodyText(
  response: Pick<Response, 'headers' | 'body'>,
  where: string,
  bytesMax = answerBytesMax,
): Promise<string> {
  return (await readBody(response, where, bytesMax)).toString('utf8');
}

function whyUnwanted(headers: Headers, bytesMax: number): string | null {
  const packed = (headers.get('content-encoding') ?? '').split(',').filter((each) => each.trim() !== '');
  if (packed.length > 1)
    return `expected an answer compressed at most once, got one compressed ${packed.length} times.`;
  const length = Number(headers.get('content-length') ?? 0);
  return length > bytesMax ? `${tooLong(bytesMax)}, got one of ${length}.` : null;
}

function tooLong(bytesMax: number): string {
  return `expected an answer of at most ${bytesMax} bytes`;
}

/**
 * Watches the rate of a download, because a server that sends a byte a minute would never finish. Calls `stalled` once if fewer than
 * `bytesMin` bytes came within `ms`.
 */
export class Pace {
  readonly #ms: number;
  readonly #bytesMin: number;
  #timer: NodeJS.Timeout;
  #bytes = 0;

  constructor({ ms, bytesMin }: { readonly ms: number; readonly bytesMin: number }, stalled: () => void) {
    this.#ms = ms;
    this.#bytesMin = bytesMin;
    const look = (): void => {
      if (this.#bytes < this.#bytesMin) return stalled();
      this.#bytes = 0;
      this.#timer = setTimeout(look, this.#ms);
    };
    this.#timer = setTimeout(look, ms);
  }

  came(bytes: number): void {
    this.#bytes += bytes;
  }

  end(): void {
    clearTimeout(this.#timer);
  }
}
