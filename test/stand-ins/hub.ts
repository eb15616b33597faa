import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';

/** A Hugging Face Hub, as far as it is asked for a model or a dataset: its list, its files with their headers, and where large files really are. */

export interface StandInHub {
  readonly url: string;
  /** Every request so far: method, path, the range and whether a token came; `storage` before those to where large files are. */
  readonly requests: readonly string[];
  /** Files by name, for each model, and for each dataset as `datasets/OWNER/NAME`. */
  readonly models: Map<string, HubRepository>;
  /** Large contents break off after so many bytes, once for each number. */
  readonly breaks: number[];
  /** Statuses that are answered before anything else is. */
  readonly troubles: number[];
  close(): Promise<void>;
}

export interface HubRepository {
  readonly files: ReadonlyMap<string, Buffer>;
  readonly commit: string;
  /** Files of which the list has no digests, as mirrors have it. */
  readonly listsDigests?: boolean;
  /** The required token. */
  readonly gate?: string;
  /** The name that it has now. */
  readonly movedTo?: string;
}

/** From this size on a file is stored elsewhere, by its sha256. */
const largeBytes = 4096;

export function repositoryOf(
  folder: string,
  more: Partial<HubRepository> & { readonly add?: Record<string, string> } = {},
): HubRepository {
  const { add = {}, ...rest } = more;
  const files = new Map(readdirSync(folder).map((name) => [name, readFileSync(path.join(folder, name))]));
  for (const [name, text] of Object.entries(add)) files.set(name, Buffer.from(text));
  return { files, commit: 'a'.repeat(40), ...rest };
}

export async function startHub(): Promise<StandInHub> {
  const requests: string[] = [];
  const state = {
    models: new Map<string, HubRepository>(),
    breaks: [] as number[],
    troubles: [] as number[],
    storage: '',
  };
  const storage = createServer((request, response) => {
    requests.push(`storage ${line(request)}`);
    const digest = (request.url ?? '').slice(1);
    const content = [...state.models.values()]
      .flatMap(({ files }) => [...files.values()])
      .find((bytes) => sha256(bytes) === digest);
    const from = Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? '')?.[1] ?? 0);
    if (content === undefined) response.writeHead(404).end();
    else send(response, content, from, state.breaks.shift());
  });
  const hub = createServer((request, response) => {
    requests.push(line(request));
    const trouble = state.troubles.shift();
    if (trouble !== undefined) response.writeHead(trouble, { 'retry-after': '0' }).end();
    else answer(request, response, state);
  });
  state.storage = await listening(storage);
  const url = await listening(hub);
  return {
    url,
    requests,
    ...state,
    close: async () => {
      for (const server of [hub, storage]) {
        server.closeAllConnections();
        await new Promise((resolve) => server.close(resolve));
      }
    },
  };
}

function answer(
  request: IncomingMessage,
  response: ServerResponse,
  { models, storage }: { readonly models: StandInHub['models']; readonly storage: string },
): void {
  const url = new URL(request.url ?? '', 'http://hub');
  // A dataset is called `datasets/OWNER/NAME` here.
  const [, kind = '', named = '', revision = ''] =
    /^\/api\/(models|datasets)\/([^/]+\/[^/]+)\/revision\/(.+)$/.exec(url.pathname) ?? [];
  const id = kind === 'datasets' ? `datasets/${named}` : named;
  const [, owner = '', at = '', name = ''] =
    /^\/((?:datasets\/)?[^/]+\/[^/]+)\/resolve\/([^/]+)\/(.+)$/.exec(url.pathname) ?? [];
  const repository = models.get(id || owner);
  const refuse = (status: number, code: string): void =>
    void response.writeHead(status, { 'x-error-code': code, 'content-type': 'application/json' }).end('{"error":"no"}');
  const token = request.headers.authorization;
  // Without a token the Hub does not say whether there is such a model.
  if (repository === undefined) return refuse(token === undefined ? 401 : 404, 'RepoNotFound');
  const { commit, files, gate, movedTo, listsDigests = true } = repository;
  if (movedTo !== undefined) {
    const to = request.url!.replace(id || owner, movedTo);
    response.writeHead(307, { location: to }).end();
    return;
  }
  if (![commit, 'main'].includes(decodeURIComponent(revision || at))) return refuse(404, 'RevisionNotFound');
  if (id !== '') {
    const siblings = [...files].map(([rfilename, bytes]) => ({ rfilename, ...(listsDigests ? described(bytes) : {}) }));
    response
      .writeHead(200, { 'content-type': 'application/json' })
      .end(JSON.stringify({ id, sha: commit, gated: gate !== undefined, siblings }));
    return;
  }
  const bytes = files.get(decodeURIComponent(name));
  if (gate !== undefined && token !== `Bearer ${gate}`) return refuse(token === undefined ? 401 : 403, 'GatedRepo');
  if (bytes === undefined) return refuse(404, 'EntryNotFound');
  if (bytes.length >= largeBytes) {
    const linked = { 'x-linked-etag': `"${sha256(bytes)}"`, 'x-linked-size': bytes.length, 'x-repo-commit': commit };
    response.writeHead(302, { location: `${storage}/${sha256(bytes)}`, ...linked }).end();
    return;
  }
  const headers = { etag: `"${blobId(bytes)}"`, 'x-repo-commit': commit, 'content-length': bytes.length };
  response.writeHead(200, headers).end(request.method === 'HEAD' ? undefined : bytes);
}

function described(bytes: Buffer): object {
  const plain = { size: bytes.length, blobId: blobId(bytes) };
  return bytes.length < largeBytes
    ? plain
    : { ...plain, lfs: { sha256: sha256(bytes), size: bytes.length, pointerSize: 134 } };
}

function send(response: ServerResponse, content: Buffer, from: number, breakAfter: number | undefined): void {
  const part = content.subarray(from);
  const range = { 'content-range': `bytes ${from}-${content.length - 1}/${content.length}` };
  response.writeHead(from > 0 ? 206 : 200, { 'content-length': part.length, ...(from > 0 ? range : {}) });
  if (breakAfter === undefined) response.end(part);
  else response.write(part.subarray(0, breakAfter), () => setTimeout(() => response.destroy(), 20));
}

function line({ method, url, headers }: IncomingMessage): string {
  return [method, url?.split('?')[0], headers.range, headers.authorization]
    .filter((part) => part !== undefined)
    .join(' ');
}

async function listening(server: ReturnType<typeof createServer>): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

export function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex');
}

export function blobId(bytes: Buffer): string {
  return createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex');
}
