import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { randomStream } from 'ratchet-rl/environments';
import type { Inference, ServedPolicy } from 'ratchet-rl/testing';
import { logSoftmax, readAt, readTable, type Table } from './table.ts';

/** A custom inference, named by `[inference] path`. A worker creates one, and asks it for many turns at a time. */
export default function createInference(): Inference {
  const held = new Map<string, Promise<Held>>();

  /** Serves any version on request, whether or not it was broadcast before. */
  function hold(policy: ServedPolicy): Promise<Held> {
    const known = held.get(policy.name) ?? load(policy);
    held.set(policy.name, known);
    known.catch(() => held.delete(policy.name)); // this caller gets the error; the next one tries again
    return known;
  }

  return {
    async sample({ policy, promptTokenIds, maxTokens, temperature, seed, signal }) {
      const { table, end } = await hold(policy);
      signal?.throwIfAborted();
      const random = randomStream('my-inference', seed); // keyed only by the turn: neighbours do not change it
      const tokenIds: number[] = [];
      const logprobs: number[] = [];
      while (tokenIds.length < maxTokens && !end.has(tokenIds.at(-1) ?? -1)) {
        const row = logSoftmax(table, readAt(promptTokenIds, tokenIds.length), temperature === 0 ? 1 : temperature);
        const token = temperature === 0 ? row.indexOf(Math.max(...row)) : draw(row, random());
        tokenIds.push(token);
        logprobs.push(row[token]!);
      }
      return { tokenIds, logprobs, finishReason: end.has(tokenIds.at(-1)!) ? 'stop' : 'length' };
    },

    async bringTo(policy) {
      await hold(policy);
    },
  };
}

interface Held {
  readonly table: Table;
  /** Tokens that end a turn. */
  readonly end: ReadonlySet<number>;
}

async function load({ folder }: ServedPolicy): Promise<Held> {
  const config = JSON.parse(await readFile(path.join(folder, 'config.json'), 'utf8')) as {
    eos_token_id: number | number[];
  };
  return { table: await readTable(folder), end: new Set([config.eos_token_id].flat()) };
}

/** The first token at which the probabilities so far reach u. */
function draw(logprobs: Float64Array, u: number): number {
  let sum = 0;
  const found = logprobs.findIndex((logprob) => (sum += Math.exp(logprob)) >= u);
  return found < 0 ? logprobs.length - 1 : found;
}
