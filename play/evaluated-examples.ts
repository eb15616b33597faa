import PQueue from 'p-queue';
import { positionsOf } from '../core/eval/chunks.ts';
import { exampleOrder } from '../core/eval/example-order.ts';
import type { EvaluationHandle, StoredEvaluation } from '../core/eval/evaluation.ts';
import { tallyOf } from '../core/eval/tally.ts';
import { RatchetError } from '../core/errors.ts';
import { groupsJudgedAtOnce } from '../core/limits.ts';
import { resultRow } from '../core/rl/rollout/results.ts';
import { isRewardedOutcome, type Rollout } from '../core/rl/rollout/rollout.ts';
import type { Environment } from '../backends/environments/types.ts';
import { encodeRows, rowLike } from '../store/objects.ts';
import { Part } from '../runs/rollouts/part.ts';
import { RolloutJournal } from '../runs/rollouts/rollout-journal.ts';
import { storeOf } from '../runs/run-access.ts';
import { evaluationKeys, type ScoredExample, scoredExamples } from '../runs/evaluations/evaluation-store.ts';
import { GroupsInPlay } from './groups-in-play.ts';
import { scoreExample } from './score-example.ts';
import type { Place } from './training-players.ts';

/** Refused from the first on: it is the request, the key or the model, and no other rollout would fare better. */
const refusedMax = 8;

interface ExamplesOf {
  readonly handle: EvaluationHandle;
  readonly chunk: number;
  readonly input: StoredEvaluation['input'];
  readonly environment: Environment;
  /** Whether rollouts are scored while all of their example are alive. */
  readonly scoresGroups: boolean;
  /** In place of the environment's own. */
  readonly systemPrompt: string | undefined;
  readonly cancelled: AbortSignal;
}

/** The examples of a chunk of an evaluation, as far as they are generated, scored and stored. */
export class EvaluatedExamples {
  /** Rollouts that carry a reward, of all attempts; and those of this attempt that do not. */
  readonly journal: RolloutJournal;
  readonly #failures: RolloutJournal;
  readonly #rows: Part<ScoredExample>;
  readonly #of: ExamplesOf;
  readonly #scored: Map<number, ScoredExample>;
  readonly #queue = new PQueue({ concurrency: groupsJudgedAtOnce });
  readonly #groups = new GroupsInPlay((group) => this.#queue.add(() => this.#score(group)));
  /** Rollouts that are finished, and those of them without a reward. */
  finished: number;
  failed: number;
  #refused: Rollout | null = null;
  /** Called with each rollout once its reward is stored; those without one are played again by the next attempt. */
  onRewarded: (place: Pick<Place, 'group' | 'index'>) => Promise<void> = () => Promise.resolve();

  private constructor(
    of: ExamplesOf,
    scored: Map<number, ScoredExample>,
    [journal, failures, rows]: readonly [RolloutJournal, RolloutJournal, Part<ScoredExample>],
  ) {
    this.journal = journal;
    this.#failures = failures;
    this.#rows = rows;
    this.#of = of;
    this.#scored = scored;
    const known = [...scored.values()].flatMap((example) => example.rows);
    this.finished = known.length;
    this.failed = known.filter(({ reward }) => reward === null).length;
  }

  static async open(of: ExamplesOf): Promise<EvaluatedExamples> {
    const { handle, chunk, scoresGroups } = of;
    const store = storeOf(handle.place);
    const own = evaluationKeys.ofAttempt(handle.place, chunk, handle.attempt);
    // Group scores count only with all rollouts of their example: earlier attempts contribute whole examples.
    const playedBelow = scoresGroups ? `${own}groups/` : evaluationKeys.chunk(handle.place, chunk);
    const scored = await scoredExamples(store, handle, chunk);
    const stored = await Promise.all([
      RolloutJournal.open(store, playedBelow, handle.spec.sha256, {
        notes: `${evaluationKeys.chunk(handle.place, chunk)}notes_`, // of all attempts
        signal: of.cancelled,
      }),
      RolloutJournal.open(store, own, handle.spec.sha256),
      Part.open<ScoredExample>(store, `${own}rows_`),
    ]);
    for (const journal of stored.slice(0, 2) as RolloutJournal[]) journal.keep();
    return new EvaluatedExamples(of, scored, stored);
  }

  /** Rollouts of the whole chunk. */
  get count(): number {
    const { handle, chunk } = this.#of;
    const { from, to } = positionsOf(chunk, handle);
    return (to - from) * handle.rolloutsPerExample;
  }

