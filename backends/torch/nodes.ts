import { lookup } from 'node:dns/promises';
import { randomUUID } from 'node:crypto';
import { createServer as createLocalServer } from 'node:net';
import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { createServer, type TLSSocket } from 'node:tls';
import { RatchetError } from '../../core/errors.ts';
import { processesOpen } from '../../host/processes-open.ts';
import { ownSecret } from '../../host/project-secret.ts';
import { interfaceOf, type Line, lostMs, NodeLink, type NodesPlace, onFirstLine, tlsServer } from './node-link.ts';
import type { GroupOnNodes, RankOptions } from './protocol.ts';
import { Rendezvous } from './rendezvous.ts';

/** A node that waits to be asked for ranks, or has some. */
interface JoinedNode {
  readonly rank: number;
  readonly name: string;
  readonly link: NodeLink;
  /** The launcher's message about the group's end, or that the node is lost. */
  onEnd: ((cause: { readonly code: string; readonly message: string }) => void) | null;
}

/** Other nodes with ranks of one group. */
export interface HeldNodes {
  /** Options for the ranks of this machine. */
  readonly here: GroupOnNodes;
  start(options: RankOptions): void;
  /** Ends their ranks; the nodes may be held again. */
  release(): void;
}

const opened = new Map<string, Promise<TrainerNodes>>();

/** The nodes that join this machine, for all groups of this process. */
export function nodesAt(place: NodesPlace): Promise<TrainerNodes> {
  const name = `${place.address}:${place.port}`;
  const known = opened.get(name) ?? TrainerNodes.open(place);
  opened.set(name, known);
  known.catch(() => opened.delete(name));
  return known;
}

/** The other nodes, as the first one sees them: they connect to it, and it starts ranks on them. */
export class TrainerNodes {
  readonly #place: NodesPlace;
  readonly #interface: string | undefined;
  /** Free ones, in the order in which they came. */
  readonly #free = new Set<JoinedNode>();
  readonly #joined = new Set<JoinedNode>();
  readonly #groups = new Map<string, Rendezvous>();
  readonly #folder = mkdtempSync(path.join(os.tmpdir(), 'ratchet-nodes-')); // only its user can enter
  #change: () => void = () => undefined;

