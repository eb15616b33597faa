import { setMaxListeners } from 'node:events';
import PQueue from 'p-queue';
import { positionsOf } from '../../core/eval/chunks.ts';
import type { ChunkResult, EvaluationHandle } from '../../core/eval/evaluation.ts';
import { exampleOrder } from '../../core/eval/example-order.ts';
import { tallyOf } from '../../core/eval/tally.ts';
import { RatchetError } from '../../core/errors.ts';
import { groupsJudgedAtOnce } from '../../core/limits.ts';
import { chunkLeftSignalName } from '../../core/names.ts';
import { resultRow } from '../../core/rl/results.ts';
import { isRewardedOutcome, type Rollout } from '../../core/rl/rollout.ts';
import { withSystemPrompt } from '../../core/rl/system-prompt.ts';
import type { Environments } from '../../backends/environments/index.ts';
import { environmentsOfEvaluation } from '../../backends/rollouts/environment-users.ts';
import { failedRollout } from '../../backends/environments/score.ts';
import { scoreGroup } from '../../backends/environments/score-group.ts';
import type { Environment } from '../../backends/environments/types.ts';
import type { Store } from '../../backends/store/index.ts';
import { encodeRows } from '../../backends/store/objects.ts';
import { type AskDependencies, silentServers } from '../../backends/rollouts/asked-model.ts';
import { eachGroup } from '../../backends/rollouts/each-group.ts';
import { Slots, workerSlots } from '../../backends/rollouts/slots.ts';
import { withHeartbeat } from '../around/heartbeat.ts';
import { tellWorkflow } from '../around/tell-workflow.ts';
import { playRollout } from '../../backends/rollouts/play-rollout.ts';
import { byGroup, groupsPlayed, type Together } from '../../backends/rollouts/played-together.ts';
import { Part, RolloutJournal } from '../../runs/rollout-journal.ts';
import { storeOf } from '../../runs/run-access.ts';
import { Standstill } from '../../backends/rollouts/standstill.ts';
import { keepVersion, openPlayer } from '../../backends/rollouts/evaluated-policy.ts';
import { evaluationKeys, type ScoredExample, scoredExamples, storedEvaluation } from '../../runs/evaluation-store.ts';

interface EvaluateChunkInput {
  readonly handle: EvaluationHandle;
  readonly chunk: number;
}

/** What an attempt's heartbeats say, for whoever watches. */
export interface ChunkProgress {
  /** Rollouts that are finished, of those of the chunk. */
  readonly done: number;
  readonly of: number;
  readonly failed: number;
  /** Of scored ones: the sum of their rewards, and how many. */
  readonly rewards: number;
  readonly rewarded: number;
  /** Servers of which none answers at the moment; null while one does. */
  readonly waitsFor: string | null;
}

/** How often finished rollouts and scored examples are stored while others of their chunk still run. */
const partIntervalMs = 500;

/** Of what a chunk may have in flight; an evaluation is told when no more is left. */
const leftTold = [1 / 2, 1 / 4, 1 / 8];

/** Refused from the first on: it is the request, the key or the model, and no other rollout would fare better. */
const refusedMax = 8;

/**
 * Plays and scores the examples of one chunk. Every finished rollout lies in the store under its own place before anyone relies on it, and
 * every scored example: a retry finds them and plays only what is missing. What an earlier attempt of the evaluation lost to infrastructure
 * is played again; where the environment scores whole groups, with the others of its example.
 */
export const createEvaluateChunk =
  (dependencies: AskDependencies) =>
  async (input: EvaluateChunkInput): Promise<ChunkResult> => {
    let work: ChunkWork | null = null;
    return withHeartbeat(
      async (cancelled, say) => {
        work = await ChunkWork.open(dependencies, input, cancelled);
        say(); // a worker may die before the next heartbeat
        return work.finish();
      },
      () => work?.progress(),
    );
  };

class ChunkWork {
  readonly #startedAt = performance.now();
  readonly #options: Opened;
  readonly #scored: Map<number, ScoredExample>;
  readonly #adopted: number;
  /** Positions that are to be scored, and how many of their rollouts are still awaited. */
  readonly #awaited = new Map<number, number>();
  #finished = 0;
  #failed = 0;
  #refused: Rollout | null = null;

