import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { gzipSync } from 'node:zlib';
import { RatchetError } from '../core/errors.ts';
import { runNamePattern } from '../core/names.ts';
import type { Person } from '../core/roles.ts';
import { openRunStore } from '../store/index.ts';
import { layout } from '../runs/layout.ts';
import { answerHeaders, type ChatAsked, type PageSettings, type Steering } from './answers.ts';
import { Doorkeeper } from './doorkeeper.ts';
import { Folder } from './folder.ts';
import { KnownAnswers } from './known-answers.ts';
import { pageFiles, pageHtml, policy } from './page-files.ts';
import { chatIn, steeringIn } from './posted.ts';
import { answerRoute, BadRequest } from './routes.ts';
import { type AskPools, type AskRun, type ListRunning, RunSource } from './run-source.ts';
import { Viewers } from './viewers.ts';

interface PageOptions {
  /** Absolute URI of the folder that holds the runs. */
  readonly store: string;
  /** The run to open; null: the list of runs. */
  readonly run: string | null;
  /** Names of runs, or beginnings of names and `*`, that the page opens with. */
  readonly compare?: readonly string[];
  /** 0 = a free port. */
  readonly port: number;
  readonly ask: AskRun;
  /** Absent: no run is asked, only folders are read. */
  readonly running?: ListRunning;
  /** Absent: the page shows no fleet. */
  readonly pools?: AskPools;
  /** Absent: the page only shows. */
  readonly steer?: SteerRun;
  /** Whose key a token is that is not the page's own; absent: nobody's. */
  readonly guestOf?: (key: string) => Promise<PageGuest | null>;
  /** Absent: the page has no chat. */
  readonly chat?: ChatWithRun;
}

/** Somebody with a key of their own. */
export interface PageGuest {
  readonly person: Person;
  /** Viewers only look. */
  readonly maySteer: boolean;
}

/** Sends a message to a version of a run, and streams its answer until `signal`. */
export type ChatWithRun = (
  run: string,
  asked: ChatAsked,
  tell: (piece: string) => void,
  signal: AbortSignal,
) => Promise<{ readonly name: string; readonly end: 'stop' | 'length' | 'aborted' }>;

/** Sends a steering request for a guest, or for whoever serves the page (null); returns the run's description of its effect. */
export type SteerRun = (run: string, steering: Steering, as: Person | null) => Promise<string>;

interface ServedPage {
  /** Address with its token, for browsers. */
  readonly url: string;
  /** Starts loading the page's first answers before anybody opens it. */
  prepare(): void;
  close(): Promise<void>;
}

const guards = {
  'cache-control': 'no-store',
  'content-security-policy': policy,
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
};

/** Files that need no token, because they contain no data of a run. */
const openFiles: Readonly<Record<string, { readonly type: string; readonly text: () => Promise<string> }>> = {
  '/': { type: 'text/html', text: () => Promise.resolve(pageHtml()) },
  '/page.js': { type: 'text/javascript', text: async () => (await pageFiles()).script },
  '/page.css': { type: 'text/css', text: async () => (await pageFiles()).style },
};

/** Below this, packing costs more than it saves. */
const packedFrom = 1_500;

