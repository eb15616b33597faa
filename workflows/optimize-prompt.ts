import {
  ApplicationFailure,
  CancellationScope,
  continueAsNew,
  isCancellation,
  workflowInfo,
  condition,
} from '@temporalio/workflow';
import type { Changed } from '../core/rl/changes.ts';
import { comparedOnTest, compareScores, type SearchPace } from '../core/gepa/leases.ts';
import { askToStop, changeBudget, result, settle, startSearch } from '../core/gepa/search.ts';
import type { SearchAnswer, SearchState, Texts } from '../core/gepa/search-state.ts';
import type {
  HeldOutScores,
  PromptFileInput,
  PromptSearchHandle,
  PromptSearchInput,
  PromptSearchResult,
} from '../core/gepa/prompt-search.ts';
import { readOptimizePromptInput } from './inputs.ts';
import { evaluationParts } from './options.ts';
import { type KnownSearch, SearchControl, type SearchControlState } from './control/search-control.ts';
import { tellingItsEnd } from './beside/child-work.ts';
import { recordingItsCancel } from './beside/recorded.ts';
import { isHistoryFull, isHistoryLong } from './history-length.ts';
import { SearchLeases } from './search-leases.ts';

/** State for continue-as-new: scores and names of texts; the texts and answers are in the store. */
export interface CarriedPromptSearch {
  readonly handle: PromptSearchHandle;
  readonly state: SearchState;
  readonly control: SearchControlState;
  /** ms since the epoch. */
  readonly startedAt: number;
  /** Pace of its rollouts; null: unknown, or they were slow. */
  readonly pace: SearchPace | null;
  readonly notify?: PromptSearchInput['notify'];
}

type GivenSearch = PromptFileInput | PromptSearchInput | CarriedPromptSearch;

/**
 * Looks for a better prompt of an environment (GEPA, `core/gepa`): opens the search, advances it attempt by attempt,
 * compares the winner if requested, closes. Every random number is keyed by the seed and its use, and every answer is
 * stored under its request's id, so whatever is killed, the result is the same and nothing is paid for twice.
 */
export async function optimizePrompt(
  ...inputs: [string | PromptFileInput | PromptSearchInput | CarriedPromptSearch]
): Promise<PromptSearchResult> {
  const given = readOptimizePromptInput(inputs);
  return tellingItsEnd(notified(given), () => recordingItsCancel(ownPlace(given), () => search(given)));
}

async function search(given: GivenSearch): Promise<PromptSearchResult> {
  const carried = 'state' in given ? given : null;
  const control = new SearchControl(namesOf(given), carried?.control ?? null, () => leases.endWhole());
  const startedAt = carried?.startedAt ?? Date.now();
  const seconds = (): number => (Date.now() - startedAt) / 1000;

  const handle = carried?.handle ?? (await open(given as Exclude<typeof given, CarriedPromptSearch>, control));
  let state = carried?.state ?? startSearch(handle.settings, handle.start);
  const writing = new Writing(() => ({ handle, result: result(state), comparison: null, seconds: seconds() }));
  const leases = new SearchLeases(handle, control, { pace: carried?.pace ?? null });
  control.shows(leases);
  control.is('searching', { handle, state });

  try {
    for (;;) {
      state = asAsked(state, control);
      if (result(state).isFinished) break;
      if (isHistoryLong() && leases.isIdle) await goOnAsNew();
      const before = state.candidates.length;
      if (!isHistoryFull()) leases.ask(state, control.state.sequence); // else what is in play ends, and the search continues as new
      control.is('searching', { state });
      await condition(() => leases.hasNews || (!leases.isWhole && isChangeAsked()));
      (await leases.take()).forEach(settled);
      control.is('searching', { state });
      if (state.candidates.length > before && !result(state).isFinished) writing.note(); // else they are written at its end
    }
  } catch (error) {
    if (isCancellation(error)) await CancellationScope.nonCancellable(() => writing.now());
    throw error;
  }
  await writing.done();
  return finish({ handle, state, control, writing, leases, seconds });

  function isChangeAsked(): boolean {
    return control.wantsCalls !== null || (control.wantsStop && !isStopped(state));
  }

  function settled(answers: readonly SearchAnswer[]): void {
    state = settle(state, answers);
    control.settled(state);
  }

  async function goOnAsNew(): Promise<never> {
    await writing.done();
    await condition(() => control.changes.areDone);
    return continueAsNew<typeof optimizePrompt>({
      handle,
      state: asAsked(state, control),
      control: control.state,
      startedAt,
      pace: leases.pace,
      ...notified(given),
    });
  }
}

/** A search that has come to its end. */
interface Ended {
  readonly handle: PromptSearchHandle;
  readonly state: SearchState;
  readonly control: SearchControl;
  readonly writing: Writing;
  readonly leases: SearchLeases;
  readonly seconds: () => number;
}

