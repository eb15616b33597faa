import { emptyTally, tallyOf } from '../../core/eval/tally.ts';
import type {
  JournaledGroup,
  JudgeUse,
  RescoredChunk as ChunkDone,
  RescoredGroup,
  RescoreHandle,
  StoredRescore,
  StoredRescoredChunk,
} from '../../core/eval/rescore.ts';
import { addFigures, figuresOf, noFigures } from '../../core/eval/rescore-figures.ts';
import { RatchetError } from '../../core/errors.ts';
import { groupsJudgedAtOnce } from '../../core/limits.ts';
import { isRewardedOutcome, type Rollout, type RolloutRow, type ScoredRollout } from '../../core/rl/rollout/rollout.ts';
import type { ObjectRef } from '../../core/rl/run-state.ts';
import { JudgeMeter } from '../../backends/environments/judge-meter.ts';
import { scoreGroup } from '../../backends/environments/score-group.ts';
import { failpoint } from '../../store/failpoints.ts';
import type { Store } from '../../store/index.ts';
import { decodeStored, encodeStored } from '../../runs/forms/stored-forms.ts';
import { putResultRows, putScores, rescoreKeys, rowsOfPart, storedRescore } from '../../runs/rescores/rescore-store.ts';
import { Part } from '../../runs/rollouts/part.ts';
import { storeOf } from '../../runs/run-access.ts';
import { type OpenedRubric, openRubrics } from './opened-rubrics.ts';
import { nameOf, requireTraces, rescoredGroup, sumOfUse, withKnown } from './scored-again.ts';
import type { StoredGroup } from './stored-group.ts';
import { storedGroups } from './stored-groups.ts';
import type { Environments } from '../../backends/environments/index.ts';

export interface RescoreChunkInput {
  readonly handle: RescoreHandle;
  readonly chunk: number;
  /** The asking workflow, `WORKFLOW_ID/EXECUTION_ID`. */
  readonly request: string;
  /** What judges may be asked for this chunk on this request, earlier attempts included; absent = no bound. */
  readonly allowed?: Partial<JudgeUse>;
}

/** Part of the chunk's heartbeats, for viewers. */
export interface RescoreProgress {
  readonly rescored: number;
  readonly changed: number;
  readonly failed: number;
  readonly judge: JudgeUse;
}

/** Between writes of scored groups. A rubric that needs less than this for a chunk writes none. */
const journalEveryMs = 2_000;
/** A rubric that failed so often and never worked fails for a reason of its own. */
const failuresMax = 32;
/** One reward may take so long, as with `generation_timeout` of a run. */
const rewardTimeoutMs = 600_000;

interface OfEnvironment {
  figures: StoredRescoredChunk['environments'][string]['figures'];
  tally: StoredRescoredChunk['environments'][string]['tally'];
  examples: number;
  rolloutsPerExample: number;
  rows: RolloutRow[][];
  readonly parts: ObjectRef[];
}

/** One chunk of a rescore in the hands of one attempt. */
export class RescoredChunk {
  readonly #startedAt = performance.now();
  readonly #input: RescoreChunkInput;
  readonly #rescore: StoredRescore;
  readonly #rubrics: (environment: string) => Promise<OpenedRubric>;
  readonly #source: AsyncIterable<StoredGroup>;
  readonly #store: Store;
  readonly #journal: Part<JournaledGroup>;
  readonly #known: ReadonlyMap<string, JournaledGroup>;
  readonly #meter: JudgeMeter;
  readonly #cancelled: AbortSignal;
  readonly #environments = new Map<string, OfEnvironment>();
  #scores: RescoredGroup[] = [];
  readonly #scoreParts: ObjectRef[] = [];
  #journaledAt = performance.now();
  #worked = 0;
  #failed = 0;
  #firstError: string | null = null;

  private constructor(
    input: RescoreChunkInput,
    rescore: StoredRescore,
    { environments, journal, cancelled }: {
      readonly environments: Environments | undefined;
      readonly journal: Part<JournaledGroup>;
      readonly cancelled: AbortSignal;
    }, // prettier-ignore
  ) {
    this.#input = input;
    this.#rescore = rescore;
    this.#store = storeOf(input.handle.place);
    this.#journal = journal;
    this.#cancelled = cancelled;
    this.#known = new Map(journal.stored.map((group) => [nameOf(group), group]));
    const spent = sumOfUse(journal.stored.filter(({ request }) => request === input.request).map(({ use }) => use));
    this.#meter = new JudgeMeter(input.allowed, spent);
    const { open, rubricOf } = openRubrics(environments, rescore.input, input.handle);
    this.#rubrics = rubricOf;
    this.#source = storedGroups(rescore, input.chunk, open);
  }

