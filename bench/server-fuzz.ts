import { FuzzServer, type Memory, runCases } from '../test/engine/server-fuzzing.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { round } from './statistics.ts';

/** Requests between two looks at the memory. */
const stretch = 10_000;
/** Requests at once in each burst. */
const burst = 1000;
const atOnceUsually = 50;
const wrongShownMax = 20;

/**
 * Robustness of a policy server against half a million requests of every kind: valid ones, JSON that is none, wrong types, huge
 * values, streams and uploads that break off, broken HTTP; of every 10,000 a thousand at once. The server runs in a process
 * of its own with the smallest preset; the requests are those of test/engine/server-fuzzing.ts.
 *
 * - `requests`, `statuses`: answers by status; 0 = the client went away, as it meant to.
 * - `crashes`, goal 0: how often the server's process ended; it is started again.
 * - `wrong_answers`, goal 0: a 5xx, an answer that is not well-formed, an error without a message, a refusal of what is right
 *   or an answer to what is wrong.
 * - `memory_change`, goal within ± 0.05: JavaScript's heap and what it holds outside (after forced collections, nothing under
 *   way, without the sampler's room for keys and values) at the end over the same after a tenth of the requests, less 1. `rss_change`: the process's resident memory likewise.
 */
export const serverFuzz = measurement('server-fuzz', 'what wild requests do to the policy server', measure)
  .option('--requests <n>', 'how many', Number, 500_000)
  .option('--seed <n>', 'the requests to send', Number, 1)
  .addHelpText('after', '\nGoals: crashes 0, wrong_answers 0, memory_change within ± 0.05.');

interface Options {
  readonly requests: number;
  readonly seed: number;
}

async function measure(bench: Bench, { requests, seed }: Options): Promise<Figures> {
  if (!(requests >= 2 * stretch)) throw new Error(`--requests: expected at least ${2 * stretch}, got ${requests}`);
  const startedAt = performance.now();
  const statuses: Record<number, number> = {};
  const memories: Memory[] = [];
  const wrong: string[] = [];
  let crashes = 0;
  let sent = 0;
  let server = await FuzzServer.start();
  try {
    while (sent < requests) {
      bench.signal.throwIfAborted();
      const from = sent;
      sent = Math.min(requests, from + stretch);
      const middle = Math.min(sent, from + burst);
      const common = { seed, onWrong: (error: Error): void => void wrong.push(error.message) };
      for (const range of [
        { from, to: middle, atOnce: burst },
        { from: middle, to: sent, atOnce: atOnceUsually },
      ]) {
        const tally = await runCases(server, { ...common, ...range });
        for (const [status, count] of Object.entries(tally.statuses)) {
          statuses[Number(status)] = (statuses[Number(status)] ?? 0) + count;
        }
      }
      if (server.hasExited) {
        crashes++;
        server = await FuzzServer.start();
      }
      memories.push(await server.memory());
      const { live, rss } = memories.at(-1)!;
      bench.say(`${sent} requests, ${wrong.length} wrong answers, live ${mib(live)} MiB, resident ${mib(rss)} MiB`);
    }
  } finally {
    await server.stop();
  }
  const early = memories[Math.ceil(memories.length / 10) - 1]!;
  const last = memories.at(-1)!;
  return {
    requests,
    statuses,
    crashes,
    wrong_answers: wrong.length,
    memory_change: round(last.live / early.live - 1),
    rss_change: round(last.rss / early.rss - 1),
    details: {
      seconds: round((performance.now() - startedAt) / 1000),
      live_mib: memories.map(({ live }) => mib(live)),
      resident_mib: memories.map(({ rss }) => mib(rss)),
      wrong: wrong.slice(0, wrongShownMax),
    },
  };
}

function mib(bytes: number): number {
  return round(bytes / 2 ** 20);
}
