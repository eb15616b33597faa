import { readFile, mkdtemp, rm } from 'node:fs/promises';
import { Agent, request } from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { type Bridge, openBridge } from '../backends/environments/verifiers/bridge.ts';
import type { SampledTurn, TurnRequest } from '../backends/environments/verifiers/protocol.ts';
import { ensurePython } from '../workers/python-environment.ts';
import { meterCpu, waitForQuiet, type CpuUse } from './cpu-meter.ts';
import { CannotMeasure, measurement, type Bench, type Figures } from './measurement.ts';
import { startMockServer } from './mock-model-server.ts';
import { PeerProcess } from './peer-process.ts';
import { median, round } from './statistics.ts';

const peerProgram = fileURLToPath(new URL('peers/verifiers_generate.py', import.meta.url));
const environments = fileURLToPath(new URL('../test/data/verifiers', import.meta.url));
const requirements = fileURLToPath(new URL('../python/verifiers-requirements.txt', import.meta.url));

/**
 * Rollouts of a verifiers environment (v0, 0.3.1) beside verifiers' own `generate()` with its environment server, in turn: the
 * same single-turn environment with two reward functions, 8 rollouts an example, the same mock of a server in a process of its
 * own, token ids and logprobs of every turn kept on both sides, every rollout scored. Ours are played by one child and scored
 * from their rows, an example at a time, as a run does it.
 *
 * - `ratio_64`, `ratio_256`, goal ≥ 2: our rollouts a second ÷ verifiers', with so many at once; the median over the pairs.
 * - `ours_…`, `theirs_…`: rollouts a second, medians.
 */
export const rolloutsVerifiers = measurement(
  'rollouts-verifiers',
  "rollouts of a verifiers environment beside verifiers' own",
  measure,
)
  .option('--pairs <n>', 'rounds of each side for each number of rollouts at once', Number, 5)
  .option('--rollouts <n>', 'rollouts of a round', Number, 1_024)
  .option('--delay <ms>', "the mock's answer takes so long", Number, 0)
  .option('--children <n>', 'processes on our side', Number, 1)
  .option('--patience <seconds>', 'how long to wait for a quiet machine', Number, 60)
  .addHelpText('after', '\nGoals: ratio_64, ratio_256 ≥ 2.');

interface Options {
  readonly pairs: number;
  readonly rollouts: number;
  readonly delay: number;
  readonly children: number;
  readonly patience: number;
}

const environment = 'toy_single';
const perExample = 8;
const atOnce = [64, 256] as const;

const PeerRound = z.object({ seconds: z.number(), failed: z.number(), with_tokens: z.number() });

/** What is kept of every turn. */
interface KeptTurn {
  readonly promptTokenIds: readonly number[];
  readonly tokenIds: readonly number[];
  readonly logprobs: readonly number[];
}

async function measure(bench: Bench, options: Options): Promise<Figures> {
  const { pairs, rollouts, delay, patience } = options;
  const python = await ensurePython({ name: 'verifiers', requirements, log: bench.say }).catch((error: Error) => {
    throw new CannotMeasure(error.message);
  });
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-bench-'));
  const mock = await startMockServer({ delayMs: delay });
  const seen = { ...process.env, PYTHONPATH: environments, HF_HUB_OFFLINE: '1' };
  const peer = new PeerProcess(bench, python, peerArguments(mock.url, rollouts), seen);
  const bridge = await openBridge({ python, folder, modulePaths: [environments], environment: seen, children: options.children });
  try {
    bench.doing('loading the environment on both sides');
    const ours = await Ours.open(bridge, mock.url, rollouts);
    const theirs = async (concurrency: number): Promise<number> => {
      const round = PeerRound.parse(await peer.ask({ concurrency, rollouts }));
      requireAll(round.failed === 0 && round.with_tokens === rollouts, `verifiers: ${JSON.stringify(round)}`);
      return rollouts / round.seconds;
    };
    for (const concurrency of atOnce) {
      await theirs(concurrency);
      await ours.play(concurrency);
    }
    await waitForQuiet(bench, patience);
    const figures: Record<string, unknown> = {};
    const rounds: Record<string, unknown>[] = [];
    for (const concurrency of atOnce) {
      const measured = [];
      for (let i = 0; i < pairs; i++) {
        bench.signal.throwIfAborted();
        bench.doing(`${concurrency} at once, pair ${i + 1} of ${pairs}`);
        const their = await meterCpu(() => theirs(concurrency));
        const our = await meterCpu(() => ours.play(concurrency));
        measured.push({ ours: our.result, theirs: their.result });
        rounds.push({ at_once: concurrency, ours: round(our.result, 0), theirs: round(their.result, 0), ours_others_cpu: share(our.cpu), theirs_others_cpu: share(their.cpu) });
        bench.say(`ours ${Math.round(our.result)}/s, verifiers ${Math.round(their.result)}/s`);
      }
      figures[`ratio_${concurrency}`] = round(median(measured.map((pair) => pair.ours / pair.theirs)), 2);
      figures[`ours_${concurrency}`] = Math.round(median(measured.map((pair) => pair.ours)));
      figures[`theirs_${concurrency}`] = Math.round(median(measured.map((pair) => pair.theirs)));
    }
    return { ...figures, details: { delay_ms: delay, rollouts, children: options.children, rounds } };
  } finally {
    await bridge.close();
    await peer.close();
    await mock.close();
    await rm(folder, { recursive: true, force: true });
  }
}

