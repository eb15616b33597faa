import { RatchetError } from '../core/errors.ts';

/** A body is longer than was expected, or packed more often than anybody asked for. Asking again does not help. */
export class UnwantedBody extends RatchetError {
  constructor(message: string) {
    super('Unsupported', message);
  }
}

/** What is asked for: an answer as it is. Who packs it all the same packs it once. */
export const asItIs = { 'accept-encoding': 'identity' } as const;

/** Of an answer of JSON or of words; a list of a repository with 100,000 files has some 30 MB. */
const answerBytesMax = 64 * 1024 * 1024;

/**
 * The whole body of an answer of `fetch`, which has a signal that ends it: bytes are counted as they come out of what they were packed in,
 * and no more is taken than `bytesMax`. Throws {@link UnwantedBody} for a longer one, whatever it says of its own length.
 */
export async function readBody(
  { headers, body }: Pick<Response, 'headers' | 'body'>,
  where: string,
  bytesMax = answerBytesMax,
): Promise<Buffer> {
  const why = whyUnwanted(headers, bytesMax);
  if (why !== null) {
    await body?.cancel().catch(() => undefined); // it is refused, however it ends
    throw new UnwantedBody(`${where}: ${why}`);
  }
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of (body ?? []) as AsyncIterable<Uint8Array>) {
    length += chunk.length;
    if (length > bytesMax) throw new UnwantedBody(`${where}: ${tooLong(bytesMax)}, got a longer one.`); // which ends the connection
    chunks.push(chunk);
  }
  return Buffer.concat(chunks, length);
}

/** As UTF-8. */
export async function readBodyText(
  response: Pick<Response, 'headers' | 'body'>,
  where: string,
  bytesMax = answerBytesMax,
): Promise<string> {
  return (await readBody(response, where, bytesMax)).toString('utf8');
}

function whyUnwanted(headers: Headers, bytesMax: number): string | null {
  const packed = (headers.get('content-encoding') ?? '').split(',').filter((each) => each.trim() !== '');
  if (packed.length > 1) return `expected an answer as it is, got one that is packed ${packed.length} times.`;
  const length = Number(headers.get('content-length') ?? 0);
  return length > bytesMax ? `${tooLong(bytesMax)}, got one of ${length}.` : null;
}

function tooLong(bytesMax: number): string {
  return `expected an answer of at most ${bytesMax} bytes`;
}

/**
 * Whether what comes comes fast enough: a server that sends a byte a minute would be listened to for ever. `stalled` is called once where
 * less than `bytesMin` came within `ms`.
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
