import { layout } from '../core/layout.ts';
import { rolloutsInFlightMax } from '../core/limits.ts';
import { hash32 } from '../core/random.ts';
import type { GroupLease, Rollout, Turn } from '../core/rl/rollout.ts';
import type { LeasedGroups, ObjectRef, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import type { RunSpec } from '../core/spec/run-spec.ts';
import { RatchetError } from '../core/errors.ts';
import type { ChatTokenizer } from '../engine/index.ts';
import { openEnvironment } from '../backends/environments/index.ts';
import type { Policy } from '../backends/environments/types.ts';
import type { Inference, ServedPolicy } from '../backends/inference/index.ts';
import { countRows, decodeRows, encodeRows } from '../backends/store/objects.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { failpoint } from '../backends/failpoints.ts';
import { withHeartbeat } from './heartbeat.ts';
import { readJson, servedPolicy, specOf, storeOf } from './run-access.ts';

export interface GenerateInput {
  readonly run: RunHandle;
  readonly round: SamplingRound;
  /** Which of how many equal parts of the round. */
  readonly chunk: { readonly index: number; readonly count: number };
}

export interface GeneratedChunk {
  readonly finished: ObjectRef;
  readonly rollouts: number;
  /** Of those, how many lay in the store already and cost nothing. */
  readonly adopted: number;
  readonly seconds: number;
}

export interface GenerateDependencies {
  readonly inference: (spec: RunSpec) => Inference;
  readonly tokenizer: (folder: string) => Promise<ChatTokenizer>;
}

/** How often finished rollouts are stored while others of their chunk still run. */
const partIntervalMs = 500;
/** A rollout that infrastructure spoiled is played again this often, each time from the start. */
const attemptsPerRollout = 3;

export const createGenerateRollouts =
  (dependencies: GenerateDependencies) =>
  /** Plays a chunk of the round's groups. A retry finds the finished rollouts in the store and plays only the missing. */
  async (input: GenerateInput): Promise<GeneratedChunk> =>
    withHeartbeat(async (signal) => {
      const startedAt = performance.now();
      const { run, round, chunk } = input;
      const store = storeOf(run);
      const part = `chunk_${chunk.index + 1}_of_${chunk.count}`;
      const prefix = layout.round(run.lineage, round.step, round.first, round.last) + part;
      const key = `${prefix}.jsonl`;
      const whole = await store.read(key);
      if (whole) return generated(key, whole, null, startedAt);

      const journal = await RolloutJournal.open(store, `${prefix}/`);
      const { leases, policy } = await readJson<LeasedGroups>(run, round.leases);
      const players = await openPlayers(dependencies, run, await servedPolicy(run, policy));
      const wanted = leases
        .filter((_, i) => Math.floor((i * chunk.count) / leases.length) === chunk.index)
        .flatMap((lease) => Array.from({ length: players.spec.rolloutsPerExample }, (_, index) => ({ lease, index })));
      const missing = wanted.filter(({ lease, index }) => !journal.has(lease.ordinal, index));
      const adopted = wanted.length - missing.length;

      const flushing = setInterval(() => void journal.flush().catch(() => undefined), partIntervalMs); // close() tries again
      try {
        for (let start = 0; start < missing.length; start += rolloutsInFlightMax) {
          const slice = missing.slice(start, start + rolloutsInFlightMax);
          await allOrFirstError(
            slice.map(async ({ lease, index }) => journal.add(await players.play(lease, index, signal))),
          );
        }
      } finally {
        clearInterval(flushing);
        await journal.close(missing.length);
      }
      // An attempt that was given up may still be at work: whoever is first decides, and both return the same.
      const { stored, bytes } = await store.putIfAbsent(key, encodeRows(journal.inOrder()));
      return generated(key, bytes, stored ? adopted : null, startedAt);
    });

/** Waits for all of them also when one fails, so that nothing finished is lost with it. */
async function allOrFirstError(work: readonly Promise<void>[]): Promise<void> {
  const failed = (await Promise.allSettled(work)).find((result) => result.status === 'rejected');
  if (failed) throw failed.reason;
}

/** What lies in the store of a chunk; `adopted` null = all of it was there. */
function generated(key: string, bytes: Uint8Array, adopted: number | null, startedAt: number): GeneratedChunk {
  const rollouts = countRows(bytes);
  return {
    finished: { key, sha256: sha256(bytes), bytes: bytes.byteLength, count: rollouts },
    rollouts,
    adopted: adopted ?? rollouts,
    seconds: (performance.now() - startedAt) / 1000,
  };
}

/** The finished rollouts of a chunk, stored in parts while the chunk still runs. */
class RolloutJournal {
  readonly #store: ReturnType<typeof storeOf>;
  readonly #prefix: string;
  readonly #stored: Rollout[];
  readonly #fresh: Rollout[] = [];
  readonly #known: Set<string>;
  #parts: number;
  #writing: Promise<void> = Promise.resolve();

  private constructor(store: ReturnType<typeof storeOf>, prefix: string, stored: Rollout[], parts: number) {
    this.#store = store;
    this.#prefix = prefix;
    this.#stored = stored;
    this.#parts = parts;
    this.#known = new Set(stored.map(placeOf));
  }

  static async open(store: ReturnType<typeof storeOf>, prefix: string): Promise<RolloutJournal> {
    const keys = await store.list(prefix);
    const parts = await Promise.all(
      keys.map(async (key) => decodeRows<Rollout>((await store.read(key)) ?? Buffer.of(), key)),
    );
    // Two attempts that overlapped may both have stored a rollout: it counts once.
    const byPlace = new Map(parts.flat().map((rollout) => [placeOf(rollout), rollout]));
    return new RolloutJournal(store, prefix, [...byPlace.values()], keys.length);
  }

  has(group: number, index: number): boolean {
    return this.#known.has(placeOf({ group, index }));
  }

  add(rollout: Rollout): void {
    this.#fresh.push(rollout);
  }

  /** Stores what finished since the last part. Rows that could not be stored stay with the next one. */
  flush(): Promise<void> {
    const writing = this.#writing.then(async () => {
      const rows = [...this.#fresh];
      if (rows.length === 0) return;
      for (let isStored = false; !isStored;) {
        this.#parts += 1;
        const key = `${this.#prefix}part_${this.#parts}.jsonl`;
        isStored = (await this.#store.putIfAbsent(key, encodeRows(rows))).stored;
      }
      this.#stored.push(...this.#fresh.splice(0, rows.length));
      await failpoint('generate.part');
    });
    this.#writing = writing.catch(() => undefined);
    return writing;
  }

  /** Stores what is left, unless everything finished at once: then the chunk's own object follows right away. */
  async close(expected: number): Promise<void> {
    await this.#writing;
    if (this.#fresh.length < expected) await this.flush();
  }

  inOrder(): Rollout[] {
    return [...this.#stored, ...this.#fresh].sort((a, b) => a.group - b.group || a.index - b.index);
  }
}

function placeOf({ group, index }: Pick<Rollout, 'group' | 'index'>): string {
  return `${group}/${index}`;
}

interface Players {
  readonly spec: RunSpec;
  play(lease: GroupLease, index: number, signal: AbortSignal): Promise<Rollout>;
}

/** Everything a rollout needs: its environment, the tokenizer of the policy, and a server to sample from. */
async function openPlayers(dependencies: GenerateDependencies, run: RunHandle, served: ServedPolicy): Promise<Players> {
  const spec = await specOf(run);
  const inference = dependencies.inference(spec);
  const tokenizer = await dependencies.tokenizer(served.folder);
  const entries = new Map(spec.environments.map((entry) => [entry.name, entry]));
  return {
    spec,
    async play(lease, index, signal) {
      const environment = await openEnvironment(entries.get(lease.environment)!);
      const policy = (): Policy =>
        samplePolicy({ inference, tokenizer, served, sampling: spec.sampling, signal }, (turn) =>
          turnSeed(spec.sampling.seed ?? spec.seed, run.lineage, lease.ordinal, index, turn),
        );
      const identity = { group: lease.ordinal, index, exampleId: lease.exampleId };
      for (let attempt = 1; ; attempt++) {
        try {
          return { ...identity, ...(await environment.rollout(environment.dataset.at(lease.exampleId), policy())) };
        } catch (error) {
          // The server's trouble is everyone's: the activity's own retry takes care of it, with nothing finished lost.
          if (error instanceof RatchetError || signal.aborted) throw error;
          if (attempt < attemptsPerRollout) continue;
          return { ...identity, turns: [], outcome: 'infra_failure', error: String(error).slice(0, 500) };
        }
      }
    },
  };
}

/** The model as an environment sees it: messages in, one turn out, every random number keyed by the turn's place. */
export function samplePolicy(
  options: {
    readonly inference: Inference;
    readonly tokenizer: ChatTokenizer;
    readonly served: ServedPolicy;
    readonly sampling: RunSpec['sampling'];
    readonly signal?: AbortSignal;
  },
  seedOfTurn: (turn: number) => number,
): Policy {
  const { inference, tokenizer, served, sampling, signal } = options;
  let turns = 0;
  return {
    async sample(messages): Promise<Turn> {
      const promptTokenIds = tokenizer.renderChat(messages);
      const seed = seedOfTurn(turns++);
      const sample = await inference.sample({ ...sampling, policy: served, promptTokenIds, seed, signal });
      const text = beforeStop(tokenizer.decode(sample.tokenIds), sampling.stop);
      return { promptTokenIds, ...sample, text, policyStep: served.version.step };
    },
  };
}

/** A stop text ends a turn and is not part of what was said, as with vLLM. */
function beforeStop(text: string, stop: readonly string[]): string {
  const ends = stop.map((end) => text.indexOf(end)).filter((at) => at >= 0);
  return ends.length === 0 ? text : text.slice(0, Math.min(...ends));
}

/** 52 bits from the turn's place in the run. */
export function turnSeed(...place: readonly (number | string)[]): number {
  return hash32('turn', ...place) * 2 ** 20 + (hash32('turn again', ...place) >>> 12);
}
