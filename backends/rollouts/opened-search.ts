import PQueue from 'p-queue';
import type {
  ExampleRef,
  PromptSearchHandle,
  PromptSearchInput,
  StoredPromptSearch,
} from '../../core/gepa/prompt-search.ts';
import type { PlayedSlice, PromptSlice } from '../../core/gepa/leases.ts';
import { environmentOfPart, partsFor, type PlayedParts } from '../../core/gepa/prompt-parts.ts';
import { extractText, reflectionTemplateFor, renderReflection } from '../../core/gepa/reflection-prompt.ts';
import type { EvaluateRequest, ReflectRequest, SearchAnswer, Texts } from '../../core/gepa/search-state.ts';
import { RatchetError } from '../../core/errors.ts';
import { inferenceTimeoutDefaultS } from '../../core/limits.ts';
import type { Rollout, Turn } from '../../core/rl/rollout.ts';
import type { PolicyVersion } from '../../core/rl/run-state.ts';
import { withSystemPrompt } from '../../core/rl/system-prompt.ts';
import type { Environments } from '../environments/index.ts';
import { scoreGroup } from '../environments/score-group.ts';
import { tracebackOf } from '../environments/score.ts';
import { environmentsOfSearch } from './environment-users.ts';
import { sharedEndpoint } from '../inference/index.ts';
import type { AskDependencies } from './asked-model.ts';
import { playRollout } from './play-rollout.ts';
import { AnswerJournal } from '../../runs/answer-journal.ts';
import { enterWorker, openPromptPlayer, type PromptPlayer, whenThereIsRoom } from './prompt-player.ts';
import { recordOf } from './reflection-record.ts';
import {
  isScored,
  type PlayedRow,
  type ReflectedRow,
  type ScoredRow,
  storedSearch,
  textName,
  usageOf,
} from '../../runs/search-store.ts';

/** A rollout that is not scored after so long is stored without its score meanwhile: a judge may take its time, or fail. */
const scoringGraceMs = 25;

/** What requests of a search cost by now, in this activity. */
interface RequestAccount {
  /** Answers, rollouts and reflections, that lay in the store. */
  adopted: number;
  failed: number;
  firstFailure: string | null;
}

/**
 * A search in the hands of one activity: it answers requests. Whatever comes of a rollout or a reflection lies in the store, under the
 * request's own id, before its answer is given; asked once more, what lies there is the answer.
 */
export class OpenedSearch {
  /** Whose prompt is searched. */
  readonly model: PromptSearchInput['model'];
  readonly account: RequestAccount = { adopted: 0, failed: 0, firstFailure: null };
  readonly #handle: PromptSearchHandle;
  readonly #stored: StoredPromptSearch;
  readonly #journal: AnswerJournal;
  readonly #environments: Environments;
  readonly #endpoint: NonNullable<AskDependencies['endpoint']>;
  readonly #players: readonly PromptPlayer[];
  readonly #queue: PQueue;
  readonly #signal: AbortSignal;
  readonly #attempt = crypto.randomUUID();

  private constructor(
    dependencies: AskDependencies,
    opened: {
      readonly handle: PromptSearchHandle;
      readonly stored: StoredPromptSearch;
      readonly journal: AnswerJournal;
      readonly signal: AbortSignal;
    },
    players: readonly PromptPlayer[],
  ) {
    const { environments, endpoint = sharedEndpoint } = dependencies;
    const { handle, stored, journal, signal } = opened;
    this.model = stored.input.model;
    this.#handle = handle;
    this.#stored = stored;
    this.#journal = journal;
    this.#environments = environmentsOfSearch(environments, handle);
    this.#endpoint = endpoint;
    this.#players = players;
    this.#queue = queueOf(`${handle.place.store}${handle.place.name}`, stored.input.maxConcurrent);
    this.#signal = signal;
  }

  static async open(
    dependencies: AskDependencies,
    handle: PromptSearchHandle,
    signal: AbortSignal,
    /** In place of the one that the search was begun with. */
    policy?: PolicyVersion,
  ): Promise<OpenedSearch> {
    const found = await storedSearch(handle);
    const { model } = found.input;
    const isOther = policy !== undefined && model.kind === 'version';
    const stored = isOther ? { ...found, input: { ...found.input, model: { ...model, policy } } } : found;
    const { input } = stored;
    const players = await Promise.all(
      input.environments.map((environment) => openPromptPlayer(dependencies, { input, environment, signal })),
    );
    const journal = await AnswerJournal.open(handle.place, stored, signal);
    return new OpenedSearch(dependencies, { handle, stored, journal, signal }, players);
  }

