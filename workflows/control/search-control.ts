import { present } from '../../core/present.ts';
import { defineQuery, defineUpdate, setCurrentDetails, setHandler } from '@temporalio/workflow';
import { plainMarkdown } from '../../core/markdown.ts';
import { inPlayText, searchFigures, tellings } from '../../core/gepa/figures.ts';
import type {
  HeldOutScores,
  PromptSearchEvent,
  PromptSearchHandle,
  PromptSearchStatus,
  SearchFigures,
  SearchInPlay,
} from '../../core/gepa/prompt-search.ts';
import type { EvaluateRequest, SearchState } from '../../core/gepa/search-state.ts';
import { eventsKept } from '../../core/limits.ts';
import { opening } from '../options.ts';
import { AskedChanges } from './asked-changes.ts';
import { onEventsQuery } from './listen.ts';

const searchStatusQuery = defineQuery<PromptSearchStatus>('status');
/** Those after a sequence number, oldest first. */
const searchEventsQuery = defineQuery<readonly PromptSearchEvent[], [after: number]>('events');

/** Ends the search: work under way is finished, and the best candidate is validated. */
const stopSearchUpdate = defineUpdate<string>('stop');
/** Gives the search more calls, from its next attempt on. */
const raiseBudgetUpdate = defineUpdate<string, [maxCalls: number]>('raise-budget');

/** Carried by continue-as-new. */
export interface SearchControlState {
  readonly events: readonly PromptSearchEvent[];
  readonly sequence: number;
  readonly givenUp: number;
  readonly failed: number;
  readonly firstFailure: string | null;
}

/** Names of a search before it is opened. */
export interface KnownSearch {
  readonly environment: string;
  readonly model: string;
  readonly reflectionModel: string;
}

/** Leases of a search, as far as the control shows them. */
interface KnownLeases {
  readonly inPlay: SearchInPlay;
  leftOf(request: EvaluateRequest): number;
}

