import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { LineReader } from '../environments/verifiers/line-reader.ts';
import { hostOf } from './host.ts';
import { interfaceOf, type Line, NodeLink, type NodesPlace, tlsClient } from './node-link.ts';
import { type Fatal, lineBytesMax, readMessage } from './protocol.ts';

/** Another node of a trainer: it joins the first one, and has ranks here as that one says. It starts no run. */

const againMs = 2_000;
/** A first node that is not there yet is said again after so long. */
const sayAgainMs = 60_000;

export interface NodeOptions {
  readonly place: NodesPlace;
  readonly rank: number;
  readonly secret: string;
  /** The Python here that has the trainer's packages. */
  readonly python: string;
  readonly say: (line: string) => void;
  readonly signal: AbortSignal;
  /** Whether it ends when the processes of the first node were ended; else it waits for them. */
  readonly endsWithRun: boolean;
}

/** Joins again whenever the first node is lost. Resolves when the signal says so, or the first node's processes were ended. */
export async function serveTrainerNode(options: NodeOptions): Promise<void> {
  const { place, say, signal } = options;
  const where = `${place.address}:${place.port}`;
  await hostOf(options.python).listening(); // imports while nobody waits, and says what it lacks
  let saidAt = Number.NEGATIVE_INFINITY;
  while (!signal.aborted) {
    const { why, hasJoined, isOver } = await joined(options);
    if (signal.aborted) return;
    if (isOver) say(`the processes of the first node (${where}) were ended`);
    if (isOver && options.endsWithRun) return;
    if (hasJoined || performance.now() - saidAt > sayAgainMs) {
      say(`${hasJoined ? 'lost' : 'waiting for'} the first node at ${where}: ${why}`);
      saidAt = performance.now();
    }
    await new Promise((resolve) => setTimeout(resolve, againMs));
  }
}

interface Leaving {
  readonly why: string;
  readonly hasJoined: boolean;
  readonly isOver: boolean;
}

/** Serves one connection to its end. */
function joined({ place, rank, secret, python, say, signal }: NodeOptions): Promise<Leaving> {
  return new Promise((resolve) => {
    let [hasJoined, isOver, why] = [false, false, 'it closed the connection'];
    let group: GroupHere | null = null;
    const socket = connectTls({ host: place.address, port: place.port, ...tlsClient(secret) }, () => {
      hasJoined = true;
      say(`joined ${place.address}:${place.port} as node ${rank}`);
      link.say({ join: rank, name: `node ${rank} (${os.hostname()}, process ${process.pid})` });
    });
    const link = new NodeLink(socket, (line) => {
      if ('over' in line) isOver = true;
      if ('start' in line) {
        group = new GroupHere({ python, place, secret, socket, link, say }, line);
        void group.start();
      }
      if ('stop' in line) {
        const ended = group?.stop() ?? Promise.resolve();
        group = null;
        void ended.then(() => link.say({ free: true }));
      }
    });
    socket.on('error', (error: NodeJS.ErrnoException) => {
      const isForeign = /alert|decrypt/i.test(error.message);
      why = isForeign
        ? 'it has another secret. Copy .ratchet/secret of its project folder here, or name the copy by RATCHET_SECRET_FILE'
        : error.message;
    });
    const leave = (): void => void socket.destroy();
    signal.addEventListener('abort', leave, { once: true });
    socket.once('close', () => {
      signal.removeEventListener('abort', leave);
      const ended = group?.stop() ?? Promise.resolve();
      void ended.then(() => resolve({ why, hasJoined, isOver }));
    });
  });
}

interface GroupParts extends Pick<NodeOptions, 'python' | 'place' | 'secret' | 'say'> {
  readonly socket: TLSSocket;
  readonly link: NodeLink;
}

/** The ranks of a group on this node. */
class GroupHere {
  readonly #parts: GroupParts;
  readonly #order: Extract<Line, { group: string }>;
  readonly #folder = mkdtempSync(path.join(os.tmpdir(), 'ratchet-node-')); // only its user can enter
  readonly #rendezvous: Server;
  #wire: Socket | null = null;
  #isStopped = false;

  constructor(parts: GroupParts, order: Extract<Line, { group: string }>) {
    this.#parts = parts;
    this.#order = order;
    this.#rendezvous = createServer((rank) => this.#pass(rank));
  }

  async start(): Promise<void> {
    const { python, socket, say } = this.#parts;
    const { start, group } = this.#order;
    try {
      const store = path.join(this.#folder, 'rendezvous');
      await new Promise<void>((resolve) => this.#rendezvous.listen(store, resolve));
      const host = hostOf(python);
      const listening = await host.listening();
      if (this.#isStopped) return;
      const wire = connect(listening);
      this.#wire = wire;
      const lines = new LineReader(lineBytesMax, (line) => {
        const message = readMessage(line);
        if ('event' in message && message.event === 'fatal') this.#tellEnd(message as Fatal);
      });
      wire.on('data', (chunk: Buffer) => lines.add(chunk));
      wire.on('error', () => undefined);
      wire.on('close', () => this.#tellEnd({ code: 'EngineDied', message: `its ranks have ended.${host.tail()}` }));
      const nodes = { ...(start['nodes'] as object), store, interface: interfaceOf(socket.localAddress ?? '') };
      wire.write(`${JSON.stringify({ ...start, nodes })}\n`);
      say(`${start.ranks} ranks of group ${group.slice(0, 8)}`);
    } catch (error) {
      const { code = 'EngineDied', message } = error as { code?: string; message: string };
      this.#tellEnd({ code, message });
    }
  }

  /** Resolves when its ranks have ended. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    const wire = this.#wire;
    if (wire && !wire.closed) {
      const closed = new Promise((resolve) => wire.once('close', resolve));
      wire.end(); // its launcher hears that, and ends the ranks
      await closed;
    }
    this.#rendezvous.close();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  #tellEnd({ code, message }: { readonly code: string; readonly message: string }): void {
    if (this.#isStopped) return;
    this.#parts.say(message);
    this.#parts.link.say({ ended: { code, message } });
  }

  /** A rank's questions go to the first node. */
  #pass(rank: Socket): void {
    const { place, secret } = this.#parts;
    const there = connectTls({ host: place.address, port: place.port, ...tlsClient(secret) }, () => {
      there.write(`${JSON.stringify({ rendezvous: this.#order.group })}\n`);
      rank.pipe(there).pipe(rank);
    });
    for (const end of [rank, there]) end.on('error', () => undefined);
    rank.once('close', () => there.destroy());
    there.once('close', () => rank.destroy());
  }
}
