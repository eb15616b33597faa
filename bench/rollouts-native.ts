import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { openInference } from '../backends/inference/index.ts';
import { initialCurriculum } from '../core/rl/sampling/curriculum.ts';
import { InferenceSpec } from '../config/run-spec.ts';
import { act, commitFirst, openRoles, runIn, scoredRollouts } from '../test/activities/runs.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { type MockOptions, startMockServer } from './mock-model-server.ts';
import { median, round } from './statistics.ts';

/**
 * Ratchet's own cost of generating rollouts with a TypeScript environment: single turns of `reverse-text` through the
 * real activity (its journal, its parts, its chunk in a `file:` store) against a mock of a server in a process of its own, a
 * request for each turn.
 *
 * - `rollouts_per_s`, goal ≥ 2,000: the mock answers at once.
 * - `cpu_ms_per_turn`, goal < 2: CPU time of this process, all threads, in the same rounds.
 * - `efficiency_1s_1024`, goal ≥ 0.9: the mock takes a second, 1,024 are in flight; time that the mock alone would take ÷ time taken.
 * - `lost`, goal 0: rollouts that did not end well while the mock cut one connection in a hundred, before its answer, after its
 *   headers and within its body; `dropped` were cut.
 *
 * The figures are medians over the rounds after the first. `batched` is the same with [inference] kind = "embedded", where what
 * is asked in one turn of the event loop travels together.
 */
export const rolloutsNative = measurement(
  'rollouts-native',
  'what a rollout of a TypeScript environment costs',
  measure,
)
  .option('--rounds <n>', 'rounds of each kind, the first of which is not counted', Number, 5)
  .option('--rollouts <n>', 'rollouts of a round', Number, 8_192)
  .addHelpText('after', '\nGoals: rollouts_per_s ≥ 2000, cpu_ms_per_turn < 2, efficiency_1s_1024 ≥ 0.9, lost 0.');

interface Options {
  readonly rounds: number;
  readonly rollouts: number;
}

const rolloutsPerExample = 8;
const latencyMs = 1_000;
const inFlight = 1_024;
/** Rollouts where the mock takes a second: sixteen waves, so that beginning and end are not the most of it. */
const longRound = 16 * inFlight;

interface Round {
  readonly seconds: number;
  readonly cpuMsPerTurn: number;
  readonly notOk: number;
  readonly mockCpuMsPerTurn: number;
}

async function measure(bench: Bench, { rounds, rollouts }: Options): Promise<Figures> {
  const instant = await play(bench, 'instant', {}, { rounds, rollouts });
  const batched = await play(bench, 'instant, batched', {}, { rounds, rollouts, kind: 'embedded' });
  const slow = await play(
    bench,
    'a second each',
    { delayMs: latencyMs },
    { rounds: 2, rollouts: longRound, maxConcurrent: inFlight },
  );
  const broken = await play(bench, 'one connection in a hundred cut', { dropShare: 0.01 }, { rounds: 2, rollouts });
  const rate = (played: Played): number => Math.round(median(played.rounds.map(({ seconds }) => rollouts / seconds)));
  const cpu = (played: Played): number => round(median(played.rounds.map(({ cpuMsPerTurn }) => cpuMsPerTurn)), 3);
  const ideal_s = (Math.ceil(longRound / inFlight) * latencyMs) / 1000;
  return {
    rollouts_per_s: rate(instant),
    cpu_ms_per_turn: cpu(instant),
    efficiency_1s_1024: round(ideal_s / median(slow.rounds.map(({ seconds }) => seconds)), 3),
    lost: [...broken.rounds, ...instant.rounds, ...slow.rounds].reduce((sum, { notOk }) => sum + notOk, 0),
    dropped: broken.dropped,
    details: {
      rollouts,
      batched: { rollouts_per_s: rate(batched), cpu_ms_per_turn: cpu(batched) },
      dropping: { rollouts_per_s: rate(broken), cpu_ms_per_turn: cpu(broken) },
      cpu_ms_per_turn_1s: cpu(slow),
      mock_cpu_ms_per_turn: round(median(instant.rounds.map(({ mockCpuMsPerTurn }) => mockCpuMsPerTurn)), 3),
    },
  };
}

interface Played {
  readonly rounds: readonly Round[];
  /** Connections that the mock cut, the first round's too. */
  readonly dropped: number;
}

/** A run of its own, a round for each of its steps; the first warms up. */
async function play(
  bench: Bench,
  what: string,
  mockOptions: MockOptions,
  options: Options & { readonly kind?: 'openai' | 'embedded'; readonly maxConcurrent?: number },
): Promise<Played> {
  const { rounds, rollouts, kind = 'openai', maxConcurrent } = options;
  bench.doing(what);
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-bench-'));
  const mock = await startMockServer(mockOptions);
  const spec = { kind, url: mock.url, ...(maxConcurrent === undefined ? {} : { maxConcurrent }) };
  const inference = openInference(InferenceSpec.parse(spec), '');
  try {
    const played: Round[] = [];
    const settings = { batch_size: String(rollouts), rollouts_per_example: String(rolloutsPerExample) };
    const test = await runIn(folder, settings, 'native');
    const roles = openRoles(inference);
    const { state } = await commitFirst(test, roles);
    let curriculum = initialCurriculum;
    for (let step = 1; step <= rounds; step++) {
      bench.signal.throwIfAborted();
      const leased = await roles.leaseGroups({
        run: test.run,
        step,
        count: rollouts / rolloutsPerExample,
        curriculum,
        datasets: [{ name: 'reverse-text', weight: 1, datasetLength: 1_000 }],
        policy: state.policy,
      });
      curriculum = leased.curriculum;
      const before = await mock.counts();
      const cpuBefore = process.cpuUsage();
      const startedAt = performance.now();
      const chunk = await act(roles.playGroups, {
        run: test.run,
        round: leased.round,
        chunk: { index: 0, count: 1 },
      });
      const seconds = (performance.now() - startedAt) / 1000;
      const { user, system } = process.cpuUsage(cpuBefore);
      const after = await mock.counts();
      const rows = await scoredRollouts(test.run, chunk);
      const round: Round = {
        seconds,
        cpuMsPerTurn: (user + system) / 1000 / rollouts,
        notOk: rollouts - rows.filter(({ outcome }) => outcome === 'ok').length,
        mockCpuMsPerTurn: ((after.cpu_s - before.cpu_s) * 1000) / rollouts,
      };
      if (step > 1) played.push(round);
      bench.say(`${what}: ${Math.round(rollouts / seconds)}/s, ${round.cpuMsPerTurn.toFixed(3)} ms of CPU a turn`);
    }
    return { rounds: played, dropped: (await mock.counts()).dropped };
  } finally {
    inference.close?.();
    await mock.close();
    await rm(folder, { recursive: true, force: true });
  }
}