  /** Scores of a request, in the order of its examples. Each was a metric call, however it ended. */
  async evaluate({ id, texts, set, examples, keepsTraces, purpose }: EvaluateRequest): Promise<SearchAnswer> {
    const refs = examples.map((position) => this.#stored[set][position]!);
    const rows = await this.score({ id, texts, examples: refs, keepsTraces });
    const refused = purpose === 'start' ? refusalOf(rows) : null;
    if (refused !== null) throw new RatchetError('InferenceRejected', refused);
    return { kind: 'scores', id, ...this.#scoresOf(rows), paid: rows.length };
  }

  /** Plays a lease: some examples of a request. What lies in the store of it is not played again. */
  async play({ id, texts, set, from, examples, keepsTraces }: PromptSlice): Promise<PlayedSlice> {
    const refs = examples.map((position) => this.#stored[set][position]!);
    const startedAt = performance.now();
    const worker = enterWorker(examples.length);
    try {
      const playing = this.score({ id, texts, examples: refs, keepsTraces, from });
      const beside = worker.beside();
      const rows = await playing;
      const { adopted, failed, firstFailure } = this.account;
      const seconds = (performance.now() - startedAt) / 1000;
      const pace = adopted === rows.length ? null : { seconds, beside };
      return { ...this.#scoresOf(rows), adopted, failed, firstFailure, refused: refusalOf(rows), pace };
    } finally {
      worker.leave();
    }
  }

  #scoresOf(rows: readonly ScoredRow[]): Pick<PlayedSlice, 'scores' | 'objectives'> {
    const scores = rows.map(({ reward }) => reward);
    if (this.#handle.settings.frontier === 'instance') return { scores };
    return { scores, objectives: rows.map(({ reward, metrics }) => (reward === null ? null : metrics)) };
  }

  /** Plays and scores examples under some texts. `id` names what is asked: asked once more, what lies in the store is not played again. */
  async score(asked: Asked): Promise<readonly ScoredRow[]> {
    const { id, texts, examples, from = 0 } = asked;
    const all = texts === null ? null : this.#journal.texts(texts);
    const parts = this.#stored.input.environments.map(({ name }) => (all === null ? ownParts : partsFor(all, name)));
    const scored = await allOrFirstFailure(
      examples.map(async (example, i): Promise<ScoredRow> => {
        const index = from + i;
        const before = this.#journal.rowOf(id, index);
        if (before === undefined || !isScored(before))
          return this.#queue.add(() => this.#row({ asked, index, example, parts: parts[example[0]]!, before }));
        this.account.adopted += 1;
        return before;
      }),
    );
    for (const row of scored) this.#count(row);
    return scored;
  }

  /** A new text for one component. What the model refuses is an answer without one; a server that is away is thrown. */
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
      this.#note(`${reflection.model} could not reflect${seed === null ? '' : ` (seed ${seed})`}: ${error.message}`);
      if (error.code === 'InferenceRejected' && iteration === 0) throw error; // it is the request, the key or the model
      return { kind: 'failed', id, paid: 0 };
    }
  }

  async #ask({ id, component, texts, records, seed }: ReflectRequest): Promise<ReflectedRow> {
    const { servers, fields } = this.#stored.input.reflection;
    const rows = records.map(({ request, index }) => this.#journal.scoredRow(request, index));
    const of = environmentOfPart(component);
    // Of a part of one environment its own examples tell something, unless there are none among these.
    const own = rows.filter(({ example }) => of === null || this.#stored.input.environments[example[0]]!.name === of);
    const told = (own.length === 0 ? rows : own).map(({ record = {} }) => record);
    const template = reflectionTemplateFor(component);
    const content = renderReflection(template, this.#journal.text(texts[component]!), told);
    const said = await this.#endpoint(servers).chat({
      messages: [{ role: 'user', content }],
      fields: { ...fields, ...(seed === null ? {} : { seed }) },
      signal: this.#signal,
      session: `${this.#handle.place.name}/${id}`,
    });
    const text = extractText(said.text);
    const row = { request: id, answer: said.text, text: text === '' ? null : text, usage: said.usage };
    await this.#journal.add(row);
    return row;
  }

  /** Plays and scores one example, or scores what was played. */
  async #row(of: AskedRow): Promise<ScoredRow> {
    const { index, before, example } = of;
    const [at, dataset, exampleId] = example;
    const rollout = before !== undefined ? before.rollout : await this.#play(of);
    const environment = await this.#environments.open(this.#stored.input.environments[at]!);
    const shown = withSystemPrompt(environment[dataset].at(exampleId), of.parts.systemPrompt);
    const isStoredAlready = before !== undefined;
    const around = { timeoutMs: inferenceTimeoutDefaultS * 1000, dataset, signal: this.#signal } as const;
    const scoring = scoreGroup(environment, shown, [rollout], around);
    const slow = setTimeout(() => {
      if (!isStoredAlready) void this.#journal.add({ request: of.asked.id, index, rollout }).catch(() => undefined); // its score follows
    }, scoringGraceMs);
    const [scored] = await scoring.finally(() => clearTimeout(slow));
    const { outcome, reward, metrics, error } = scored!;
    const { stateColumns } = this.#stored.input;
    const row: ScoredRow = {
      request: of.asked.id,
      index,
      example,
      outcome,
      reward,
      metrics,
      usage: usageOf(rollout),
      ...(error === undefined ? {} : { error }),
      ...(of.asked.keepsTraces ? { record: recordOf(scored!, shown, stateColumns) } : {}),
    };
    await this.#journal.add(row);
    return row;
  }

  async #play({ asked, index, example, parts }: AskedRow): Promise<Rollout> {
    const [at, dataset, exampleId] = example;
    const place = { group: index, index: 0, exampleId };
    const entry = this.#stored.input.environments[at]!;
    const recorded = this.#journal.turnsOf(asked.id, index);
    const turns = [...recorded];
    const record = { recorded, onTurn: (turn: Turn, position: number) => void turns.splice(position, Infinity, turn) };
    try {
      return await whenThereIsRoom(this.#signal, () =>
        playRollout({
          environments: this.#environments,
          entry,
          dataset,
          place,
          together: { group: `${this.#attempt}/${asked.id}/${index}`, size: 1 },
          attemptsMax: 1, // the search itself asks again, and counts it
          ...parts,
          signal: this.#signal,
          ...this.#players[at]!(place, `${asked.id}/${index}`, record),
        }),
      );
    } catch (error) {
      // Whoever plays it next goes on from there.
      if (this.#signal.aborted && turns.length > recorded.length) {
        await this.#journal.add({ request: asked.id, index, turns });
      }
      throw error;
    }
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

/** The one queue of a search in this process, whoever answers for it; `atOnce` 0 = no limit. */
function queueOf(search: string, atOnce: number): PQueue {
  const key = `${search}#${atOnce}`;
  const queue = queues.get(key)?.deref() ?? new PQueue({ concurrency: atOnce < 1 ? Infinity : atOnce });
  queues.set(key, new WeakRef(queue));
  return queue;
}

const queues = new Map<string, WeakRef<PQueue>>();

/** Nothing in place of what an environment has itself. */
const ownParts: PlayedParts = { systemPrompt: undefined, toolDescriptions: undefined };

/** Examples that are to be scored under some texts. */
interface Asked {
  readonly id: string;
  /** null: each example's own system prompt. */
  readonly texts: Texts | null;
  readonly examples: readonly ExampleRef[];
  /** Index in the request of the first of them. */
  readonly from?: number;
  /** Whether a reflection may ask for what was said. */
  readonly keepsTraces: boolean;
}

interface AskedRow {
  readonly asked: Asked;
  readonly index: number;
  readonly example: ExampleRef;
  readonly parts: PlayedParts;
  /** What an earlier attempt had of it. */
  readonly before: PlayedRow | undefined;
}

/** What goes on is waited for, so that nothing of it is lost; then the first failure is thrown. */
export async function allOrFirstFailure<T>(work: readonly Promise<T>[]): Promise<T[]> {
  const ended = await Promise.allSettled(work);
  const failed = ended.find((one) => one.status === 'rejected');
  if (failed !== undefined) throw failed.reason;
  return ended.map((one) => (one as PromiseFulfilledResult<T>).value);
}

/** What a model's server said that refused all of them; the very first prompts: then it refuses any. */
function refusalOf(rows: readonly ScoredRow[]): string | null {
  if (!rows.every(({ outcome }) => outcome === 'rejected')) return null;
  const said = (rows[0]?.error ?? '').split('\n')[0]!.replace(/^(?:Error|InferenceRejected): /, '');
  return `The model's server refuses every request: ${said}`;
}
