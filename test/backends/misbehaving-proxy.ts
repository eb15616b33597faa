import {
  type ClientRequest,
  createServer,
  request as send,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type ServerResponse,
} from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';

/** Treatment of one request to the server behind the proxy. */
export type Fate =
  | 'pass'
  /** Takes the request and never answers. */
  | 'hang'
  /** Cuts the connection when a part of the request's body has come. */
  | 'cut request'
  /** Passes half of the request's body on, then cuts both connections. */
  | 'cut upload'
  /** Cuts the connection in the middle of the answer's body. */
  | 'cut answer'
  /** Flips one bit of the answer's body. */
  | 'flip answer'
  /** 200 with an empty body. */
  | 'empty answer'
  /** 200 with an empty body and the headers of the right answer. */
  | 'empty body'
  /** The answer to the previous request of the same kind. */
  | 'other answer'
  /** Half of the body, as if it were complete. */
  | 'half answer'
  /** Reports success without doing anything. */
  | 'pretend'
  /** The server carries the request out; the answer is lost. */
  | 'lose answer'
  /** Says that a conditional write worked where the server refused it, as one that knows no conditions would. */
  | 'ignore conditions'
  | { readonly status: number; readonly code: string }
  | { readonly delayMs: number };

export interface SeenRequest {
  /** S3's name of the operation, from method and query: `PutObject`, `UploadPart`. */
  readonly operation: string;
  readonly url: string;
  readonly headers: IncomingHttpHeaders;
}

export interface MisbehavingProxy {
  readonly port: number;
  /** Decides from now on; everything passes by default. */
  decide: (request: SeenRequest) => Fate;
  readonly seen: SeenRequest[];
  /** Requests that did not simply pass. */
  spoiled: number;
  /** Bytes of request bodies passed on. */
  uploadedBytes: number;
  /** Closes the port until `accept`: open connections break, new ones are refused. */
  readonly refuse: () => Promise<void>;
  readonly accept: () => Promise<void>;
  readonly close: () => Promise<void>;
}

