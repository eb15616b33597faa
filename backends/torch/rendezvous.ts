import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import type { Duplex } from 'node:stream';
import { z } from 'zod';
import { LineReader } from '../environments/verifiers/line-reader.ts';
import { lineBytesMax } from './protocol.ts';

const key = z.string();
const value = z.base64();
const Question = z.discriminatedUnion('op', [
  z.object({ op: z.literal('set'), key, value }),
  z.object({ op: z.literal('get'), key }),
  z.object({ op: z.literal('add'), key, amount: z.int() }),
  z.object({ op: z.literal('compare_set'), key, expected: value, desired: value }),
  z.object({ op: z.literal('delete'), key }),
  z.object({ op: z.literal('count') }),
  z.object({ op: z.literal('check'), keys: z.array(key) }),
  z.object({ op: z.literal('wait'), keys: z.array(key), ms: z.number() }),
]);
type Question = z.infer<typeof Question>;

/** The keys by which ranks of several nodes find one another, as python/ratchet_torch/rendezvous.py asks for them. Values are base64. */
export class Rendezvous {
  readonly #values = new Map<string, string>();
  readonly #waiting = new Set<() => void>();
  #local: Server | null = null;

  /** Answers the questions of one connection, one after the other. */
  serve(stream: Duplex): void {
    let answered: Promise<void> = Promise.resolve();
    const lines = new LineReader(lineBytesMax, (line) => {
      const question = Question.parse(JSON.parse(line));
      answered = answered.then(async () => {
        const answer = await this.#answer(question);
        if (stream.writable) stream.write(`${JSON.stringify(answer)}\n`);
      });
    });
    stream.on('data', (chunk: Buffer) => {
      try {
        lines.add(chunk);
      } catch {
        stream.destroy(); // no question of a rank
      }
    });
    stream.on('error', () => undefined);
  }

  async #answer(question: Question): Promise<{ readonly result?: unknown; readonly error?: string }> {
    const values = this.#values;
    switch (question.op) {
      case 'set':
        this.#set(question.key, question.value);
        return {};
      case 'get':
        return { result: values.get(question.key) ?? '' };
      case 'add': {
        const sum = Number(decoded(values.get(question.key)) || 0) + question.amount;
        this.#set(question.key, encoded(String(sum)));
        return { result: sum };
      }
      case 'compare_set': {
        const held = values.get(question.key);
        // PyTorch's own store does the same: no value counts as an empty one.
        if ((held ?? '') === question.expected) this.#set(question.key, question.desired);
        return { result: values.get(question.key) ?? question.expected };
      }
      case 'delete':
        return { result: values.delete(question.key) };
      case 'count':
        return { result: values.size };
      case 'check':
        return { result: question.keys.every((one) => values.has(one)) };
      case 'wait':
        return (await this.#wait(question.keys, question.ms))
          ? {}
          : { error: `Timed out after ${question.ms} ms waiting for other ranks (${question.keys.join(', ')}).` };
      default:
        return question satisfies never;
    }
  }

  /** Listens for ranks of this machine; gives the path of the socket. */
  async listen(): Promise<string> {
    const folder = mkdtempSync(path.join(os.tmpdir(), 'ratchet-nodes-')); // only its user can enter
    const local = createServer((socket) => this.serve(socket));
    const store = path.join(folder, 'rendezvous');
    await new Promise<void>((resolve) => local.listen(store, resolve));
    local.unref();
    this.#local = local;
    process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
    return store;
  }

  close(): void {
    this.#local?.close();
  }

  #set(name: string, given: string): void {
    this.#values.set(name, given);
    for (const look of this.#waiting) look();
  }

  #wait(keys: readonly string[], ms: number): Promise<boolean> {
    return new Promise((resolve) => {
      const end = (isThere: boolean): void => {
        clearTimeout(timer);
        this.#waiting.delete(look);
        resolve(isThere);
      };
      const look = (): void => {
        if (keys.every((one) => this.#values.has(one))) end(true);
      };
      const timer = setTimeout(() => end(false), Math.min(ms, timerMsMax));
      this.#waiting.add(look);
      look();
    });
  }
}

const timerMsMax = 2 ** 31 - 1;

function encoded(text: string): string {
  return Buffer.from(text).toString('base64');
}

function decoded(text: string | undefined): string {
  return text === undefined ? '' : Buffer.from(text, 'base64').toString();
}
