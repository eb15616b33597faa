import type {
  ExampleRef,
  PromptSearchHandle,
  PromptSearchInput,
  StoredPromptSearch,
} from '../core/gepa/prompt-search.ts';
import type { PlayedSlice, PromptSlice } from '../core/gepa/leases.ts';
import { environmentOfPart, partsFor, type PlayedParts } from '../core/gepa/prompt-parts.ts';
import type { ReflectRequest, SearchAnswer } from '../core/gepa/search-state.ts';
import { RatchetError } from '../core/errors.ts';
import type { Rollout, Turn } from '../core/rl/rollout/rollout.ts';
import { tracebackOf } from '../backends/environments/score.ts';
import { environmentsOfSearch } from './environment-users.ts';
import { enterBudgets, type EnteredBudgets } from './budget/budgets-around.ts';
import { generateGroups, type Together } from './generate-groups.ts';
import { askReflection } from './policy/ask-reflection.ts';
import type { AskDependencies } from './policy/asked-model.ts';
import { openModel } from './policy/evaluated-policy.ts';
import { playRollout } from './play-rollout.ts';
import { AnswerJournal } from '../runs/rollouts/answer-journal.ts';
import { forgetSnapshots, type LeasedTo } from './sandboxes/rollout-sandboxes.ts';
import { type Room, slotsOf } from './slots.ts';
import { recordOf } from './reflection-record.ts';
import { scoreExample } from './score-example.ts';
import {
  isScored,
  type PlayedRow,
  type ReflectedRow,
  type ScoredRow,
  storedSearch,
  textName,
  usageOf,
} from '../runs/searches/search-store.ts';

/** Milliseconds after which an unscored rollout is stored without its score: a judge may take long, or fail. */
const scoringGraceMs = 25;

/** Costs of a search's requests in this activity so far. */
interface RequestAccount {
  /** Stored answers that were adopted: rollouts and reflections. */
  adopted: number;
  failed: number;
  firstFailure: string | null;
}

interface SearchAttempt {
  /** Version in place of the one that the search began with. */
  readonly policy?: Extract<PromptSearchInput['model'], { kind: 'version' }>['policy'] | undefined;
  /** Attempt of the activity, from 1. */
  readonly retry: number;
  /** Id of the workflow that it is for; undefined without one. */
  readonly workflow: string | undefined;
}

/**
 * A search while one activity answers its requests. The result of each rollout or reflection is stored under the
 * request's id before it is returned, so repeating a request returns the stored result.
 */
export class OpenedSearch {
  /** Model whose prompt is searched. */
  readonly model: PromptSearchInput['model'];
  readonly account: RequestAccount = { adopted: 0, failed: 0, firstFailure: null };
  readonly #handle: PromptSearchHandle;
  readonly #stored: StoredPromptSearch;
  readonly #journal: AnswerJournal;
  readonly #environments: ReturnType<typeof environmentsOfSearch>;
  readonly #dependencies: AskDependencies;
  readonly #models: readonly Awaited<ReturnType<typeof openModel>>[];
  readonly #room: Room;
  readonly #signal: AbortSignal;
  /** Rollouts only. */
  readonly #cut: AbortController;
  readonly #rollouts: AbortSignal;
  readonly #budgets: EnteredBudgets;
  readonly #attempt: Pick<SearchAttempt, 'retry' | 'workflow'>;