/** Serves the page on this machine only. Throws EADDRINUSE when the port is taken. */
export async function servePage(options: PageOptions): Promise<ServedPage> {
  const site = new Site(options);
  const server = createServer((request, response) => void site.answer(request, response));
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject).listen({ host: '127.0.0.1', port: options.port, exclusive: true }, resolve);
  });
  site.port = portOf(server);
  return {
    prepare: () => site.prepare(),
    url: `http://127.0.0.1:${site.port}/#token=${site.door.token}`,
    async close() {
      site.end();
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}

interface OpenRun {
  readonly source: RunSource;
  readonly viewers: Viewers;
  readonly answers: KnownAnswers;
}

/** A request, and who asks: null = whoever serves the page. */
interface Admitted {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly guest: PageGuest | null;
}

class Site {
  readonly door: Doorkeeper<PageGuest | null>;
  port = 0;
  readonly #options: PageOptions;
  readonly #folder: Folder;
  readonly #runs = new Map<string, Promise<OpenRun>>();

  constructor(options: PageOptions) {
    this.#options = options;
    this.door = new Doorkeeper<PageGuest | null>(null, options.guestOf ?? (() => Promise.resolve(null)));
    const { store, ask, running = () => Promise.resolve([]), pools } = options;
    this.#folder = new Folder({ store, ask, running, pools });
  }

  prepare(): void {
    const { run } = this.#options;
    const told = (): undefined => undefined; // ignored here: the caller that needs it gets the error
    pageFiles().catch(told);
    if (run !== null)
      this.#open(run)
        .then(({ source }) => source.overview(), told)
        .catch(told);
  }

  end(): void {
    for (const run of this.#runs.values())
      run.then(
        ({ viewers }) => viewers.end(),
        () => undefined, // opening failed, and its caller has the error
      );
  }

  async answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    try {
      await this.#answer(request, response);
    } catch (error) {
      if (response.headersSent) return void response.destroy();
      const isMissing = error instanceof RatchetError && error.code === 'RunNotFound';
      const status = error instanceof BadRequest ? 400 : isMissing ? 404 : 500;
      const message = error instanceof Error ? error.message : String(error);
      send(request, response, { status, type: 'application/json', body: JSON.stringify({ message }) });
    }
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { url, headers, method } = request;
    const address = URL.canParse(url ?? '', 'http://here') ? new URL(url ?? '', 'http://here') : null;
    if (!address) return plain(request, response, 400, 'Expected an address.');
    const isForAll = method === 'GET' && Object.hasOwn(openFiles, address.pathname);
    const admitted = await this.door.admit(headers, this.port, isForAll);
    if ('status' in admitted) return plain(request, response, admitted.status, admitted.message);
    const { guest } = admitted;
    if (method === 'POST') return this.#take(address, { request, response, guest });
    if (method !== 'GET' && method !== 'HEAD') return plain(request, response, 405, 'This page only shows.');
    await this.#show(address, { request, response, guest });
  }

  /** Accepted only from the page itself: a browser names the origin of a post. */
  async #take({ pathname }: URL, { request, response, guest }: Admitted): Promise<void> {
    const { steer, chat } = this.#options;
    if (!steer)
      return plain(request, response, 405, 'This page only shows. `ratchet ui --steer` opens one that can do more.');
    if (guest?.maySteer === false)
      return plain(request, response, 403, `${guest.person.name} is a viewer, who may look.`);
    const asked = /^\/api\/runs\/([^/]+)\/(steer|chat)$/.exec(pathname);
    if (!asked) return plain(request, response, 404, 'There is nothing here.');
    if (request.headers.origin === undefined || request.headers['content-type'] !== 'application/json')
      return plain(request, response, 403, 'Expected JSON from the page itself.');
    const { source } = await this.#open(nameIn(asked[1]!));
    try {
      if (asked[2] === 'chat' && chat) await talk(response, source.place.name, chat, await chatIn(request));
      else
        json(request, response, {
          message: await steer(source.place.name, await steeringIn(request), guest?.person ?? null),
        });
    } catch (error) {
      if (!(error instanceof RatchetError)) throw error;
      throw new BadRequest(error.message, { cause: error });
    }
  }

  async #show({ pathname, searchParams }: URL, { request, response, guest }: Admitted): Promise<void> {
    const { run, compare = [], steer } = this.#options;
    if (Object.hasOwn(openFiles, pathname)) {
      const { type, text } = openFiles[pathname]!;
      return send(request, response, { type, body: await text() });
    }
    if (pathname === '/api/settings') {
      const canSteer = steer !== undefined && guest?.maySteer !== false;
      const settings: PageSettings = { run, compare, isReport: false, canSteer, madeAt: new Date().toISOString() };
      return json(request, response, settings);
    }
    const ofFolder = /^\/api\/([^/]+)$/.exec(pathname)?.[1];
    const found = ofFolder !== undefined && run === null ? await this.#folder.answer(ofFolder, searchParams) : null;
    if (found !== null) return json(request, response, found);
    const asked = /^\/api\/runs\/([^/]+)(?:\/([^/]*))?$/.exec(pathname);
    if (!asked) return plain(request, response, 404, 'There is nothing here.');
    const { source, viewers, answers } = await this.#open(nameIn(asked[1]!));
    if (asked[2] === 'live') return viewers.add(response);
    const body = JSON.stringify(await answerRoute(source, asked[2] ?? '', searchParams));
    const known = request.headers[answerHeaders.known];
    const answer = typeof known === 'string' ? answers.named(body, known) : { body };
    send(request, response, { type: 'application/json', ...answer });
  }

  #open(run: string): Promise<OpenRun> {
    const opened = this.#runs.get(run) ?? this.#openAnew(run);
    this.#runs.set(run, opened);
    opened.catch(() => this.#runs.delete(run)); // the run may exist at the next request
    return opened;
  }

  async #openAnew(run: string): Promise<OpenRun> {
    const { store, run: only, ask } = this.#options;
    const isOther = only !== null && run !== only;
    if (isOther || !runNamePattern.test(run) || (await openRunStore(store, run).read(layout.run())) === null)
      throw new RatchetError('RunNotFound', `There is no run ${JSON.stringify(run)} here.`);
    const source = new RunSource({ name: run, store }, ask);
    return { source, viewers: new Viewers(source), answers: new KnownAnswers() };
  }
}

/** The decoded name; text with invalid escapes decodes to no name. */
function nameIn(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Streams the model's answer. A page that closes, or stops the answer, ends it. */
async function talk(response: ServerResponse, run: string, chat: ChatWithRun, asked: ChatAsked): Promise<void> {
  const gone = new AbortController();
  response.once('close', () => gone.abort());
  const write = (text: string): void => {
    if (!response.headersSent) response.writeHead(200, { ...guards, 'content-type': 'text/plain; charset=utf-8' });
    response.write(text);
  };
  const { end } = await chat(run, asked, write, gone.signal);
  if (end === 'length') write(' …');
  write('');
  response.end();
}

function json(request: IncomingMessage, response: ServerResponse, value: unknown): void {
  send(request, response, { type: 'application/json', body: JSON.stringify(value) });
}

function plain(request: IncomingMessage, response: ServerResponse, status: number, message: string): void {
  send(request, response, { status, type: 'text/plain', body: `${message}\n` });
}

function send(
  { headers, method }: IncomingMessage,
  response: ServerResponse,
  {
    status = 200,
    type,
    body,
    headers: own = {},
  }: {
    readonly status?: number;
    readonly type: string;
    readonly body: string;
    readonly headers?: Readonly<Record<string, string>>;
  },
): void {
  const isPacked = body.length >= packedFrom && /\bgzip\b/.test(headers['accept-encoding'] ?? '');
  const bytes = isPacked ? gzipSync(body, { level: 5 }) : Buffer.from(body);
  response.writeHead(status, {
    ...guards,
    ...own,
    'content-type': `${type}; charset=utf-8`,
    'content-length': bytes.byteLength,
    ...(isPacked ? { 'content-encoding': 'gzip' } : {}),
  });
  response.end(method === 'HEAD' ? undefined : bytes);
}