/** Compares the winner if requested, writes everything, and reports the end. */
async function finish({ handle, state, control, writing, leases, seconds }: Ended): Promise<PromptSearchResult> {
  const found = result(state);
  if (found.stopReason === 'start_not_evaluated') {
    await writing.now();
    throw notEvaluated(handle, control);
  }
  let comparison: HeldOutScores | null = null;
  if (handle.numTest > 0) {
    control.is('comparing');
    comparison = await compare(handle, found.texts, leases);
    control.compared(comparison);
  }
  control.is('closing');
  const { givenUp, failed } = control.state;
  const closing = { handle, result: found, comparison, seconds: seconds(), iterations: state.begun, givenUp, failed };
  const summary = `candidate ${found.best} of ${found.candidates.length}`;
  const closed = await evaluationParts.closePromptSearch.executeWithOptions({ summary }, [closing]);
  control.emit({
    kind: 'finished',
    text: lastLine(closed),
    values: { calls: closed.calls, candidates: closed.candidates },
  });
  control.is('finished');
  await condition(() => control.changes.areDone);
  return closed;
}

/** Null: its run tells who ended it, or it is not known yet. */
function ownPlace(given: GivenSearch): Changed | null {
  if ('notify' in given && given.notify) return null;
  const place = 'handle' in given ? given.handle.place : 'results' in given ? given.results : null;
  return place && { kind: 'search', place };
}

function notified(given: GivenSearch): Pick<CarriedPromptSearch, 'notify'> {
  return 'notify' in given && given.notify ? { notify: given.notify } : {};
}

async function open(
  given: Exclude<GivenSearch, CarriedPromptSearch>,
  control: SearchControl,
): Promise<PromptSearchHandle> {
  const input = 'config' in given ? await plan(given) : given;
  control.knows(namesOf(input));
  const summary = `${namesOf(input).environment} with ${input.model.model}`;
  return evaluationParts.openPromptSearch.executeWithOptions({ summary }, [{ input }]);
}

async function plan(file: PromptFileInput): Promise<PromptSearchInput> {
  const { workflowId, runId } = workflowInfo();
  const asked = { ...file, request: `${workflowId}/${runId}` };
  return (await evaluationParts.planPromptSearch.executeWithOptions({ summary: file.config }, [asked])).input;
}

async function compare(handle: PromptSearchHandle, best: Texts, leases: SearchLeases): Promise<HeldOutScores> {
  const examples = Array.from({ length: handle.numTest }, (_, position) => position);
  const compared = comparedOnTest(handle.start, best);
  const asked = compared.map((one) => ({ ...one, set: 'test' as const, keepsTraces: false, examples }));
  const [before, after = before] = await leases.play(asked, 'rollouts on examples that the search has not seen');
  return compareScores(before!, after!);
}

function isStopped({ stopReason }: SearchState): boolean {
  return stopReason !== null;
}

/** Applies requests by people since the last attempt. */
function asAsked(state: SearchState, control: SearchControl): SearchState {
  let after = state;
  if (control.wantsCalls !== null) after = changeBudget(after, control.wantsCalls);
  if (control.wantsStop) after = askToStop(after);
  control.wantsCalls = null;
  return after;
}

/** Writes the files for people beside the attempts: one write at a time, with the newest state. */
class Writing {
  readonly #what: () => Parameters<typeof evaluationParts.writePrompts>[0];
  #under: Promise<void> | null = null;
  #isDue = false;

  constructor(what: () => Parameters<typeof evaluationParts.writePrompts>[0]) {
    this.#what = what;
  }

  note(): void {
    this.#isDue = true;
    this.#under ??= this.#write().finally(() => (this.#under = null));
    this.#under.catch(() => undefined); // its caller gets the failure
  }

  async done(): Promise<void> {
    await this.#under;
  }

  async now(): Promise<void> {
    await this.#under?.catch(() => undefined);
    await evaluationParts.writePrompts(this.#what());
  }

  async #write(): Promise<void> {
    while (this.#isDue) {
      this.#isDue = false;
      const what = this.#what();
      const summary = `${what.result.candidates.length} candidates`;
      await evaluationParts.writePrompts.executeWithOptions({ summary }, [what]);
    }
  }
}

function namesOf(given: GivenSearch): KnownSearch {
  if ('config' in given) return { environment: given.config, model: '', reflectionModel: '' };
  if ('handle' in given) return given.handle;
  const environment = given.environments.map(({ name }) => name).join('+');
  return { environment, model: given.model.model, reflectionModel: given.reflection.model };
}

function notEvaluated({ environment }: PromptSearchHandle, control: SearchControl): ApplicationFailure {
  const { failed, firstFailure } = control.state;
  return ApplicationFailure.nonRetryable(
    `The first prompt of ${environment} could not be scored on all validation examples: ${failed} rollouts failed through infrastructure. ${firstFailure ?? ''}`.trim(),
    'PromptNotEvaluated',
  );
}

function lastLine({
  best,
  bestScore,
  startScore,
  startCoverage,
  bestCoverage,
  calls,
  maxCalls,
  candidates,
  stopReason,
}: PromptSearchResult): string {
  const fewer = startCoverage < bestCoverage ? ` on ${startCoverage} of its ${bestCoverage} examples` : '';
  const [now, was] = [bestScore, startScore].map((score) => score?.toFixed(3) ?? 'none');
  const found =
    best === 0
      ? `the start is kept, no other prompt scored clearly above it: score ${was} on ${bestCoverage} examples`
      : `best: candidate ${best}, score ${now} (the start: ${was}${fewer})`;
  return `finished: ${found}  calls ${calls} of ${maxCalls}  candidates ${candidates}  (${stopReason})`;
}
