import { existsSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import type { WorkflowHandle } from '@temporalio/client';
import { inPlayText } from '../../core/gepa/figures.ts';
import type { SearchProgress } from '../../play/followed-search.ts';
import type {
  PromptSearchEvent,
  PromptSearchResult,
  PromptSearchStatus,
  SearchFigures,
  SearchInPlay,
} from '../../core/gepa/prompt-search.ts';
import type { optimizePrompt } from '../../workflows/optimize-prompt.ts';
import { pendingActivities } from '../temporal/pending-work.ts';
import { onOneLine } from '../output/plain-text.ts';
import type { Reporter } from '../output/reporter.ts';
import { type WatchOptions, watchWorkflow } from '../temporal/watch-workflow.ts';
import type { PlannedPromptSearch } from '../../load/searches/load-prompt-search.ts';
import type { GepaRunOptions } from './run-options.ts';
import { describeSearch } from './show.ts';
import { howToUse } from './use-prompt.ts';
import { readSearchFolder } from './search-folder.ts';

/** One line of `ratchet gepa run --json` between its first and its last. */
export type PromptSearchLine =
  | ({ readonly type: 'progress'; readonly time: string } & SearchFigures)
  | ({ readonly type: 'event' } & PromptSearchEvent)
  | ({ readonly type: 'result'; readonly time: string } & PromptSearchResult);

type PromptSearchReporter = Reporter<PromptSearchLine>;

const pollMs = 1_000;
const queryTimeoutMs = 4_000;
/** Silence after which progress and the wait are printed. */
const silenceMs = 10_000;

type Handle = WorkflowHandle<typeof optimizePrompt>;

/** Reports on a search until it ends or the user leaves, then on its result; returns the exit code. */
export function watchSearch(
  handle: Handle,
  options: WatchOptions<PromptSearchLine> & {
    readonly planned: PlannedPromptSearch;
    readonly typed: GepaRunOptions;
  },
): Promise<number> {
  const { reporter, planned, typed } = options;
  const ids = planned.spec.environments.map(({ id }) => id);
  const follower = new Follower(handle, reporter);
  return watchWorkflow(handle, options, {
    noun: 'search',
    toEnd: `npx ratchet-rl gepa stop ${handle.workflowId}`,
    follow: (signal) => follower.follow(signal),
    async tellResult(result) {
      await follower.look();
      reporter.emit({ type: 'result', time: now(), ...result });
      await sayResult(result, reporter);
      for (const line of howToUse(result, planned.input, { ids, options: typed })) reporter.say(line);
      return 0;
    },
  });
}

/** A search as it stood at one moment. */
interface SearchSnapshot {
  readonly figures: SearchFigures | null;
  readonly failed: number;
  readonly inPlay: SearchInPlay | null;
  readonly doing: string;
  readonly events: readonly PromptSearchEvent[];
  /** Retried activities, with their failures. */
  readonly troubles: readonly string[];
}

class Follower {
  readonly #handle: Handle;
  readonly #reporter: PromptSearchReporter;
  #seen = 0;
  #toldAt = Date.now();
  #calls = -1;

  constructor(handle: Handle, reporter: PromptSearchReporter) {
    this.#handle = handle;
    this.#reporter = reporter;
  }

  async follow(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      await this.look();
      await delay(pollMs, undefined, { signal }).catch(() => undefined); // ended: the loop ends
    }
  }

  async look(): Promise<void> {
    const seen = await lookAt(this.#handle, this.#seen);
    if (seen === null) return;
    for (const event of seen.events) {
      if (event.sequence <= this.#seen) continue;
      this.#seen = event.sequence;
      this.#reporter.say(onOneLine(event.kind === 'warning' ? `warning: ${event.text}` : event.text));
      this.#reporter.emit({ type: 'event', ...event });
      this.#toldAt = Date.now();
    }
    const { figures } = seen;
    if (figures !== null && figures.calls !== this.#calls) {
      this.#calls = figures.calls;
      this.#reporter.emit({ type: 'progress', time: now(), ...figures });
    }
    if (Date.now() - this.#toldAt < silenceMs) return;
    this.#toldAt = Date.now();
    this.#reporter.say(progressLine(seen));
  }
}

/** An attempt knows more than its workflow: the events since it began. null while no worker answers. */
async function lookAt(handle: Handle, after: number): Promise<SearchSnapshot | null> {
  const asked = async () => ({
    status: await handle.query<PromptSearchStatus>('status'),
    // asked after the status, so that no event that it counts is missing
    events: await handle.query<readonly PromptSearchEvent[], [number]>('events', after),
  });
  const answer = await handle.client.withDeadline(Date.now() + queryTimeoutMs, asked).catch(() => null);
  if (answer === null) return null;
  const { status, events } = answer;
  const pending = (await pendingActivities(handle, queryTimeoutMs)) ?? [];
  const attempt = pending.map(({ said }) => said).find(isSearchProgress);
  const last = events.at(-1)?.sequence ?? after;
  return {
    figures: attempt?.figures ?? status,
    failed: status.failed + (attempt?.failed ?? 0),
    inPlay: attempt === undefined ? (status.inPlay ?? null) : null,
    doing: status.doing,
    events: [...events, ...(attempt === undefined ? [] : toldByAttempt(attempt, status.told, last))],
    troubles: pending.flatMap(({ name, attempt, lastFailure }) =>
      lastFailure === null ? [] : [`${name}, attempt ${attempt}: ${onOneLine(lastFailure)}`],
    ),
  };
}

/**
 * Events of the attempt, numbered as the workflow will number them. An attempt that ended between the two queries has
 * reported its events already.
 */
function toldByAttempt({ told, begunAt }: SearchProgress, known: number, last: number): PromptSearchEvent[] {
  if (begunAt !== known) return [];
  return told
    .map(({ number, ...event }) => ({ ...event, sequence: begunAt + number, time: now() }))
    .filter(({ sequence }) => sequence > last);
}

function isSearchProgress(said: unknown): said is SearchProgress {
  return typeof said === 'object' && said !== null && 'figures' in said;
}

/** Progress in one line. */
function progressLine({ figures, failed, inPlay, doing, troubles }: SearchSnapshot): string {
  if (figures === null || figures.maxCalls === 0) return troubles[0] ?? doing;
  const { calls, maxCalls, candidates, best, bestScore, front, reflections, waitingOn } = figures;
  const score = bestScore === null ? '' : `  best ${bestScore.toFixed(3)} (candidate ${best})`;
  const waits = troubles.length > 0 ? troubles : waitingOn;
  return [
    `calls ${calls} of ${maxCalls}${score}  candidates ${candidates}, ${front.length} in front  reflections ${reflections}`,
    ...(failed === 0 ? [] : [`${failed} rollouts failed`]),
    ...(inPlay === null || inPlay.leases === 0 ? [] : [`in play ${inPlayText(inPlay)}`]),
    ...(waits.length === 0 ? [] : [`waits for ${waits.join(', ')}`]),
  ].join('  ');
}

/** Prints the same as `ratchet gepa show` when the folder can be read here. */
async function sayResult(result: PromptSearchResult, { say, print }: PromptSearchReporter): Promise<void> {
  const { folder, failed, givenUp } = result;
  if (existsSync(folder)) {
    const found = await readSearchFolder(folder);
    if (found !== null) print(describeSearch(found));
  }
  if (failed > 0)
    say(`${failed} rollouts failed through infrastructure, ${givenUp} iterations were abandoned because of it`);
  say(`results  ${folder}`);
}

function now(): string {
  return new Date().toISOString();
}