  private constructor(options: Opened, scored: Map<number, ScoredExample>) {
    this.#options = options;
    this.#scored = scored;
    this.#adopted = [...scored.values()].reduce((sum, { rows }) => sum + rows.length, 0);
    this.#finished = this.#adopted;
    this.#failed = [...scored.values()].flatMap(({ rows }) => rows).filter(({ reward }) => reward === null).length;
  }

  static async open(
    dependencies: AskDependencies,
    { handle, chunk }: EvaluateChunkInput,
    cancelled: AbortSignal,
  ): Promise<ChunkWork> {
    const store = storeOf(handle.place);
    const own = evaluationKeys.ofAttempt(handle.place, chunk, handle.attempt);
    const { input } = await storedEvaluation(handle);
    const environments = environmentsOfEvaluation(dependencies.environments, handle);
    const environment = await environments.open(input.environment);
    const { systemPrompt: ref } = input;
    const systemPrompt = ref && Buffer.from(await store.get(ref)).toString('utf8');
    const scored = await scoredExamples(store, handle, chunk);
    // What was scored with the others of its example counts with them alone: of earlier attempts, whole examples.
    const playedBelow = isByGroups(input, environment) ? `${own}groups/` : evaluationKeys.chunk(handle.place, chunk);
    const [journal, failures, rows] = await Promise.all([
      RolloutJournal.open(store, playedBelow, handle.spec.sha256),
      RolloutJournal.open(store, own, handle.spec.sha256),
      store.list(own).then((keys) => Part.open<ScoredExample>(store, `${own}rows_`, keys)),
    ]);
    return new ChunkWork(
      {
        dependencies,
        environments,
        handle,
        chunk,
        store,
        input,
        environment,
        systemPrompt,
        journal,
        failures,
        rows,
        cancelled,
      },
      scored,
    );
  }

