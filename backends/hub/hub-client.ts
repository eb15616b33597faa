import { setTimeout as wait } from 'node:timers/promises';
import { z } from 'zod';
import { hubAnswerMsMax, hubStallMsMax } from '../../core/limits.ts';
import { RatchetError } from '../../core/errors.ts';
import { problemsIn } from '../../core/problems-in.ts';
import { askServer, isRefusal } from '../../host/ask-server.ts';
import { asItIs, readBodyText, UnwantedBody } from '../../host/read-body.ts';
import { commitPattern, type RepositoryKind } from './hub-cache.ts';
import type { HubSettings } from './hub-settings.ts';

/** A file of a repository, at one commit. */
export interface HubFile {
  readonly name: string;
  readonly sizeBytes: number;
  /** The cache's name of its content: the sha256 of a large file, git's sha1 of a small one. */
  readonly digest: string;
}

export interface HubRepositoryAt {
  readonly commit: string;
  readonly names: readonly string[];
  /** Files whose size and digest came with the list. */
  readonly files: ReadonlyMap<string, HubFile>;
}

const digest = z.string().regex(/^(?:[0-9a-f]{40}|[0-9a-f]{64})$/);
const size = z.int().min(0);
const Sibling = z.object({
  rfilename: z.string(),
  size: size.nullish(),
  blobId: z.string().nullish(),
  lfs: z.object({ sha256: digest, size }).nullish(),
});
const ModelInfo = z.object({ sha: z.string().regex(commitPattern), siblings: z.array(Sibling).default([]) });

/** Client of a Hugging Face Hub. Throws ModelUnsupported if a retry will not help, ServerUnavailable if it may. */
export class HubClient {
  readonly #settings: HubSettings;
  readonly #kind: RepositoryKind;

  constructor(settings: HubSettings, kind: RepositoryKind = 'models') {
    this.#settings = settings;
    this.#kind = kind;
  }

  /** The files of a repository at a revision, with their digests. */
  async repository(id: string, revision: string): Promise<HubRepositoryAt> {
    const url = `${this.#settings.endpoint}/api/${this.#kind}/${id}/revision/${encodeURIComponent(revision)}?blobs=true`;
    const response = await this.#ask(url, { id, what: `revision ${revision}` });
    const text = await readBodyText(response, url, descriptionBytesMax).catch((cause: unknown) => {
      if (cause instanceof UnwantedBody) throw cause;
      throw new RatchetError('ServerUnavailable', `${url} broke off: ${reasonOf(cause)}.`, { cause });
    });
    const parsed = ModelInfo.safeParse(jsonOrNull(text));
    if (!parsed.success) {
      const message = `${url}: expected a repository's description, got ${problemsIn(parsed.error)}. Is HF_ENDPOINT a Hugging Face Hub?`;
      throw new RatchetError('ServerUnavailable', message);
    }
    const { sha, siblings } = parsed.data;
    const files = siblings.flatMap(({ rfilename: name, size: plain, blobId, lfs }): HubFile[] => {
      if (lfs) return [{ name, sizeBytes: lfs.size, digest: lfs.sha256 }];
      if (plain == null || !digest.safeParse(blobId).success) return [];
      return [{ name, sizeBytes: plain, digest: blobId! }];
    });
    return {
      commit: sha,
      names: siblings.map(({ rfilename }) => rfilename),
      files: new Map(files.map((file) => [file.name, file])),
    };
  }

  /** Size and digest of one file, from the headers of its address, if the list has none. */
  async file(id: string, commit: string, name: string): Promise<HubFile> {
    const url = this.#address(id, commit, name);
    const { headers } = await this.#headers(url, { id, what: name });
    const etag = (headers.get('x-linked-etag') ?? headers.get('etag') ?? '').replace(/^W\//, '').replaceAll('"', '');
    const sizeBytes = Number(headers.get('x-linked-size') ?? headers.get('content-length') ?? Number.NaN);
    if (digest.safeParse(etag).success && Number.isInteger(sizeBytes)) return { name, sizeBytes, digest: etag };
    const message = `${url}: expected a size and a digest of ${name} (X-Linked-Size, X-Linked-Etag), got ${JSON.stringify(etag)}. What cannot be verified is not taken.`;
    throw new RatchetError('ModelUnsupported', message);
  }

  /** The content of a file from a byte on. The status is 200 if the server sends all of it nevertheless. */
  async open(id: string, commit: string, file: HubFile, from: number, signal: AbortSignal): Promise<Response> {
    const headers = from > 0 ? { range: `bytes=${from}-` } : {};
    return this.#ask(this.#address(id, commit, file.name), { id, what: file.name, headers, signal });
  }

  /** A model's page is its name, a dataset's has a folder before it. */
  #page(id: string): string {
    return `${this.#settings.endpoint}/${this.#kind === 'models' ? '' : `${this.#kind}/`}${id}`;
  }

  #address(id: string, commit: string, name: string): string {
    return `${this.#page(id)}/resolve/${commit}/${name.split('/').map(encodeURIComponent).join('/')}`;
  }