  get rewards(): number[] {
    const rows = [...this.#scored.values()].flatMap((example) => example.rows);
    return rows.flatMap(({ reward }) => (typeof reward === 'number' ? [reward] : []));
  }

  /** Over all that is scored. */
  tally(): ReturnType<typeof tallyOf> {
    const examples = [...this.#scored.values()].toSorted((a, b) => a.group - b.group);
    const rows = examples.map((example) => example.rows);
    return tallyOf(rows, this.#of.handle.rolloutsPerExample);
  }

  /** Rollouts that are to be generated, in order. Counts those that are there; `scoring` ends when examples that have all of theirs are scored. */
  begin(): { readonly missing: readonly Place[]; readonly scoring: Promise<unknown> } {
    const { handle, chunk, scoresGroups } = this.#of;
    const { from, to } = positionsOf(chunk, handle);
    const missing: Place[] = [];
    const scoring: Promise<void>[] = [];
    for (let group = from; group < to; group++) {
      if (this.#scored.has(group)) continue;
      const exampleId = this.#exampleAt(group);
      const places = Array.from({ length: handle.rolloutsPerExample }, (_, index) => ({ group, index, exampleId }));
      const isWhole = places.every((place) => this.has(place));
      const absent = scoresGroups && !isWhole ? places : places.filter((place) => !this.has(place));
      this.finished += places.length - absent.length;
      missing.push(...absent);
      scoring.push(this.#groups.add(group, absent.length) ?? Promise.resolve());
    }
    return { missing, scoring: Promise.all(scoring) };
  }

  has(place: Place): boolean {
    return this.journal.has(place) || this.#failures.has(place);
  }

  /** Ends when the example is scored, where this was the last of its rollouts. */
  async add(rollout: Rollout): Promise<void> {
    this.#keep(rollout);
    await this.#groups.finish(rollout.group, null);
  }

  /** Scores examples that nobody has come to score, as when all was told to stop. */
  async scoreRest(places: readonly Place[]): Promise<void> {
    const groups = new Set(places.map(({ group }) => group));
    const left = [...groups].filter((group) => !this.#scored.has(group));
    await this.#queue.addAll(left.map((group) => () => this.#score(group)));
  }

  /** Rollouts first (those that failed before the others of their example), then the examples that were scored from them, then their lines for people. */
  async flush(): Promise<void> {
    const { place } = this.#of.handle;
    await this.#failures.flush();
    await this.journal.flush();
    const stored = await this.#rows.flush();
    const lines = encodeRows(stored.flatMap((example) => example.rows));
    if (stored.length > 0) await storeOf(place).append(evaluationKeys.results(place), lines);
    for (const { group, rows } of stored)
      for (const [index, { reward }] of rows.entries()) if (reward !== null) await this.onRewarded({ group, index });
  }

  /** All of it is in the store. */
  forget(): void {
    this.journal.forget();
    this.#failures.forget();
  }

  #keep(rollout: Rollout): void {
    this.finished += 1;
    const isJudged = rollout.judged === undefined || !('error' in rollout.judged);
    const isRewarded = isRewardedOutcome(rollout.outcome); // where its judgement failed it is counted when it is scored
    if (isRewarded) return (isJudged ? this.journal : this.#failures).add(rollout);
    this.failed += 1;
    const isFirst = (): boolean => this.rewards.length === 0 && this.journal.size().rollouts === 0;
    if (rollout.outcome === 'rejected' && isFirst()) {
      this.#refused ??= rollout;
      if (this.failed >= Math.min(refusedMax, this.count)) throw refusedAll(this.#refused);
    }
    this.#failures.add(rollout);
  }

  async #score(group: number): Promise<void> {
    if (this.#scored.has(group)) return;
    const { environment, systemPrompt, handle, input, cancelled: signal } = this.#of;
    const stored = [...this.journal.of(group), ...this.#failures.of(group)];
    const members = membersOf(group, handle.rolloutsPerExample, stored);
    const exampleId = this.#exampleAt(group);
    const timeoutMs = input.standstillS * 1000;
    const around = { dataset: 'evalDataset', exampleId, systemPrompt, timeoutMs, signal } as const;
    const together = input.independentScoring ? members.map((one) => [one]) : [members];
    const scored = await Promise.all(together.map((some) => scoreExample(environment, some, around)));
    const rows = scored.flatMap(({ example, scored: rollouts }) =>
      rollouts.map((rollout) => {
        const { record } = rollout;
        const row = resultRow(rollout, { example, record, tools: environment.tools, place: { ...input.about } });
        return rowLike(row, record);
      }),
    );
    const done = { group, rows };
    this.failed += rows.filter(({ reward }, i) => reward === null && isRewardedOutcome(members[i]!.outcome)).length;
    this.#scored.set(group, done);
    this.#rows.fresh.push(done);
  }

  #exampleAt(position: number): number {
    const { environment, input } = this.#of;
    return exampleOrder(environment.evalDataset.length, input.shuffleSeed, input.skipExamples)(position);
  }
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