  static async open(place: NodesPlace): Promise<TrainerNodes> {
    const secret = ownSecret();
    if (secret === null)
      throw new RatchetError(
        'ConfigInvalid',
        'Nodes of a trainer know one another by the secret of the project folder (.ratchet/secret), and this process has none. `ratchet train` and `ratchet dev` make it; RATCHET_SECRET_FILE names another file.',
      );
    const { address } = await lookup(place.address);
    const nodes = new TrainerNodes(place, interfaceOf(address));
    const server = createServer(tlsServer(secret), (socket) => nodes.#accept(socket));
    server.on('tlsClientError', () => undefined); // without the secret: the other side is told by TLS
    await new Promise<void>((resolve, reject) => {
      server.once('error', (error) => reject(notListening(place, error)));
      server.listen({ host: address, port: place.port }, resolve); // on no other interface
    });
    server.unref();
    processesOpen.add(async () => {
      opened.delete(`${place.address}:${place.port}`);
      server.close();
      for (const { link } of nodes.#joined) {
        link.say({ over: true });
        link.stream.end();
      }
    });
    process.once('exit', () => rmSync(nodes.#folder, { recursive: true, force: true }));
    return nodes;
  }

  private constructor(place: NodesPlace, name: string | undefined) {
    this.#place = place;
    this.#interface = name;
  }

  /** Message about missing nodes, if so many are needed beside this one; null = none is missing. */
  missing(count: number): string | null {
    const free = this.#chosen(count);
    if (free.length >= count) return null;
    const ranks = Array.from({ length: count }, (_, i) => i + 1).filter(
      (rank) => !free.some((one) => one.rank === rank),
    );
    const { address, port } = this.#place;
    return `${count - free.length} of ${count + 1} nodes of the trainer, or a spare (there: MASTER_ADDR=${address} MASTER_PORT=${port} RANK=${ranks[0]} ratchet worker --role trainer-node)`;
  }

  /** Waits for so many nodes beside this one, and holds them for a group. */
  async hold(
    count: number,
    ranksEach: number,
    signal: AbortSignal,
    onEnd: (cause: { readonly code: string; readonly message: string }) => void,
  ): Promise<HeldNodes> {
    while (this.#chosen(count).length < count) await this.#untilChange(signal);
    const group = randomUUID();
    const rendezvous = new Rendezvous();
    this.#groups.set(group, rendezvous);
    const store = path.join(this.#folder, group);
    const local = createLocalServer((socket) => rendezvous.serve(socket));
    await new Promise<void>((resolve) => local.listen(store, resolve));
    local.unref();
    const chosen = this.#chosen(count);
    const world = ranksEach * (count + 1);
    for (const node of chosen) {
      this.#free.delete(node);
      node.onEnd = ({ code, message }) => onEnd({ code, message: `On ${node.name}: ${message}` });
    }
    const named = this.#interface === undefined ? {} : { interface: this.#interface };
    return {
      here: { index: 0, first: 0, world, store, ...named },
      start: (options) => {
        for (const [i, { link }] of chosen.entries()) {
          const nodes = { index: i + 1, first: (i + 1) * ranksEach, world };
          link.say({ start: { ...options, nodes }, group });
        }
      },
      release: () => {
        this.#groups.delete(group);
        local.close();
        for (const node of chosen) {
          node.onEnd = null;
          node.link.say({ stop: true });
        }
      },
    };
  }

  /** Those that have come as the wanted ranks, and spares in place of the rest. */
  #chosen(count: number): JoinedNode[] {
    const free = [...this.#free];
    const named = Array.from({ length: count }, (_, i) => free.find(({ rank }) => rank === i + 1));
    const spares = free.filter((node) => !named.includes(node));
    return named.flatMap((node) => node ?? spares.shift() ?? []);
  }

  #accept(socket: TLSSocket): void {
    onFirstLine(socket, (first) => {
      if ('rendezvous' in first) {
        const rendezvous = this.#groups.get(first.rendezvous);
        if (rendezvous) rendezvous.serve(socket);
        else socket.destroy(); // of a group that has ended
      } else if ('join' in first) this.#join(socket, first);
      else socket.destroy();
    });
  }

  #join(socket: TLSSocket, { join: rank, name }: { readonly join: number; readonly name: string }): void {
    const link = new NodeLink(socket, (line) => this.#hear(node, line));
    const node: JoinedNode = { rank, name, link, onEnd: null };
    this.#joined.add(node);
    this.#free.add(node);
    this.#change();
    socket.once('close', () => {
      this.#joined.delete(node);
      this.#free.delete(node);
      node.onEnd?.({
        code: 'EngineDied',
        message: `this node is lost: it left, or gave no sign for ${lostMs / 1000} s.`,
      });
      this.#change();
    });
  }

  #hear(node: JoinedNode, line: Line): void {
    if ('ended' in line) node.onEnd?.(line.ended);
    if (!('free' in line)) return;
    this.#free.add(node);
    this.#change();
  }

  #untilChange(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const before = this.#change;
      this.#change = () => {
        this.#change = before;
        before();
        resolve();
      };
      signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true });
    });
  }
}

function notListening({ address, port }: NodesPlace, error: NodeJS.ErrnoException): RatchetError {
  const isElsewhere = error.code === 'EADDRNOTAVAIL';
  const why = isElsewhere ? `it is no address of this machine, which has RANK 0` : error.message;
  return new RatchetError(
    'ConfigInvalid',
    `The other nodes of the trainer cannot join at MASTER_ADDR=${address} MASTER_PORT=${port}: ${why}. Expected a free port of an address of this machine that the others reach.`,
    { cause: error },
  );
}
