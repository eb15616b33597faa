import { lookup } from 'node:dns/promises';
import { randomUUID } from 'node:crypto';
import type { Duplex } from 'node:stream';
import { createServer, type TLSSocket } from 'node:tls';
import { RatchetError } from '../../core/errors.ts';
import { processesOpen } from '../../host/processes-open.ts';
import { ownSecret } from '../../host/project-secret.ts';
import {
  interfaceOf,
  type KindOnNodes,
  type Line,
  lostMs,
  NodeLink,
  type NodesPlace,
  onFirstLine,
  tlsServer,
} from './node-link.ts';

/** A node that waits to be asked for ranks, or has some. */
interface JoinedNode {
  readonly rank: number;
  readonly name: string;
  readonly kind: KindOnNodes;
  readonly link: NodeLink;
  /** The launcher's message about the group's end, or that the node is lost. */
  onEnd: ((cause: NodeEnd) => void) | null;
}

/** What a trainer asks of other nodes. */
export interface WantedNodes {
  readonly kind: KindOnNodes;
  /** Nodes beside this one. */
  readonly count: number;
  /** Ends the waiting for them. */
  readonly signal: AbortSignal;
  /** Hears once why the ranks of a node have ended, or that the node is lost. */
  readonly onEnd: (cause: NodeEnd) => void;
  /** Answers what ranks of other nodes ask the first one. */
  readonly serve?: (stream: Duplex) => void;
}

export interface NodeEnd {
  readonly code: string;
  readonly message: string;
}

/** What a node is told when its ranks are to start; the rest is the trainer's own. */
export type NodeOrder = Extract<Line, { group: string }>['start'];

/** Other nodes with ranks of one group. */
export interface HeldNodes {
  /** Their names for people, in the order of their numbers from 1. */
  readonly names: readonly string[];
  /** Names the group in what its nodes write. */
  readonly group: string;
  /** The network interface of this machine on which the others reach it; undefined where its address is on none. */
  readonly interface: string | undefined;
  /** Starts ranks on each node, from 1. */
  start(order: (node: number) => NodeOrder): void;
  /** Ends their ranks. Resolves when every node has said that they are gone, or is lost; the nodes may then be held again. */
  release(): Promise<void>;
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
  readonly #groups = new Map<string, NonNullable<WantedNodes['serve']>>();
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
    return nodes;
  }

  private constructor(place: NodesPlace, name: string | undefined) {
    this.#place = place;
    this.#interface = name;
  }

  /** Message about missing nodes, if so many are needed beside this one; null = none is missing. */
  missing({ kind, count }: Pick<WantedNodes, 'kind' | 'count'>): string | null {
    const free = this.#chosen({ kind, count });
    if (free.length >= count) return null;
    const ranks = Array.from({ length: count }, (_, i) => i + 1).filter(
      (rank) => !free.some((one) => one.rank === rank),
    );
    const { address, port } = this.#place;
    const ofKind = kind === 'torch' ? '' : ` --trainer ${kind}`;
    const strange = [...this.#free].filter((node) => node.kind !== kind).map((node) => node.name);
    const others = strange.length === 0 ? '' : `; joined for another kind of trainer: ${strange.join(', ')}`;
    return `${count - free.length} of ${count + 1} nodes of the trainer, or a spare (there: MASTER_ADDR=${address} MASTER_PORT=${port} RANK=${ranks[0]} ratchet worker --role trainer-node${ofKind})${others}`;
  }

  /** Waits for so many nodes beside this one, and holds them for a group. */
  async hold({ kind, count, signal, onEnd, serve }: WantedNodes): Promise<HeldNodes> {
    while (this.#chosen({ kind, count }).length < count) await this.#untilChange(signal);
    const group = randomUUID();
    if (serve) this.#groups.set(group, serve);
    const chosen = this.#chosen({ kind, count });
    for (const node of chosen) {
      this.#free.delete(node);
      node.onEnd = ({ code, message }) => onEnd({ code, message: `On ${node.name}: ${message}` });
    }
    return {
      names: chosen.map(({ name }) => name),
      group,
      interface: this.#interface,
      start: (order) => {
        for (const [i, { link }] of chosen.entries()) link.say({ start: order(i + 1), group });
      },
      release: async () => {
        this.#groups.delete(group);
        for (const node of chosen) {
          node.onEnd = null;
          node.link.say({ stop: true });
        }
        while (chosen.some((node) => this.#joined.has(node) && !this.#free.has(node))) await this.#untilChange();
      },
    };
  }

  /** Those that have come as the wanted ranks, and spares in place of the rest. */
  #chosen({ kind, count }: Pick<WantedNodes, 'kind' | 'count'>): JoinedNode[] {
    const free = [...this.#free].filter((node) => node.kind === kind);
    const named = Array.from({ length: count }, (_, i) => free.find(({ rank }) => rank === i + 1));
    const spares = free.filter((node) => !named.includes(node));
    return named.flatMap((node) => node ?? spares.shift() ?? []);
  }

  #accept(socket: TLSSocket): void {
    onFirstLine(socket, (first) => {
      if ('rendezvous' in first) {
        const serve = this.#groups.get(first.rendezvous);
        if (serve) serve(socket);
        else socket.destroy(); // of a group that has ended
      } else if ('join' in first) this.#join(socket, first);
      else socket.destroy();
    });
  }

  #join(socket: TLSSocket, { join: rank, name, kind }: Extract<Line, { join: number }>): void {
    const link = new NodeLink(socket, (line) => this.#hear(node, line));
    const node: JoinedNode = { rank, name, kind, link, onEnd: null };
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

  #untilChange(signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const before = this.#change;
      const give = (): void => reject(signal!.reason as Error);
      this.#change = () => {
        this.#change = before;
        before();
        signal?.removeEventListener('abort', give);
        resolve();
      };
      signal?.addEventListener('abort', give, { once: true });
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
