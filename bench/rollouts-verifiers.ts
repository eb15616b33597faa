import { spawnSync } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { Agent, request } from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { type Bridge, openBridge } from '../backends/environments/verifiers/bridge.ts';
import type {
  LoadedEnvironment,
  LoadRequest,
  WirePlayedRow,
  SampledTurn,
  Score,
  TurnRequest,
  WireRow,
} from '../backends/environments/verifiers/protocol.ts';
import { ensurePython } from '../workers/python-environment.ts';
import { meterCpu, waitForQuiet, type CpuUse } from './cpu-meter.ts';
import { CannotMeasure, measurement, type Bench, type Figures } from './measurement.ts';
import { startMockServer } from './mock-model-server.ts';
import { PeerProcess } from './peer-process.ts';
import { median, round } from './statistics.ts';

const peerProgram = fileURLToPath(new URL('peers/verifiers_generate.py', import.meta.url));
const environments = fileURLToPath(new URL('../test/data/verifiers', import.meta.url));
const v1PeerProgram = fileURLToPath(new URL('peers/verifiers_v1_episodes.py', import.meta.url));
const requirements = fileURLToPath(new URL('../python/verifiers-v0-requirements.txt', import.meta.url));
const v1Requirements = fileURLToPath(new URL('../python/verifiers-v1-requirements.txt', import.meta.url));

/**
 * Rollouts of a verifiers environment (v0, 0.3.1) beside verifiers' own `generate()` with its environment server, in turn: the
 * same single-turn environment with two reward functions, 8 rollouts an example, the same mock of a server in a process of its
 * own, token ids and logprobs of every turn kept on both sides, every rollout scored. Ours are played by one child and scored
 * from their rows, an example at a time, as a run does it.
 *
 * - `ratio_64`, `ratio_256`, goal ≥ 2: our rollouts a second ÷ verifiers', with so many at once; the median over the pairs.
 * - `ours_…`, `theirs_…`: rollouts a second, medians.
 * - `v1_ratio`: the same for a taskset of the v1 API (0.4.0), 64 at once, one turn. verifiers runs its null harness, a chat loop, in
 *   a process per rollout, as vf-eval does; we run it in the child. null where there is no `uv`, which verifiers' side needs.
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
  .option('--v1-pairs <n>', 'rounds of each side for the v1 API', Number, 2)
  .option('--patience <seconds>', 'how long to wait for a quiet machine', Number, 60)
  .addHelpText('after', '\nGoals: ratio_64, ratio_256 ≥ 2.');

interface Options {
  readonly pairs: number;
  readonly rollouts: number;
  readonly delay: number;
  readonly children: number;
  readonly v1Pairs: number;
  readonly patience: number;
}

const environment = 'toy_single';
const taskset = 'toy_v1';
/** verifiers' side takes a second and more for each. */
const theirEpisodes = 32;
const v1AtOnce = 64;
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
  const mock = await startMockServer({ delayMs: options.delay });
  try {
    const figures = await measureV0(bench, options, mock.url);
    const v1 = await measureV1(bench, options, mock.url);
    return { ...figures, ...v1 };
  } finally {
    await mock.close();
  }
}

interface Sides {
  readonly ours: Ours;
  readonly peer: PeerProcess;
}

/** Both sides with the same Python; `use` gets them and they are closed after it. */
async function withSides<T>(
  bench: Bench,
  { children }: Options,
  given: {
    readonly requirements: string;
    readonly peer: readonly string[];
    readonly open: (bridge: Bridge) => Promise<Ours>;
  },
  use: (sides: Sides) => Promise<T>,
): Promise<T> {
  const python = await ensurePython({ name: 'verifiers', requirements: given.requirements, log: bench.say }).catch(
    (error: Error) => {
      throw new CannotMeasure(error.message);
    },
  );
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-bench-'));
  const seen = { ...process.env, PYTHONPATH: environments, HF_HUB_OFFLINE: '1' };
  const peer = new PeerProcess(bench, python, given.peer, seen);
  const bridge = await openBridge({ python, folder, modulePaths: [environments], environment: seen, children });
  try {
    bench.doing('loading the environment on both sides');
    return await use({ ours: await given.open(bridge), peer });
  } finally {
    await bridge.close();
    await peer.close();
    await rm(folder, { recursive: true, force: true });
  }
}