/** A search's interface to people: answers queries, and takes requests. */
export class SearchControl {
  /** Requested and not done yet. */
  wantsStop = false;
  wantsCalls: number | null = null;
  #doing: PromptSearchStatus['doing'] = 'opening';
  #known: KnownSearch;
  #handle: PromptSearchHandle | null = null;
  #state: SearchState | null = null;
  #told: SearchControlState;
  #leases: KnownLeases | null = null;
  readonly #onStop: () => void;
  readonly changes = new AskedChanges({
    record: (change) =>
      opening.recordChange.executeWithOptions({ summary: change.what }, [
        { ...change, of: { kind: 'search', place: this.#handle!.place } }, // an update is accepted once it is open
      ]),
    emit: (kind, text) => (kind === 'warning' ? this.emit({ kind, text }) : undefined),
  });

  constructor(known: KnownSearch, told: SearchControlState | null, onStop: () => void) {
    this.#known = known;
    this.#told = told ?? { events: [], sequence: 0, givenUp: 0, failed: 0, firstFailure: null };
    this.#onStop = onStop;
    setHandler(searchStatusQuery, () => this.status());
    onEventsQuery(searchEventsQuery, (after) => this.#told.events.filter(({ sequence }) => sequence > after));
    this.changes.on(
      stopSearchUpdate,
      () => this.#stop(),
      () => this.#requireUnderWay(),
    );
    this.changes.on(
      raiseBudgetUpdate,
      (maxCalls) => this.#raise(maxCalls),
      (maxCalls) => this.#requireMore(maxCalls),
    );
    this.#show();
  }

  get state(): SearchControlState {
    return this.#told;
  }

  is(doing: PromptSearchStatus['doing'], of: { handle?: PromptSearchHandle; state?: SearchState } = {}): void {
    this.#doing = doing;
    this.#handle = of.handle ?? this.#handle;
    this.#state = of.state ?? this.#state;
    this.#show();
  }

  /** Sets the leases that queries report. */
  shows(leases: KnownLeases): void {
    this.#leases = leases;
  }

  knows(known: KnownSearch): void {
    this.#known = known;
  }

  /** Emits events for a batch of answers. */
  settled(state: SearchState): void {
    this.#state = state;
    for (const telling of tellings(state.events, state)) {
      if (telling.kind === 'given-up') this.#told = { ...this.#told, givenUp: this.#told.givenUp + 1 };
      this.emit(telling);
    }
  }

  failedRollouts({ failed, firstFailure }: Pick<SearchControlState, 'failed' | 'firstFailure'>): void {
    if (failed === 0 && firstFailure === null) return;
    const known = this.#told;
    this.#told = { ...known, failed: known.failed + failed, firstFailure: known.firstFailure ?? firstFailure };
    if (known.firstFailure === null && firstFailure !== null)
      this.emit({ kind: 'warning', text: `infrastructure: ${firstFailure}`, values: { failed } });
  }

  emit({ kind, text, values = {} }: Pick<PromptSearchEvent, 'kind' | 'text'> & Partial<PromptSearchEvent>): void {
    const sequence = this.#told.sequence + 1;
    const event: PromptSearchEvent = { sequence, time: new Date().toISOString(), kind, text, values };
    this.#told = { ...this.#told, sequence, events: [...this.#told.events, event].slice(-eventsKept) };
  }

  compared({ before, after, examples }: HeldOutScores): void {
    const [was, is] = [before, after].map((score) => (score === null ? 'none' : score.toFixed(3)));
    const text = `on ${examples} examples that the search has not seen: first prompt ${was}, best prompt ${is}`;
    this.emit({
      kind: 'compared',
      text,
      values: { examples, ...present({ before: before ?? undefined, after: after ?? undefined }) },
    });
  }

  status(): PromptSearchStatus {
    const { givenUp, failed, firstFailure, sequence: told } = this.#told;
    const leases = this.#leases;
    const leftOf = leases === null ? undefined : (request: EvaluateRequest) => leases.leftOf(request);
    const figures = this.#state === null ? nothingYet : searchFigures(this.#state, leftOf);
    const names = this.#handle ?? this.#known;
    return {
      ...figures,
      environment: names.environment,
      model: names.model,
      reflectionModel: names.reflectionModel,
      doing: this.#doing,
      folder: this.#handle?.folder ?? '',
      warnings: this.#handle?.warnings ?? [],
      givenUp,
      failed,
      firstFailure,
      told,
      ...present({ inPlay: leases?.inPlay }),
    };
  }

  #show(): void {
    setCurrentDetails(describePromptSearch(this.status(), this.#told.events));
  }

  #stop(): string {
    this.wantsStop = true;
    this.emit({ kind: 'stopping', text: 'stopping: what is under way is finished, and the best is validated' });
    this.#onStop();
    return 'The search ends: what is under way is finished, and the best prompt is validated.';
  }

  #raise(maxCalls: number): string {
    this.wantsCalls = maxCalls;
    this.emit({ kind: 'set', text: `budget raised to ${maxCalls} calls`, values: { max_calls: maxCalls } });
    return `The search may make ${maxCalls} calls.`;
  }

  #requireUnderWay(): void {
    if (this.#doing !== 'searching') throw new Error(`The search is ${this.#doing}: there is nothing to stop.`);
  }

  #requireMore(maxCalls: number): void {
    if (this.#doing !== 'searching') throw new Error(`The search is ${this.#doing}: its budget is settled.`);
    const now = this.wantsCalls ?? this.#state?.settings.maxCalls ?? 0;
    if (Number.isInteger(maxCalls) && maxCalls > now) return;
    throw new Error(`A budget can only be raised: expected a whole number above ${now}, received ${maxCalls}.`);
  }
}

const nothingYet: SearchFigures = {
  phase: 'start',
  calls: 0,
  maxCalls: 0,
  reflections: 0,
  iterations: 0,
  candidates: 0,
  best: 0,
  bestScore: null,
  bestCoverage: 0,
  startScore: null,
  startCoverage: 0,
  front: [],
  stopReason: null,
  waitingOn: [],
};

/** State of a search for the Temporal UI, as markdown. */
function describePromptSearch(status: PromptSearchStatus, events: readonly PromptSearchEvent[]): string {
  const { environment, model, reflectionModel, doing, calls, maxCalls, candidates, best, bestScore, startScore } =
    status;
  const score = bestScore === null ? '' : `, score ${bestScore.toFixed(3)} on ${status.bestCoverage}`;
  const { startCoverage, bestCoverage } = status;
  const fewer = startCoverage < bestCoverage ? ` on ${startCoverage} of them` : '';
  const from = startScore === null ? '' : ` (the start: ${startScore.toFixed(3)}${fewer})`;
  return [
    `### ${plainMarkdown(`${environment} with ${model}, reflected on by ${reflectionModel}`)}: ${doing}`,
    ...(maxCalls === 0
      ? []
      : [`- calls ${calls} of ${maxCalls} · reflections ${status.reflections} · iterations ${status.iterations}`]),
    ...(candidates === 0 ? [] : [`- candidates ${candidates} · best: ${best}${score}${from}`]),
    ...(status.front.length === 0 ? [] : [`- front: ${status.front.join(', ')}`]),
    ...(status.failed === 0
      ? []
      : [
          `- ${status.failed} rollouts failed through infrastructure, ${status.givenUp} iterations abandoned: ${plainMarkdown(status.firstFailure ?? '')}`,
        ]),
    ...inPlayLines(status),
    ...status.waitingOn.map((what) => `- waits for ${plainMarkdown(what)}`),
    ...status.warnings.map((line) => `- ${plainMarkdown(line)}`),
    ...(status.folder === '' ? [] : [`- results in \`${status.folder}\``]),
    ...events.slice(-5).map(({ text }) => `- ${plainMarkdown(text)}`),
  ].join('\n');
}

function inPlayLines({ inPlay }: PromptSearchStatus): string[] {
  return inPlay === undefined || inPlay.leases === 0 ? [] : [`- in play: ${inPlayText(inPlay)}`];
}