  /** A redirect to the content has the headers; one on the same server, for a renamed model, is followed. */
  async #headers(url: string, asked: Asked): Promise<Response> {
    let at = url;
    for (let i = 0; i < redirectsMax; i++) {
      const response = await this.#ask(at, { ...asked, method: 'HEAD', redirects: 'returned' });
      const to = response.headers.get('location');
      if (
        to === null ||
        !URL.canParse(to, at) ||
        new URL(to, at).origin !== new URL(at).origin ||
        response.headers.has('x-linked-etag')
      ) {
        return response;
      }
      at = new URL(to, at).href;
    }
    throw new RatchetError('ServerUnavailable', `${url}: expected the file, got more than ${redirectsMax} redirects.`);
  }

  /** A token is sent to the Hub alone, not to the target of a redirect to another server. */
  async #ask(url: string, { id, what, signal, headers = {}, ...request }: Asked): Promise<Response> {
    const { token, endpoint } = this.#settings;
    const server = {
      what: 'The Hugging Face Hub (HF_ENDPOINT)',
      url: endpoint,
      keys: token === null ? [] : ['HF_TOKEN'],
      variables: ['HF_ENDPOINT'] as const,
    };
    let response: Response;
    try {
      response = await askServer(server, url, {
        redirects: 'followed',
        ...request,
        headers: { 'user-agent': 'ratchet', ...asItIs, ...headers },
        secrets: () => (token === null ? {} : { authorization: `Bearer ${token.value}` }),
        signal: signal ?? AbortSignal.timeout(hubAnswerMsMax),
      });
    } catch (cause) {
      if (isRefusal(cause)) throw cause;
      throw new RatchetError('ServerUnavailable', `${url} cannot be reached: ${reasonOf(cause)}.`, { cause });
    }
    if (response.status < 400) return response;
    await response.body?.cancel();
    throw this.#refusal(response, { url, id, what });
  }

  #refusal(response: Response, { url, id, what }: { url: string; id: string; what: string }): RatchetError {
    const { status, headers } = response;
    const code = headers.get('x-error-code');
    const { token } = this.#settings;
    const page = this.#page(id);
    const login =
      token === null
        ? 'There is no token here: `hf auth login`, or set HF_TOKEN'
        : `The token of ${token.from} has no access to it`;
    if (code === 'GatedRepo') {
      const says = `${id} is gated: its owners give access to those who accept their conditions, at ${page}. ${login}.`;
      return new RatchetError('ModelUnsupported', says);
    }
    if (code === 'RevisionNotFound' || code === 'EntryNotFound') {
      return new RatchetError('ModelUnsupported', `${page} has no ${what}.`);
    }
    if (status === 401 || status === 403 || status === 404) {
      const says = `${page} is not there, or is not shown to everybody (${status}). Look at the spelling, OWNER/NAME. ${login}.`;
      return new RatchetError('ModelUnsupported', says);
    }
    if (status === 429 || status >= 500) {
      const seconds = Number(headers.get('retry-after') ?? Number.NaN);
      const retry = seconds >= 0 ? { retryAfterMs: Math.min(seconds * 1000, hubStallMsMax) } : {};
      return new RatchetError('ServerUnavailable', `${url} answers ${status}.`, retry);
    }
    return new RatchetError('ModelUnsupported', `${url} answers ${status}, expected the file.`);
  }
}

const redirectsMax = 5;
/** Largest repository description accepted: one with 100,000 files has about 30 MB. */
const descriptionBytesMax = 64 * 1024 * 1024;

function jsonOrNull(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

interface Asked {
  readonly id: string;
  /** Name in messages: a revision or a file. */
  readonly what: string;
  readonly method?: 'HEAD';
  readonly redirects?: 'returned';
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

/** `fetch failed` hides the reason in its cause. */
function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error ? error.cause.message : error.message;
}

/** Retries while that may help, with a doubling pause. An answer that took the whole time limit is not retried. */
export async function askedAgain<T>(attempts: number, pauseMs: number, work: () => Promise<T>): Promise<T> {
  const giveUpAt = performance.now() + hubAnswerMsMax;
  for (let attempt = 1; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof RatchetError) || !error.isRetryable || attempt >= attempts) throw error;
      if (performance.now() > giveUpAt) throw error;
      await wait(error.retryAfterMs ?? pauseMs * 2 ** (attempt - 1));
    }
  }
}
