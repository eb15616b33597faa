import { next, settle, startSearch } from '../../../core/gepa/search.ts';
import type {
  SearchAnswer,
  SearchEvent,
  SearchRequest,
  SearchSettings,
  SearchState,
  Texts,
} from '../../../core/gepa/search-state.ts';
import { uniform } from '../../../core/random.ts';

/** A toy model: a component's text is a row of letters; the more different ones, the more examples score. */
export interface Toy {
  readonly settings: SearchSettings;
  readonly start: Texts;
  /** How often an example's score, or a text, does not come. */
  readonly failing: number;
  /** How often a call that brought no score was paid for. */
  readonly paidInVain: number;
}

export interface Played {
  readonly state: SearchState;
  readonly events: readonly SearchEvent[];
  readonly asked: readonly SearchRequest[];
  readonly paid: number;
}

export function scoreOf(texts: Texts, set: string, example: number): number {
  const letters = new Set(Object.values(texts).join(''));
  const share = letters.size / 8;
  return uniform('toy', set, example) < share
    ? 1
    : uniform('toy', set, example, [...letters].sort().join('')) < 0.2
      ? 0.5
      : 0;
}

/** A request has the same answer whenever it is given. */
export function answerOf({ failing, paidInVain }: Toy, request: SearchRequest): SearchAnswer {
  const { id } = request;
  if (request.kind === 'reflect') {
    if (uniform('fails', id) < failing) return { kind: 'failed', id, paid: 0 };
    const drawn = uniform(
      'text',
      id,
      request.texts[request.component]!,
      request.records.map(({ score }) => score).join(),
    );
    if (drawn < 0.1) return { kind: 'text', id, text: null };
    const letter = String.fromCharCode(97 + Math.floor(drawn * 6));
    return {
      kind: 'text',
      id,
      text: drawn < 0.2 ? request.texts[request.component]! : request.texts[request.component]! + letter,
    };
  }
  const { set, examples, texts } = request;
  const fails = examples.map((_, i) => uniform('fails', id, i) < failing);
  const inVain = fails.filter((isFailed, i) => isFailed && uniform('paid', id, i) < paidInVain).length;
  const came = fails.filter((isFailed) => !isFailed).length;
  if (came === 0) return { kind: 'failed', id, paid: inVain };
  const scores = examples.map((example, i) => (fails[i] ? null : scoreOf(texts, set, example)));
  return { kind: 'scores', id, scores, paid: came + inVain };
}

/** Drives a search; `choose` says which of the open requests are answered next, at least one. */
export function drive(
  toy: Toy,
  choose: (open: readonly SearchRequest[], turn: number) => readonly SearchRequest[],
): Played {
  let state = startSearch(toy.settings, toy.start);
  const events: SearchEvent[] = [...state.events];
  const asked: SearchRequest[] = [];
  let paid = 0;
  for (let [open, turn] = [next(state), 0]; open.length > 0; open = next(state), turn++) {
    if (turn > 20_000) throw new Error('The search does not end.');
    const chosen = choose(open, turn);
    const answers = chosen.map((request) => answerOf(toy, request));
    asked.push(...chosen);
    for (const answer of answers) paid += answer.kind === 'text' ? 0 : answer.paid;
    state = settle(state, answers);
    events.push(...state.events);
  }
  return { state, events, asked, paid };
}

/** Answers everything that is open. */
export const atOnce = (open: readonly SearchRequest[]): readonly SearchRequest[] => open;

/** Some of what is open, in any order. */
export function anyOrder(seed: number): (open: readonly SearchRequest[], turn: number) => readonly SearchRequest[] {
  return (open, turn) => {
    const shuffled = open.toSorted((a, b) => uniform(seed, turn, a.id) - uniform(seed, turn, b.id));
    return shuffled.slice(0, 1 + Math.floor(uniform(seed, turn) * open.length));
  };
}