async function measureV0(bench: Bench, options: Options, url: string): Promise<Figures> {
  const { pairs, rollouts, patience, delay, children } = options;
  const given = {
    requirements,
    peer: peerArguments(url, rollouts),
    open: (bridge: Bridge) =>
      Ours.open(bridge, url, { env: 'e', env_id: environment, args: { n: rollouts / perExample } }),
  };
  return withSides(bench, options, given, async ({ ours, peer }) => {
    const theirs = async (concurrency: number): Promise<number> => {
      const round = PeerRound.parse(await peer.ask({ concurrency, rollouts }));
      requireAll(round.failed === 0 && round.with_tokens === rollouts, `verifiers: ${JSON.stringify(round)}`);
      return rollouts / round.seconds;
    };
    for (const concurrency of atOnce) {
      await theirs(concurrency);
      await ours.play(concurrency, rollouts);
    }
    await waitForQuiet(bench, patience);
    const figures: Record<string, unknown> = {};
    const rounds: unknown[] = [];
    for (const concurrency of atOnce) {
      const play = () => ours.play(concurrency, rollouts);
      const measured = await inTurn(bench, `${concurrency} at once`, pairs, play, () => theirs(concurrency));
      figures[`ratio_${concurrency}`] = measured.ratio;
      figures[`ours_${concurrency}`] = Math.round(measured.ours);
      figures[`theirs_${concurrency}`] = Math.round(measured.theirs);
      rounds.push(...measured.rounds.map((round) => ({ at_once: concurrency, ...round })));
    }
    return { ...figures, details: { delay_ms: delay, rollouts, children, rounds } };
  });
}

const V1PeerRound = z.object({ seconds: z.number(), failed: z.number(), why: z.array(z.string()) });

async function measureV1(bench: Bench, options: Options, url: string): Promise<Figures> {
  const hasUv = spawnSync('uv', ['--version']).status === 0;
  if (!hasUv || options.v1Pairs === 0) return { v1_ratio: null };
  const config = { agent: { harness: { id: 'null' }, runtime: { type: 'subprocess' } } };
  const load = { env: 'v1', env_id: taskset, api: 'v1' as const, config };
  const given = {
    requirements: v1Requirements,
    peer: [v1PeerProgram, '--url', url, '--env', taskset],
    open: (bridge: Bridge) => Ours.open(bridge, url, load),
  };
  return withSides(bench, options, given, async ({ ours, peer }) => {
    const theirs = async (episodes: number): Promise<number> => {
      const round = V1PeerRound.parse(await peer.ask({ concurrency: v1AtOnce, episodes }));
      requireAll(round.failed === 0, `verifiers: ${JSON.stringify(round)}`);
      return episodes / round.seconds;
    };
    bench.doing('a first round of both sides');
    await theirs(2); // prepares the program of its harness
    await ours.play(v1AtOnce, v1AtOnce);
    const play = () => ours.play(v1AtOnce, options.rollouts / 2);
    const measured = await inTurn(bench, 'v1 API', options.v1Pairs, play, () => theirs(theirEpisodes));
    return { v1_ratio: measured.ratio, v1_ours: round(measured.ours, 1), v1_theirs: round(measured.theirs, 2) };
  });
}

interface Measured {
  readonly ratio: number;
  readonly ours: number;
  readonly theirs: number;
  readonly rounds: readonly object[];
}