/** An HTTP proxy in front of a server on this machine, which treats each request as the test decides. */
export async function startProxy(target: number): Promise<MisbehavingProxy> {
  const server = createServer((incoming, outgoing) => void handle(incoming, outgoing));
  const listen = (port: number): Promise<void> =>
    new Promise((resolve, reject) => server.once('error', reject).listen(port, '127.0.0.1', resolve));
  const hangUp = async (): Promise<void> => {
    const closed = new Promise<void>((resolve) => server.close(() => resolve()));
    server.closeAllConnections();
    await closed;
  };
  let before: { readonly headers: IncomingHttpHeaders; readonly body: Buffer } | null = null;
  await listen(0);
  const { port } = server.address() as AddressInfo;
  const proxy: MisbehavingProxy = {
    port,
    decide: () => 'pass',
    seen: [],
    spoiled: 0,
    uploadedBytes: 0,
    refuse: hangUp,
    accept: () => listen(port),
    close: hangUp,
  };
  return proxy;

  async function handle(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
    incoming.on('error', () => undefined); // a client that hangs up
    const { url = '/', headers } = incoming;
    const seen = { operation: operationOf(incoming), url, headers };
    proxy.seen.push(seen);
    const fate = proxy.decide(seen);
    if (fate !== 'pass') proxy.spoiled += 1;
    if (fate === 'hang') return void incoming.resume();
    if (fate === 'cut request') return void incoming.once('data', () => incoming.socket.destroy());
    if (typeof fate === 'object' && 'status' in fate) {
      incoming.resume();
      await new Promise((resolve) => incoming.once('end', resolve));
      const body = `<?xml version="1.0"?><Error><Code>${fate.code}</Code><Message>${fate.code}, simulated</Message></Error>`;
      outgoing.writeHead(fate.status, { 'content-type': 'application/xml' }).end(body);
      return;
    }
    if (fate === 'pretend') {
      incoming.resume();
      return void outgoing.writeHead(200, { 'content-length': '0' }).end();
    }
    if (typeof fate === 'object') await delay(fate.delayMs);
    forward(seen, { incoming, outgoing, fate });
  }

  /** Small answers, the newest for each path. */
  function remember(answer: IncomingMessage): void {
    const chunks: Buffer[] = [];
    answer.on('data', (chunk: Buffer) => chunks.push(chunk));
    answer.once('end', () => (before = { headers: answer.headers, body: Buffer.concat(chunks) }));
  }

  function spoil(
    outgoing: ServerResponse,
    { answer, body, fate }: { readonly answer: IncomingMessage; readonly body: Buffer; readonly fate: Fate },
  ): void {
    const { statusCode: status = 200, headers } = answer;
    if (status >= 300 || (fate === 'other answer' && before === null))
      return void outgoing.writeHead(status, headers).end(body);
    if (fate === 'empty answer') return void outgoing.writeHead(200, { 'content-length': '0' }).end();
    if (fate === 'other answer') return void outgoing.writeHead(status, before!.headers).end(before!.body);
    if (fate === 'flip answer' && body.byteLength > 0) body[body.byteLength >> 1]! ^= 1;
    const kept =
      fate === 'empty body' ? Buffer.alloc(0) : fate === 'half answer' ? body.subarray(0, body.byteLength >> 1) : body;
    outgoing.writeHead(status, { ...headers, 'content-length': String(kept.byteLength) }).end(kept);
  }

  function forward(seen: SeenRequest, { incoming, outgoing, fate }: Forwarded): void {
    const { method, url: path, headers } = incoming;
    const onward = send({ host: '127.0.0.1', port: target, method, path, headers }, (answer) => {
      if (fate === 'lose answer') {
        answer.resume().once('end', () => incoming.socket.destroy());
      } else if (fate === 'ignore conditions' && answer.statusCode === 412) {
        answer.resume();
        outgoing.writeHead(200, { etag: '"0123"', 'content-length': '0' }).end();
      } else if (isSpoilt(fate)) {
        const chunks: Buffer[] = [];
        answer.on('data', (chunk: Buffer) => chunks.push(chunk));
        answer.once('end', () => spoil(outgoing, { answer, body: Buffer.concat(chunks), fate }));
      } else {
        outgoing.writeHead(answer.statusCode!, answer.headers);
        if (answer.statusCode! < 300 && seen.operation === 'GetObject') remember(answer);
        if (fate === 'cut answer') answer.once('data', (chunk: Buffer) => cut(outgoing, chunk));
        else answer.pipe(outgoing);
      }
    });
    onward.on('error', () => incoming.socket.destroy());
    if (fate === 'cut upload') return cutUpload(incoming, onward);
    incoming.on('data', (chunk: Buffer) => (proxy.uploadedBytes += chunk.byteLength));
    incoming.pipe(onward);
  }
}

interface Forwarded {
  readonly incoming: IncomingMessage;
  readonly outgoing: ServerResponse;
  readonly fate: Fate;
}

function isSpoilt(fate: Fate): boolean {
  return ['flip answer', 'empty answer', 'empty body', 'other answer', 'half answer'].includes(fate as string);
}

function cutUpload(incoming: IncomingMessage, onward: ClientRequest): void {
  let left = Math.floor(Number(incoming.headers['content-length'] ?? 0) / 2);
  incoming.on('data', (chunk: Buffer) => {
    const part = chunk.subarray(0, left);
    left -= part.byteLength;
    const hangUp = (): void => {
      onward.destroy();
      incoming.socket.destroy();
    };
    onward.write(part, left === 0 ? hangUp : undefined);
  });
}

function cut(outgoing: ServerResponse, chunk: Buffer): void {
  outgoing.write(chunk.subarray(0, Math.floor(chunk.byteLength / 2)), () => outgoing.socket?.destroy());
}

function operationOf({ method, url = '/' }: IncomingMessage): string {
  const { pathname, searchParams } = new URL(url, 'http://localhost');
  const isBucket = pathname.split('/').filter(Boolean).length < 2;
  if (method === 'GET' && searchParams.has('uploads')) return 'ListMultipartUploads';
  if (method === 'GET') return isBucket ? 'ListObjectsV2' : 'GetObject';
  if (method === 'HEAD') return 'HeadObject';
  if (method === 'PUT') return searchParams.has('partNumber') ? 'UploadPart' : 'PutObject';
  if (method === 'DELETE') return searchParams.has('uploadId') ? 'AbortMultipartUpload' : 'DeleteObject';
  if (searchParams.has('delete')) return 'DeleteObjects';
  return searchParams.has('uploads') ? 'CreateMultipartUpload' : 'CompleteMultipartUpload';
}