  private constructor(
    dependencies: AskDependencies,
    opened: {
      readonly handle: PromptSearchHandle;
      readonly stored: StoredPromptSearch;
      readonly journal: AnswerJournal;
      readonly signal: AbortSignal;
      readonly cut: AbortController;
      readonly rollouts: AbortSignal;
      readonly budgets: EnteredBudgets;
      readonly attempt: Pick<SearchAttempt, 'retry' | 'workflow'>;
    },
    models: readonly Awaited<ReturnType<typeof openModel>>[],
  ) {
    const { environments } = dependencies;
    const { handle, stored, journal, signal, cut, rollouts, budgets, attempt } = opened;
    this.model = stored.input.model;
    this.#handle = handle;
    this.#stored = stored;
    this.#journal = journal;
    this.#environments = environmentsOfSearch(environments, handle);
    this.#dependencies = dependencies;
    this.#models = models;
    const { maxConcurrent } = stored.input;
    this.#room = slotsOf(
      `search ${handle.place.store}${handle.place.name}`,
      maxConcurrent < 1 ? Infinity : maxConcurrent,
    );
    this.#signal = signal;
    this.#cut = cut;
    this.#rollouts = rollouts;
    this.#budgets = budgets;
    this.#attempt = attempt;
  }

  static async open(
    dependencies: AskDependencies,
    handle: PromptSearchHandle,
    signal: AbortSignal,
    { policy, ...attempt }: SearchAttempt,
  ): Promise<OpenedSearch> {
    const found = await storedSearch(handle);
    const { model } = found.input;
    const isOther = policy !== undefined && model.kind === 'version';
    const stored = isOther ? { ...found, input: { ...found.input, model: { ...model, policy } } } : found;
    const { input } = stored;
    const cut = new AbortController();
    const rollouts = AbortSignal.any([signal, cut.signal]);
    const { results, seed } = input;
    const asking = { kind: 'gepa', name: results.name, model: input.model, seed, signal: rollouts } as const;
    const models = await Promise.all(
      input.environments.map((environment) => openModel(dependencies, { ...asking, environment })),
    );
    const journal = await AnswerJournal.open(handle.place, stored, signal);
    const { budget, prices } = handle.limited ?? input;
    const asked = {
      model: input.model,
      budget,
      prices: prices?.model,
      others: { [input.reflection.model]: prices?.reflection ?? undefined },
    };
    const budgets = await enterBudgets('search', handle.place, asked);
    return new OpenedSearch(dependencies, { handle, stored, journal, signal, cut, rollouts, budgets, attempt }, models);
  }

  /** Gives back what is not used of the budgets around it. */
  leave(): Promise<void> {
    return this.#budgets.leave();
  }

  /** Breaks off rollouts under way: what is missing of them is played later. */
  cutOff(reason: Error): void {
    this.#cut.abort(reason);
  }

  get isCutOff(): boolean {
    return this.#rollouts.aborted;
  }

  /** Plays slices, except rollouts that are stored; each counts as so many metric calls, however they ended. */
  async play(slices: readonly PromptSlice[]): Promise<PlayedSlice[]> {
    const asked = slices.map((slice) => this.#rowsOf(slice));
    const scored = new Map<AskedRow, ScoredRow>();
    for (const row of asked.flat()) if (row.before !== undefined && isScored(row.before)) scored.set(row, row.before);
    this.account.adopted += scored.size;
    const missing = asked.flat().filter((row) => !scored.has(row));
    await generateGroups({
      groups: missing.map((row) => [row]),
      nameOf: ({ slice, index }) => `${slice.id}/${index}`,
      room: this.#room,
      stop: this.#rollouts,
      generate: async (row, together) =>
        void scored.set(row, await this.#score(row, await this.#generate(row, together))),
    });
    this.#rollouts.throwIfAborted();
    return asked.map((rows) => {
      const inOrder = rows.map((row) => scored.get(row)!);
      for (const row of inOrder) this.#count(row);
      return { ...this.#scoresOf(inOrder), refused: refusalOf(inOrder) };
    });
  }

  #rowsOf(slice: PromptSlice): AskedRow[] {
    const { id, texts, set, examples, from } = slice;
    const all = texts === null ? null : this.#journal.texts(texts);
    return examples.map((position, i) => {
      const example = this.#stored[set][position]!;
      const { name } = this.#stored.input.environments[example[0]]!;
      const parts = all === null ? ownParts : partsFor(all, name);
      return { slice, index: from + i, example, parts, before: this.#journal.rowOf(id, from + i) };
    });
  }

  #scoresOf(rows: readonly ScoredRow[]): Pick<PlayedSlice, 'scores' | 'objectives'> {
    const scores = rows.map(({ reward }) => reward);
    if (this.#handle.settings.frontier === 'instance') return { scores };
    return { scores, objectives: rows.map(({ reward, metrics }) => (reward === null ? null : metrics)) };
  }

  /** A new text for one component. If the model refuses, the answer has none; an absent server is thrown. */
  async reflect(request: ReflectRequest): Promise<SearchAnswer> {
    const { id, seed, iteration } = request;
    const { reflection } = this.#stored.input;
    const known = this.#journal.reflectionOf(id);
    if (known !== undefined) this.account.adopted += 1;
    try {
      const { text } = known ?? (await this.#ask(request));
      return { kind: 'text', id, text: text === null ? null : textName(text) };
    } catch (error) {
      if (!(error instanceof RatchetError) || error.isRetryable || error.code === 'CheckpointDamaged') throw error;
      if (error.code === 'BudgetReached') throw error;
      this.#note(`${reflection.model} could not reflect${seed === null ? '' : ` (seed ${seed})`}: ${error.message}`);
      if (error.code === 'InferenceRejected' && iteration === 0) throw error; // it is the request, the key or the model
      return { kind: 'failed', id, paid: 0 };
    }
  }

  async #ask({ id, component, texts, records, seed }: ReflectRequest): Promise<ReflectedRow> {
    const rows = records.map(({ request, index }) => this.#journal.scoredRow(request, index));
    const of = environmentOfPart(component);
    // A component of one environment learns from that environment's examples, unless the request has none.
    const own = rows.filter(({ example }) => of === null || this.#stored.input.environments[example[0]]!.name === of);
    const told = (own.length === 0 ? rows : own).map(({ record = {} }) => record);
    const said = await askReflection(this.#dependencies, this.#stored.input.reflection, {
      component,
      text: this.#journal.text(texts[component]!),
      told,
      seed,
      session: `${this.#handle.place.name}/${id}`,
      signal: this.#signal,
      budgets: this.#budgets,
    });
    const row = { request: id, ...said };
    await this.#journal.add(row);
    return row;
  }

  async #score({ slice, index, before, example, parts }: AskedRow, rollout: Rollout): Promise<ScoredRow> {
    const [at, dataset, exampleId] = example;
    const environment = await this.#environments.open(this.#stored.input.environments[at]!);
    const { systemPrompt } = parts;
    const around = { dataset, exampleId, systemPrompt, signal: this.#rollouts };
    const scoring = scoreExample(environment, [rollout], around);
    const slow = setTimeout(() => {
      if (before === undefined) void this.#journal.add({ request: slice.id, index, rollout }).catch(() => undefined); // its score follows
    }, scoringGraceMs);
    const {
      example: shown,
      scored: [scored],
    } = await scoring.finally(() => clearTimeout(slow));
    const { outcome, reward, metrics, error } = scored!;
    const { stateColumns } = this.#stored.input;
    const row: ScoredRow = {
      request: slice.id,
      index,
      example,
      outcome,
      reward,
      metrics,
      usage: usageOf(rollout),
      ...(error === undefined ? {} : { error }),
      ...(slice.keepsTraces ? { record: recordOf(scored!, shown, stateColumns) } : {}),
    };
    await this.#journal.add(row);
    const entry = this.#stored.input.environments[at]!;
    void forgetSnapshots(entry, { ...this.#leasedTo(), group: slice.id, index });
    return row;
  }

  /** Generates a rollout, unless one waits in the store for its score. */
  async #generate({ slice: { id }, index, example, parts, before }: AskedRow, together: Together): Promise<Rollout> {
    if (before !== undefined && !isScored(before)) return before.rollout;
    const [at, dataset, exampleId] = example;
    const place = { group: index, index: 0, exampleId };
    const recorded = this.#journal.turnsOf(id, index);
    const turns = [...recorded];
    const keepTurns = (): Promise<void> => this.#journal.keepTurns({ request: id, index, turns });
    const notes = await this.#journal.notesOf({ request: id, index, signal: this.#rollouts, before: keepTurns });
    const model = this.#models[at]!({
      session: `${id}/${index}`,
      index: 0,
      exampleId,
      recorded: () => recorded,
      onTurn: (turn: Turn, position: number, onRecord: boolean) => {
        if (turn.call !== undefined) return this.#journal.add({ request: id, index, turns: [turn] });
        return onRecord ? void turns.splice(position, Infinity, turn) : undefined;
      },
    });
    try {
      return await playRollout({
        environments: this.#environments,
        entry: this.#stored.input.environments[at]!,
        dataset,
        place,
        notes: notes.of(place),
        leasedTo: { ...this.#leasedTo(), group: id, index },
        recorded: () => recorded,
        together,
        budgets: this.#budgets,
        attemptsMax: 1, // the search itself asks again, and counts it
        ...parts,
        signal: this.#rollouts,
        ...model,
      });
    } catch (error) {
      // The next attempt continues from there.
      if (this.#rollouts.aborted) await keepTurns();
      throw error;
    }
  }

  #leasedTo(): Pick<LeasedTo, 'store' | 'run' | 'workflow' | 'lineage' | 'attempt'> {
    const { store, name, prefix } = this.#stored.input.results;
    const { workflow, retry } = this.#attempt;
    return { store, run: name, workflow, lineage: `search ${prefix}`, attempt: retry };
  }

  #count({ outcome, reward, error }: ScoredRow): void {
    if (reward !== null) return;
    this.account.failed += 1;
    this.#note(`${outcome}: ${error ?? 'no reason was given'}`);
  }

  #note(failure: string): void {
    this.account.firstFailure ??= tracebackOf(failure).split('\n')[0]!.slice(0, 300);
  }
}

/** Nothing in place of what an environment has itself. */
const ownParts: PlayedParts = { systemPrompt: undefined, toolDescriptions: undefined };

interface AskedRow {
  readonly slice: PromptSlice;
  readonly index: number;
  readonly example: ExampleRef;
  readonly parts: PlayedParts;
  /** Stored part from an earlier attempt. */
  readonly before: ScoredRow | PlayedRow | undefined;
}

/** Waits for all work, so that nothing finished is lost, then throws the first failure. */
export async function allOrFirstFailure<T>(work: readonly Promise<T>[]): Promise<T[]> {
  const ended = await Promise.allSettled(work);
  const failed = ended.find((one) => one.status === 'rejected');
  if (failed !== undefined) throw failed.reason;
  return ended.map((one) => (one as PromiseFulfilledResult<T>).value);
}

/** Message of a model's server that rejected all of the very first prompts: such a server rejects any prompt. */
function refusalOf(rows: readonly ScoredRow[]): string | null {
  if (!rows.every(({ outcome }) => outcome === 'rejected')) return null;
  const said = (rows[0]?.error ?? '').split('\n')[0]!.replace(/^(?:Error|InferenceRejected): /, '');
  return `The model's server refuses every request: ${said}`;
}