/** Others' share of the machine's CPU time. */
function share(cpu: CpuUse | null): number | null {
  return cpu && round(cpu.others_s / (cpu.wall_s * 2), 2);
}

function peerArguments(url: string, rollouts: number): string[] {
  const examples = String(rollouts / perExample);
  return [peerProgram, '--url', url, '--env', environment, '--examples', examples, '--per-example', String(perExample)];
}

function requireAll(isGood: boolean, what: string): void {
  if (!isGood) throw new Error(`Not every rollout went well, or tokens are missing: ${what}`);
}

class Ours {
  readonly #bridge: Bridge;
  readonly #inputs: readonly string[];
  readonly #server: ChatServer;

  constructor(bridge: Bridge, inputs: readonly string[], server: ChatServer) {
    this.#bridge = bridge;
    this.#inputs = inputs;
    this.#server = server;
  }

  static async open(bridge: Bridge, url: string, rollouts: number): Promise<Ours> {
    await bridge.load({ env: 'e', env_id: environment, args: { n: rollouts / perExample } });
    const { file } = await bridge.inputs({ env: 'e', split: 'train' });
    return new Ours(bridge, (await readFile(file, 'utf8')).trim().split('\n'), new ChatServer(url));
  }

  /** Rollouts a second. */
  async play(concurrency: number): Promise<number> {
    const groups = this.#inputs.map((input) => ({ input, rows: [] as Awaited<ReturnType<Ours['one']>>[] }));
    const waiting = groups.flatMap((group) => Array.from({ length: perExample }, () => group));
    const scored: Promise<void>[] = [];
    let next = 0;
    let failed = 0;
    const began = performance.now();
    const score = async (rows: Awaited<ReturnType<Ours['one']>>[]): Promise<void> => {
      const scores = await this.#bridge.score({ env: 'e', rollouts: rows.map(({ row }) => ({ row })) });
      for (const result of scores) if ('error' in result) failed += 1;
    };
    const worker = async (): Promise<void> => {
      while (next < waiting.length) {
        const group = waiting[next++]!;
        const played = await this.one(group.input);
        if (played.turn.logprobs.length === 0 || played.turn.promptTokenIds.length === 0) failed += 1;
        group.rows.push(played);
        if (group.rows.length === perExample) scored.push(score(group.rows));
      }
    };
    await Promise.all(Array.from({ length: concurrency }, worker));
    await Promise.all(scored);
    const seconds = (performance.now() - began) / 1000;
    requireAll(failed === 0 && scored.length === groups.length, `ours: ${failed} failed`);
    return waiting.length / seconds;
  }

  async one(input: string) {
    let turn: KeptTurn | null = null;
    const sampling = { max_tokens: 64, temperature: 1 };
    const played = await this.#bridge.rollout(
      { env: 'e', input, model: 'mock', sampling, score: false, keep: false, with_tokens: false },
      {
        onSample: async (wanted) => {
          const sampled = await this.#server.sample(wanted);
          turn = sampled.turn;
          return sampled.said;
        },
      },
    );
    if (turn === null || played.outcome !== 'ok') throw new Error(`a rollout ended as ${played.outcome}`);
    return { row: played.row, turn: turn as KeptTurn };
  }
}

interface ChatAnswer {
  readonly prompt_token_ids: number[];
  readonly choices: readonly {
    readonly message: { readonly content: string | null };
    readonly token_ids: number[];
    readonly logprobs: { readonly content: readonly { readonly logprob: number }[] };
  }[];
}

/** A turn over OpenAI's API, with the tokens. */
class ChatServer {
  readonly #agent = new Agent({ keepAlive: true, scheduling: 'lifo' });
  readonly #url: URL;

  constructor(url: string) {
    this.#url = new URL('/v1/chat/completions', url);
  }

  async sample({ messages, tools, sampling }: TurnRequest): Promise<{ turn: KeptTurn; said: SampledTurn }> {
    const { extra_body: extra, ...settings } = sampling;
    const body = { model: 'mock', messages, ...(tools ? { tools } : {}), ...settings, ...(extra as object), logprobs: true, return_token_ids: true };
    const answer = JSON.parse(await this.#post(JSON.stringify(body))) as ChatAnswer;
    const [choice] = answer.choices;
    const turn = {
      promptTokenIds: answer.prompt_token_ids,
      tokenIds: choice!.token_ids,
      logprobs: choice!.logprobs.content.map(({ logprob }) => logprob),
    };
    const usage = { prompt_tokens: turn.promptTokenIds.length, completion_tokens: turn.tokenIds.length };
    return { turn, said: { content: choice!.message.content, tool_calls: [], finish_reason: 'stop', usage, tokens: null } };
  }

  #post(body: string): Promise<string> {
    return new Promise((resolve, reject) => {
      const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) };
      const outgoing = request(this.#url, { agent: this.#agent, method: 'POST', headers }, (answer) => {
        const chunks: Buffer[] = [];
        answer.on('data', (chunk: Buffer) => chunks.push(chunk));
        answer.on('end', () => resolve(Buffer.concat(chunks).toString('utf8')));
        answer.on('error', reject);
      });
      outgoing.on('error', reject);
      outgoing.end(body);
    });
  }
}