  progress(): ChunkProgress {
    const { handle, chunk } = this.#options;
    const { from, to } = positionsOf(chunk, handle);
    const rewards = [...this.#scored.values()].flatMap(({ rows }) =>
      rows.flatMap(({ reward }) => (typeof reward === 'number' ? [reward] : [])),
    );
    return {
      done: this.#finished,
      of: (to - from) * handle.rolloutsPerExample,
      failed: this.#failed,
      rewards: rewards.reduce((sum, reward) => sum + reward, 0),
      rewarded: rewards.length,
      waitsFor: silentServers(this.#options.dependencies, this.#options.input.model),
    };
  }

  async finish(): Promise<ChunkResult> {
    const { handle, chunk, input, journal, failures, cancelled } = this.#options;
    journal.keep();
    failures.keep();
    const missing = this.#missing();
    const found = this.#finished;
    const standstill = new Standstill(input.standstillS * 1000);
    const stop = AbortSignal.any([cancelled, standstill.signal]);
    const brokenOff = new AbortController();
    for (const signal of [stop, brokenOff.signal]) setMaxListeners(0, signal); // every rollout listens
    const flushing = setInterval(() => void this.#flush().catch(() => undefined), partIntervalMs); // done again at the end
    const leave = workerSlots.enter(missing.length);
    const kept = await keepVersion(this.#options.dependencies, `${handle.place.prefix}chunk_${chunk}`, input);
    try {
      const player = await openPlayer(this.#options.dependencies, handle, input, { journal, signal: stop });
      const together = this.#together(missing, brokenOff.signal);
      await this.#scoreAll(
        [...this.#awaited].flatMap(([group, count]) => (count === 0 ? [group] : [])),
        stop,
      );
      const slots = [new Slots(handle.atOnce), workerSlots];
      let left = missing.length;
      await eachGroup(this.#letInTogether(missing), { slots, stop, brokenOff }, async (place) => {
        const rollout = await playRollout({
          environments: this.#options.environments,
          entry: input.environment,
          dataset: 'evalDataset',
          place,
          together: together(place),
          attemptsMax: input.maxRetries + 1,
          asksEmptyAgain: true,
          systemPrompt: this.#options.systemPrompt,
          signal: stop,
          ...player(place),
        });
        standstill.moved();
        this.#add(rollout);
        this.#tellLeft(--left);
        await this.#scoreIfComplete(place.group, stop);
        standstill.moved();
      });
      cancelled.throwIfAborted();
      if (standstill.isOver) await this.#giveUp(missing);
    } finally {
      leave();
      standstill.end();
      clearInterval(flushing);
      await kept.release();
      await this.#flush();
    }
    journal.forget();
    failures.forget();
    const groups = [...this.#scored.values()].toSorted((a, b) => a.group - b.group);
    return {
      chunk,
      tally: tallyOf(
        groups.map(({ rows }) => rows),
        handle.rolloutsPerExample,
      ),
      adopted: found,
      seconds: (performance.now() - this.#startedAt) / 1000,
    };
  }

  /** What is to be played, in order. Counts what is there by the way. */
  #missing(): Place[] {
    const { handle, chunk, input, environment, journal, failures } = this.#options;
    const exampleAt = exampleOrder(environment.evalDataset.length, input.shuffleSeed, input.skipExamples);
    const { from, to } = positionsOf(chunk, handle);
    const isOneByOne = !isByGroups(input, environment);
    const missing: Place[] = [];
    for (let group = from; group < to; group++) {
      if (this.#scored.has(group)) continue;
      const places = Array.from({ length: handle.rolloutsPerExample }, (_, index) => {
        return { group, index, exampleId: exampleAt(group) };
      });
      const isThere = (place: Place) => journal.has(place) || failures.has(place);
      const absent = isOneByOne || places.every(isThere) ? places.filter((place) => !isThere(place)) : places;
      this.#finished += places.length - absent.length;
      this.#awaited.set(group, absent.length);
      missing.push(...absent);
    }
    return missing;
  }

  /** Few rollouts are left: the evaluation may begin as many of other chunks. One that is not told does so when this one has ended. */
  #tellLeft(left: number): void {
    const { atOnce, chunks } = this.#options.handle;
    if (chunks === 1 || left === 0 || !leftTold.some((share) => left === Math.floor(atOnce * share))) return;
    void tellWorkflow(chunkLeftSignalName, this.#options.chunk, left).catch(() => undefined);
  }

  /** An environment may score an example's rollouts in place, when the last of them is there. */
  #letInTogether(missing: readonly Place[]): Place[][] {
    const { input, environment } = this.#options;
    return isByGroups(input, environment) ? byGroup(missing, ({ group }) => group) : missing.map((place) => [place]);
  }

  #together(missing: readonly Place[], brokenOff: AbortSignal): (place: Place) => Together {
    const together = groupsPlayed(missing, brokenOff);
    if (!this.#options.input.independentScoring) return together;
    return (place) => ({ ...together(place), group: `${together(place).group}/${place.index}`, size: 1 });
  }

  #add(rollout: Rollout): void {
    const { journal, failures } = this.#options;
    this.#finished += 1;
    this.#awaited.set(rollout.group, this.#awaited.get(rollout.group)! - 1);
    const isJudged = rollout.judged === undefined || !('error' in rollout.judged);
    if (isRewardedOutcome(rollout.outcome) && isJudged) return journal.add(rollout);
    if (isRewardedOutcome(rollout.outcome)) return failures.add(rollout); // counted when it is scored
    this.#failed += 1;
    const isFirst = journal.size().rollouts === 0 && this.progress().rewarded === 0;
    if (rollout.outcome === 'rejected' && isFirst) {
      this.#refused ??= rollout;
      if (this.#failed >= Math.min(refusedMax, this.progress().of)) throw refusedAll(this.#refused);
    }
    failures.add(rollout);
  }

  async #scoreIfComplete(group: number, signal: AbortSignal): Promise<void> {
    if (this.#awaited.get(group) === 0) await this.#scoreAll([group], signal);
  }

  async #scoreAll(groups: readonly number[], signal: AbortSignal): Promise<void> {
    const { environment, systemPrompt, handle, input, journal, failures, rows } = this.#options;
    const exampleAt = exampleOrder(environment.evalDataset.length, input.shuffleSeed, input.skipExamples);
    const score = async (group: number): Promise<void> => {
      const example = withSystemPrompt(environment.evalDataset.at(exampleAt(group)), systemPrompt);
      const members = membersOf(group, handle.rolloutsPerExample, [...journal.of(group), ...failures.of(group)]);
      const around = { timeoutMs: input.standstillS * 1000, dataset: 'evalDataset', signal } as const;
      const scored = input.independentScoring
        ? (await Promise.all(members.map((one) => scoreGroup(environment, example, [one], around)))).flat()
        : await scoreGroup(environment, example, members, around);
      const made = scored.map((rollout) => {
        const { record } = rollout;
        return resultRow(rollout, { example, record, tools: environment.tools, place: { ...input.about } });
      });
      const done = { group, rows: made };
      this.#failed += made.filter(({ reward }, i) => reward === null && isRewardedOutcome(members[i]!.outcome)).length;
      this.#scored.set(group, done);
      this.#awaited.delete(group);
      rows.fresh.push(done);
    };
    const queue = new PQueue({ concurrency: groupsJudgedAtOnce });
    await queue.addAll(groups.map((group) => () => score(group)));
  }

  /** What did not come to its end is a `timeout`; the next attempt plays it again. */
  async #giveUp(missing: readonly Place[]): Promise<void> {
    const { input, journal, failures } = this.#options;
    const left = missing.filter((place) => !journal.has(place) && !failures.has(place));
    for (const place of left) {
      const error = `Not finished when the evaluation timed out: none of its rollouts had ended for ${input.standstillS} s.`;
      this.#add(failedRollout({ ...place, turns: [] }, 'timeout', error));
    }
    await this.#scoreAll([...this.#awaited.keys()], new AbortController().signal);
  }

  /** Rollouts first (those that failed before the others of their example), then the examples that were scored from them, then their lines for people. */
  async #flush(): Promise<void> {
    const { journal, failures, rows, store, handle } = this.#options;
    await failures.flush();
    await journal.flush();
    const stored = await rows.flush();
    if (stored.length === 0) return;
    await store.append(evaluationKeys.results(handle.place), encodeRows(stored.flatMap((example) => example.rows)));
  }
}

type Place = Pick<Rollout, 'group' | 'index' | 'exampleId'>;

interface Opened extends EvaluateChunkInput {
  readonly dependencies: AskDependencies;
  readonly environments: Environments;
  readonly store: Store;
  readonly input: Awaited<ReturnType<typeof storedEvaluation>>['input'];
  readonly environment: Environment;
  /** In place of the environment's own. */
  readonly systemPrompt: string | undefined;
  /** Rollouts that carry a reward, of all attempts; and those of this attempt that do not. */
  readonly journal: RolloutJournal;
  readonly failures: RolloutJournal;
  readonly rows: Part<ScoredExample>;
  readonly cancelled: AbortSignal;
}

/** Whether rollouts are scored while all of their example are alive. */
function isByGroups({ independentScoring }: Opened['input'], { scoresGroups = false }: Environment): boolean {
  return scoresGroups && !independentScoring;
}

/** One for each index: of two, the one that carries a reward. */
function membersOf(group: number, size: number, rollouts: readonly Rollout[]): Rollout[] {
  return Array.from({ length: size }, (_, index) => {
    const own = rollouts.filter((rollout) => rollout.index === index);
    const member = own.find(({ outcome }) => isRewardedOutcome(outcome)) ?? own[0];
    if (member) return member;
    throw new Error(`rollout ${index} of example ${group} is neither finished nor timed out`);
  });
}

function refusedAll({ error = '' }: Rollout): RatchetError {
  return new RatchetError(
    'InferenceRejected',
    `The model's server refuses every request: ${error.split('\n')[0]!.replace(/^(?:Error|InferenceRejected): /, '')}`,
  );
}
