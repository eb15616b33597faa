import { createHmac } from 'node:crypto';
import os from 'node:os';
import type { Duplex } from 'node:stream';
import type { SecureContextOptions } from 'node:tls';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { jsonOrNull } from '../../core/json-or-null.ts';
import { LineReader } from '../environments/verifiers/line-reader.ts';
import { lineBytesMax } from '../torch/protocol.ts';

/** The protocol between nodes of one trainer: lines of JSON over TLS with a key that both sides have. */

/** The first node, as torch.distributed names it. */
export interface NodesPlace {
  readonly address: string;
  readonly port: number;
}

const portDefault = 29_500;

/** Null where no variable names it. */
export function nodesPlace(environment: Readonly<NodeJS.ProcessEnv>): NodesPlace | null {
  const address = environment['MASTER_ADDR'] ?? '';
  const port = Number(environment['MASTER_PORT'] || portDefault);
  if (address === '') return null;
  if (!Number.isInteger(port) || port < 1 || port > 65_535)
    throw new RatchetError(
      'ConfigInvalid',
      `MASTER_PORT: expected a port of ${address} from 1 to 65535, got ${environment['MASTER_PORT']}.`,
    );
  return { address, port };
}

/** Kinds of trainers with ranks on several nodes. */
export const kindsOnNodes = ['torch', 'prime-rl'] as const;
export type KindOnNodes = (typeof kindsOnNodes)[number];

const Line = z.union([
  z.object({ join: z.int().min(0), name: z.string(), kind: z.enum(kindsOnNodes) }),
  z.object({ rendezvous: z.string() }),
  z.object({ start: z.looseObject({ ranks: z.int() }), group: z.string() }),
  z.object({ stop: z.literal(true) }),
  z.object({ ended: z.object({ code: z.string(), message: z.string() }) }),
  z.object({ free: z.literal(true) }),
  z.object({ over: z.literal(true) }),
  z.object({ ping: z.literal(true) }),
]);
export type Line = z.infer<typeof Line>;

const identity = 'ratchet trainer nodes';
const onlyTls = {
  ciphers: 'ECDHE-PSK-CHACHA20-POLY1305',
  minVersion: 'TLSv1.2',
  maxVersion: 'TLSv1.2', // the last one in which Node takes keys in place of certificates
} as const satisfies SecureContextOptions;

/** Options of a server whose clients have the secret. */
export function tlsServer(secret: string) {
  return {
    ...onlyTls,
    pskCallback: (_: unknown, told: string): Buffer | null => (told === identity ? keyOf(secret) : null),
  };
}

export function tlsClient(secret: string) {
  return {
    ...onlyTls,
    pskCallback: () => ({ psk: keyOf(secret), identity }),
    checkServerIdentity: (): undefined => undefined, // it has the key, and no certificate
  };
}

function keyOf(secret: string): Buffer {
  return createHmac('sha256', secret).update(identity).digest();
}

/** How often either side gives a sign, and after how long without one it is lost. */
const pingMs = 2_000;
export const lostMs = 10_000;

/** One connection between nodes. It is over when the other side is silent for {@link lostMs}. */
export class NodeLink {
  readonly #stream: Duplex;
  readonly #pinging: NodeJS.Timeout;
  #heardAt = performance.now();

  constructor(stream: Duplex, onLine: (line: Line, link: NodeLink) => void) {
    this.#stream = stream;
    const lines = new LineReader(lineBytesMax, (text) => {
      const line = Line.parse(JSON.parse(text));
      if (!('ping' in line)) onLine(line, this);
    });
    stream.on('data', (chunk: Buffer) => {
      this.#heardAt = performance.now();
      try {
        lines.add(chunk);
      } catch {
        stream.destroy(); // it speaks of something else
      }
    });
    stream.on('error', () => undefined); // its end is heard
    this.#pinging = setInterval(() => this.#ping(), pingMs);
    stream.once('close', () => clearInterval(this.#pinging));
  }

  get stream(): Duplex {
    return this.#stream;
  }

  say(line: Line): void {
    if (this.#stream.writable) this.#stream.write(`${JSON.stringify(line)}\n`);
  }

  #ping(): void {
    if (performance.now() - this.#heardAt > lostMs) this.#stream.destroy();
    else this.say({ ping: true });
  }
}

/** The first line of a connection, which says what it is for; what follows it stays in the stream. */
export function onFirstLine(stream: Duplex, heard: (line: Line) => void): void {
  let held = Buffer.alloc(0);
  const silent = setTimeout(() => stream.destroy(), lostMs);
  const read = (chunk: Buffer): void => {
    held = Buffer.concat([held, chunk]);
    const end = held.indexOf(0x0a);
    if (end < 0 && held.length <= firstLineBytesMax) return;
    clearTimeout(silent);
    stream.off('data', read);
    stream.pause();
    const line = end < 0 ? null : Line.safeParse(jsonOrNull(held.subarray(0, end).toString()));
    if (!line?.success) return void stream.destroy();
    stream.unshift(held.subarray(end + 1));
    heard(line.data);
    stream.resume();
  };
  stream.on('data', read);
  stream.on('error', () => undefined);
  stream.once('close', () => clearTimeout(silent));
}

const firstLineBytesMax = 4_096;

/** Name of the interface with an address of this machine, for Gloo and NCCL. */
export function interfaceOf(address: string): string | undefined {
  const plain = address.replace(/^::ffff:/, '');
  for (const [name, addresses] of Object.entries(os.networkInterfaces()))
    if (addresses?.some((one) => one.address === plain)) return name;
  return undefined;
}
