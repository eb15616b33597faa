import os from 'node:os';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { interfaceOf, type KindOnNodes, type Line, NodeLink, type NodesPlace, tlsClient } from './node-link.ts';
import type { NodeEnd, NodeOrder } from './nodes.ts';

/** Another node of a trainer: it joins the first one, and has ranks here as that one says. It starts no run. */

const againMs = 2_000;
/** A first node that is not there yet is said again after so long. */
const sayAgainMs = 60_000;

export interface NodeOptions {
  readonly place: NodesPlace;
  readonly rank: number;
  readonly secret: string;
  readonly kind: KindOnNodes;
  /** Makes the group of ranks that the first node orders; they start with it. */
  readonly open: (parts: GroupParts) => NodeGroup;
  readonly say: (line: string) => void;
  readonly signal: AbortSignal;
  /** Whether it ends when the processes of the first node were ended; else it waits for them. */
  readonly endsWithRun: boolean;
}

/** The ranks of a group on this node. */
export interface NodeGroup {
  /** Resolves when its ranks have ended, and never before. */
  stop(): Promise<void>;
}

export interface GroupParts {
  readonly order: NodeOrder;
  /** Its name, which all nodes have. */
  readonly group: string;
  /** The network interface on which this node reaches the first one. */
  readonly interface: string | undefined;
  /** Opens a connection on which the first node answers ranks; it is ready when it calls back. */
  readonly ask: (ready: (there: TLSSocket) => void) => TLSSocket;
  readonly say: (line: string) => void;
  /** Tells the first node that the ranks have ended, and of what. */
  readonly tellEnd: (cause: NodeEnd) => void;
}

/** Joins again whenever the first node is lost. Resolves when the signal says so, or the first node's processes were ended. */
export async function serveTrainerNode(options: NodeOptions): Promise<void> {
  const { place, say, signal } = options;
  const where = `${place.address}:${place.port}`;
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
function joined({ place, rank, secret, kind, open, say, signal }: NodeOptions): Promise<Leaving> {
  return new Promise((resolve) => {
    let [hasJoined, isOver, why] = [false, false, 'it closed the connection'];
    let group: NodeGroup | null = null;
    const socket = connectTls({ host: place.address, port: place.port, ...tlsClient(secret) }, () => {
      hasJoined = true;
      say(`joined ${place.address}:${place.port} as node ${rank}`);
      link.say({ join: rank, kind, name: `node ${rank} (${os.hostname()}, process ${process.pid})` });
    });
    const link = new NodeLink(socket, (line) => {
      if ('over' in line) isOver = true;
      if ('start' in line) {
        let isStopped = false;
        const made = open({
          order: line.start,
          group: line.group,
          interface: interfaceOf(socket.localAddress ?? ''),
          ask: (ready) => {
            const there = connectTls({ host: place.address, port: place.port, ...tlsClient(secret) }, () => {
              there.write(`${JSON.stringify({ rendezvous: line.group } satisfies Line)}\n`);
              ready(there);
            });
            return there;
          },
          say,
          tellEnd: ({ code, message }) => {
            if (isStopped) return;
            say(message);
            link.say({ ended: { code, message } });
          },
        });
        group = {
          stop: () => {
            isStopped = true;
            return made.stop();
          },
        };
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