/** `pairs` rounds of each side, one after the other. */
async function inTurn(
  bench: Bench,
  what: string,
  pairs: number,
  ours: () => Promise<number>,
  theirs: () => Promise<number>,
): Promise<Measured> {
  const measured = [];
  for (let i = 0; i < pairs; i++) {
    bench.signal.throwIfAborted();
    bench.doing(`${what}, pair ${i + 1} of ${pairs}`);
    const their = await meterCpu(theirs);
    const our = await meterCpu(ours);
    measured.push({
      ours: round(our.result, 1),
      theirs: round(their.result, 2),
      others_cpu: [share(our.cpu), share(their.cpu)],
    });
    bench.say(`ours ${round(our.result, 1)}/s, verifiers ${round(their.result, 1)}/s`);
  }
  return {
    ratio: round(median(measured.map((pair) => pair.ours / pair.theirs)), 2),
    ours: median(measured.map((pair) => pair.ours)),
    theirs: median(measured.map((pair) => pair.theirs)),
    rounds: measured,
  };
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
  readonly #loaded: LoadedEnvironment;
  readonly #inputs: readonly string[];
  readonly #server: ChatServer;

  constructor(bridge: Bridge, loaded: LoadedEnvironment, inputs: readonly string[], server: ChatServer) {
    this.#bridge = bridge;
    this.#loaded = loaded;
    this.#inputs = inputs;
    this.#server = server;
  }

  static async open(bridge: Bridge, url: string, request: LoadRequest): Promise<Ours> {
    const loaded = await bridge.load(request);
    const { file } = await bridge.inputs({ env: request.env, split: 'train' });
    return new Ours(bridge, loaded, (await readFile(file, 'utf8')).trim().split('\n'), new ChatServer(url));
  }

  /** Rollouts a second: played, and scored an example at a time, or by the child where it scores in place. */
  async play(concurrency: number, rollouts: number): Promise<number> {
    const inputs = this.#inputs;
    const groups = Array.from({ length: rollouts / perExample }, (_, i) => ({
      input: inputs[i % inputs.length]!,
      rows: [] as WireRow[],
    }));
    const waiting = groups.flatMap((group) => Array.from({ length: perExample }, () => group));
    const scored: Promise<void>[] = [];
    let next = 0;
    const began = performance.now();
    const worker = async (): Promise<void> => {
      while (next < waiting.length) {
        const group = waiting[next++]!;
        const { played, turn } = await this.#one(group.input);
        requireAll(turn.logprobs.length > 0 && turn.promptTokenIds.length > 0, 'a turn has no tokens');
        group.rows.push(played.row);
        if (this.#loaded.scoring === 'in_place') requireScore(played.judged);
        else if (group.rows.length === perExample) scored.push(this.#score(group.rows));
      }
    };
    await Promise.all(Array.from({ length: concurrency }, worker));
    await Promise.all(scored);
    return waiting.length / ((performance.now() - began) / 1000);
  }

  async #score(rows: readonly WireRow[]): Promise<void> {
    const scores = await this.#bridge.score({ env: this.#loaded.env, rollouts: rows.map((row) => ({ row })) });
    for (const score of scores) requireScore(score);
  }

  async #one(input: string): Promise<{ readonly played: WirePlayedRow; readonly turn: KeptTurn }> {
    const turns: KeptTurn[] = [];
    const inPlace = this.#loaded.scoring === 'in_place';
    const sampling = { max_tokens: 64, temperature: 1 };
    const played = await this.#bridge.rollout(
      { env: this.#loaded.env, input, model: 'mock', sampling, score: inPlace, keep: false, with_tokens: false },
      {
        onSample: async (wanted) => {
          const { turn, said } = await this.#server.sample(wanted);
          turns.push(turn);
          return said;
        },
      },
    );
    requireAll(played.outcome === 'ok' && turns.length === 1, `ours: ${played.outcome} ${played.error?.message ?? ''}`);
    return { played, turn: turns[0]! };
  }
}

function requireScore(score: Score | null): void {
  requireAll(score !== null && !('error' in score), `ours: ${JSON.stringify(score)}`);
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
    const body = {
      model: 'mock',
      messages,
      ...(tools ? { tools } : {}),
      ...settings,
      ...(extra as object),
      logprobs: true,
      return_token_ids: true,
    };
    const answer = JSON.parse(await this.#post(JSON.stringify(body))) as ChatAnswer;
    const [choice] = answer.choices;
    const turn = {
      promptTokenIds: answer.prompt_token_ids,
      tokenIds: choice!.token_ids,
      logprobs: choice!.logprobs.content.map(({ logprob }) => logprob),
    };
    const usage = { prompt_tokens: turn.promptTokenIds.length, completion_tokens: turn.tokenIds.length };
    return {
      turn,
      said: { content: choice!.message.content, tool_calls: [], finish_reason: 'stop', usage, tokens: null },
    };
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
