import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { LineReader } from '../environments/verifiers/line-reader.ts';
import type { GroupParts, NodeGroup, NodeOptions } from '../nodes/trainer-node.ts';
import { findTorchPython } from './find-python.ts';
import { hostOf } from './host.ts';
import { type Fatal, lineBytesMax, readMessage } from './protocol.ts';

/** Finds its Python, and imports PyTorch while nobody waits. Throws where the Python lacks something. */
export async function openTorchNode(program: string | null, projectFolder: string): Promise<NodeOptions['open']> {
  const python = await findTorchPython(program, projectFolder);
  await hostOf(python).listening();
  return (parts) => new TorchNodeGroup(python, parts);
}

/** Ranks of PyTorch's trainer on a node that is not the first. */
class TorchNodeGroup implements NodeGroup {
  readonly #python: string;
  readonly #parts: GroupParts;
  readonly #folder = mkdtempSync(path.join(os.tmpdir(), 'ratchet-node-')); // only its user can enter
  readonly #rendezvous: Server;
  #wire: Socket | null = null;
  #isStopped = false;

  constructor(python: string, parts: GroupParts) {
    this.#python = python;
    this.#parts = parts;
    this.#rendezvous = createServer((rank) => this.#pass(rank));
    void this.#start();
  }

  async #start(): Promise<void> {
    const { order, group, say, tellEnd } = this.#parts;
    try {
      const store = path.join(this.#folder, 'rendezvous');
      await new Promise<void>((resolve) => this.#rendezvous.listen(store, resolve));
      const host = hostOf(this.#python);
      const listening = await host.listening();
      if (this.#isStopped) return;
      const wire = connect(listening);
      this.#wire = wire;
      const lines = new LineReader(lineBytesMax, (line) => {
        const message = readMessage(line);
        if ('event' in message && message.event === 'fatal') tellEnd(message as Fatal);
      });
      wire.on('data', (chunk: Buffer) => lines.add(chunk));
      wire.on('error', () => undefined);
      wire.on('close', () => tellEnd({ code: 'EngineDied', message: `its ranks have ended.${host.tail()}` }));
      const nodes = { ...(order['nodes'] as object), store, interface: this.#parts.interface };
      wire.write(`${JSON.stringify({ ...order, nodes })}\n`);
      say(`${order.ranks} ranks of group ${group.slice(0, 8)}`);
    } catch (error) {
      const { code = 'EngineDied', message } = error as { code?: string; message: string };
      tellEnd({ code, message });
    }
  }

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

  /** A rank's questions go to the first node. */
  #pass(rank: Socket): void {
    const there = this.#parts.ask((ready) => void rank.pipe(ready).pipe(rank));
    for (const end of [rank, there]) end.on('error', () => undefined);
    rank.once('close', () => there.destroy());
    there.once('close', () => rank.destroy());
  }
}