  static async open(
    environments: Environments | undefined,
    input: RescoreChunkInput,
    cancelled: AbortSignal,
  ): Promise<RescoredChunk> {
    const { handle, chunk } = input;
    const journal = await Part.open<JournaledGroup>(storeOf(handle.place), rescoreKeys.journal(handle.place, chunk));
    return new RescoredChunk(input, await storedRescore(handle), { environments, journal, cancelled });
  }

  progress(): RescoreProgress {
    const { rollouts, changed, failed } = this.#counts();
    return { rescored: rollouts, changed, failed, judge: this.#meter.use };
  }

  /** Scores what is missing, in order; so many groups are under way at once. */
  async finish(): Promise<ChunkDone> {
    const { handle, chunk } = this.#input;
    const key = rescoreKeys.chunk(handle.place, chunk);
    const done = await this.#store.read(key);
    if (done !== null) return this.#adopted(decodeStored<StoredRescoredChunk>(done, key));
    const underWay: Promise<ScoredAgain | null>[] = [];
    try {
      for await (const group of this.#source) {
        this.#cancelled.throwIfAborted();
        const scoring = this.#score(group);
        scoring.catch(() => undefined); // thrown when its turn comes
        underWay.push(scoring);
        if (underWay.length >= groupsJudgedAtOnce) await this.#take(await underWay.shift()!);
        if (this.#meter.isOver) break;
      }
      for (const scoring of underWay) await this.#take(await scoring);
    } finally {
      if (this.#worked > 0 && !this.#isDone()) await this.#journal.flush().catch(() => undefined); // best effort
    }
    if (this.#meter.isOver) {
      await this.#journal.flush();
      return this.#result(true);
    }
    this.#requireOneThatWorked();
    await this.#write();
    return this.#result(false);
  }

  /** Null: the limit of judges is reached, and this group is left. */
  async #score(group: StoredGroup): Promise<ScoredAgain | null> {
    const known = this.#known.get(nameOf(group));
    const rubric = await this.#rubrics(group.environment);
    const asked = group.rollouts.filter((rollout) => this.#isAsked(rollout, group, rubric));
    if (known !== undefined) return { group, asked, after: withKnown(group, known), use: null };
    if (asked.length === 0) return { group, asked, after: group.rollouts, use: null };
    const meter = new JudgeMeter();
    const members = asked.map((rollout) => group.unscored(rollout));
    const scored = await this.#meter.measure(() => meter.measure(() => this.#scoreWith(rubric, group, members)));
    if (meter.isOver) return null;
    const byIndex = new Map<number, ScoredRollout>();
    for (const rollout of scored) byIndex.set(rollout.index, await group.settle(rollout));
    const after = group.rollouts.map((rollout) => byIndex.get(rollout.index) ?? rollout);
    requireTraces(group, after);
    this.#count(scored);
    return { group, asked, after, use: meter.use };
  }

  async #scoreWith(
    rubric: OpenedRubric,
    group: StoredGroup,
    members: readonly Rollout[],
  ): Promise<readonly ScoredRollout[]> {
    const example = await group.example();
    const options = { timeoutMs: rewardTimeoutMs, dataset: group.dataset, signal: this.#cancelled };
    const together = group.isIndependent ? members.map((one) => [one]) : [members];
    return (await Promise.all(together.map((some) => scoreGroup(rubric, example, some, options)))).flat();
  }

  /** A rubric that compares the rollouts of an example is asked about all of them. */
  #isAsked({ outcome }: ScoredRollout, { rollouts }: StoredGroup, { isComparing }: OpenedRubric): boolean {
    const isFailure = outcome === 'judge_failure';
    if (!this.#rescore.input.failedOnly || isFailure) return isFailure || isRewardedOutcome(outcome);
    const hasFailure = rollouts.some((one) => one.outcome === 'judge_failure');
    return isComparing === true && hasFailure && isRewardedOutcome(outcome);
  }

  #count(scored: readonly ScoredRollout[]): void {
    const failures = scored.filter(({ outcome }) => outcome === 'judge_failure');
    this.#failed += failures.length;
    this.#worked += scored.length - failures.length;
    this.#firstError ??= failures[0]?.error ?? null;
    if (this.#failed >= failuresMax) this.#requireOneThatWorked();
  }

  /** Refuses a rubric that never worked, so that nothing of it is stored; judges that failed before may fail again. */
  #requireOneThatWorked(): void {
    if (this.#worked > 0 || this.#failed === 0 || this.#rescore.input.failedOnly) return;
    throw new RatchetError(
      'ConfigInvalid',
      `Nothing was stored, since scoring by ${this.#input.handle.rubric} failed on each of ${this.#failed} rollouts: ${this.#firstError ?? ''}`,
    );
  }

  async #take(scored: ScoredAgain | null): Promise<void> {
    if (scored === null) return;
    const { group, asked, after, use } = scored;
    const indices = new Set(asked.map(({ index }) => index));
    const rescored = rescoredGroup(group, after);
    if (use !== null) this.#journal.fresh.push({ ...rescored, request: this.#input.request, use });
    this.#scores.push(rescored);
    const own = this.#of(group);
    own.examples += 1;
    own.figures = addFigures(own.figures, figuresOf(rescored.rollouts.map((one) => ({ index: one.index, before: one.before.reward, after: one.reward, isRescored: indices.has(one.index) })), group)); // prettier-ignore
    own.rows.push([...(await group.rows(after, indices))]);
    if (this.#scores.length * own.rolloutsPerExample >= rowsOfPart) await this.#flush();
    else if (performance.now() - this.#journaledAt >= journalEveryMs) await this.#keep();
  }

  async #keep(): Promise<void> {
    this.#journaledAt = performance.now();
    await this.#journal.flush();
    await failpoint('rescore.part');
  }

  /** Stores what was taken so far under names of its content, so that it need not be in memory. */
  async #flush(): Promise<void> {
    const { handle, chunk } = this.#input;
    if (performance.now() - this.#journaledAt >= journalEveryMs) await this.#keep();
    if (this.#scores.length > 0) this.#scoreParts.push(await putScores(this.#store, handle.place, chunk, this.#scores));
    this.#scores = [];
    for (const own of this.#environments.values()) {
      if (own.rows.length === 0) continue;
      own.tally = tallyOf(own.rows, own.rolloutsPerExample, own.tally);
      own.parts.push(await putResultRows(this.#store, handle.place, chunk, own.rows.flat()));
      own.rows = [];
    }
  }

  /** The first one to write it wins: of two attempts, both of which asked a judge, one counts. */
  async #write(): Promise<void> {
    const { handle, chunk } = this.#input;
    await this.#flush();
    const environments = Object.fromEntries(
      [...this.#environments].map(([name, { figures, tally, examples, parts }]) => [
        name,
        { figures, tally, examples, rows: parts },
      ]),
    );
    await failpoint('rescore.chunk');
    const key = rescoreKeys.chunk(handle.place, chunk);
    const stored: StoredRescoredChunk = { environments, scores: this.#scoreParts };
    const { bytes } = await this.#store.putIfAbsent(key, encodeStored(key, stored));
    this.#done = decodeStored<StoredRescoredChunk>(bytes, key);
  }

  #done: StoredRescoredChunk | null = null;

  #isDone(): boolean {
    return this.#done !== null;
  }

  #adopted(stored: StoredRescoredChunk): ChunkDone {
    this.#done = stored;
    return this.#result(false);
  }

  #of({ environment, rolloutsPerExample }: StoredGroup): OfEnvironment {
    const known = this.#environments.get(environment);
    if (known) return known;
    const own: OfEnvironment = { figures: noFigures, tally: emptyTally, examples: 0, rolloutsPerExample, rows: [], parts: [] }; // prettier-ignore
    this.#environments.set(environment, own);
    return own;
  }

  #counts(): { readonly rollouts: number; readonly changed: number; readonly failed: number } {
    const all = this.#done ? Object.values(this.#done.environments) : [...this.#environments.values()];
    const { rollouts, changed, failedAfter } = all.map(({ figures }) => figures).reduce(addFigures, noFigures);
    return { rollouts, changed, failed: failedAfter };
  }

  #result(isOver: boolean): ChunkDone {
    const { chunk } = this.#input;
    const seconds = (performance.now() - this.#startedAt) / 1000;
    return { chunk, ...this.#counts(), use: this.#meter.use, isOver, seconds };
  }
}

/** A group with its rewards after; `use` is null for one that nothing was asked about now. */
interface ScoredAgain {
  readonly group: StoredGroup;
  readonly asked: readonly ScoredRollout[];
  readonly after: readonly ScoredRollout[];
  readonly use: JudgeUse | null;
}
