import { RatchetError } from '../core/errors.ts';
import { rolloutOrders, type RolloutFilter, type RolloutOrder } from '../runs/rollout-index/search.ts';
import { listInPlay } from '../runs/progress/listed-rollouts.ts';
import { progressOf } from '../runs/progress/rollout-progress.ts';
import type { RunSource } from './run-source.ts';

export class BadRequest extends Error {}

const rolloutsMax = 500;
const textMax = 200;

type Route = (source: RunSource, asked: URLSearchParams) => Promise<unknown>;

/** Requests about one run: `/api/runs/RUN/NAME?…`. */
export const routes: Readonly<Record<string, Route>> = {
  '': (source) => source.overview(),
  series: (source, asked) => source.series(asked.getAll('name'), countIn(asked, 'points', 1_000)),
  markers: (source) => source.markers(),
  timeline: (source, asked) => source.timeline(asked.has('minutes') ? countIn(asked, 'minutes', 10) : null),
  rollouts: async (source, asked) => {
    return source.rollouts.find(filterIn(asked), {
      order: orderIn(asked),
      limit: Math.min(rolloutsMax, countIn(asked, 'limit', 100)),
      skip: countIn(asked, 'skip', 0),
      from: countIn(asked, 'from', 0),
    });
  },
  playing: (source, asked) =>
    listInPlay(source.place, {
      environment: asked.get('environment') || undefined,
      limit: Math.min(rolloutsMax, countIn(asked, 'limit', 100)),
    }),
  'playing-one': (source, asked) =>
    progressOf(source.place, { group: countIn(asked, 'group'), index: countIn(asked, 'index') }),
  histogram: (source, asked) => source.rollouts.histogram(asked.get('environment') || null),
  history: (source) => source.history.tell(),
  evals: (source) => source.evaluations.list(),
  eval: (source, asked) => source.evaluations.rows(asked.get('id') ?? ''),
  searches: (source) => source.searches.list(),
  search: (source, asked) => source.searches.one(asked.get('id') ?? ''),
  settings: (source) => source.settings(),
  group: (source, asked) => source.rollouts.group(groupIn(asked)),
  tokens: (source, asked) => source.rollouts.tokens(groupIn(asked), countIn(asked, 'index')),
  example: (source, asked) => source.rollouts.example(asked.get('environment') ?? '', countIn(asked, 'id')),
};

export async function answerRoute(source: RunSource, name: string, asked: URLSearchParams): Promise<unknown> {
  const route = Object.hasOwn(routes, name) ? routes[name] : undefined;
  if (!route) throw new RatchetError('RunNotFound', `There is no ${JSON.stringify(name)} of a run.`);
  return route(source, asked);
}

function filterIn(asked: URLSearchParams): RolloutFilter {
  const range = (name: string): { readonly [key: string]: readonly [number, number] } => {
    const text = asked.get(name);
    if (text === null || text === '') return {};
    const [from, to] = text.includes('..') ? (text.split('..', 2) as [string, string]) : [text, text];
    const pair = [from === '' ? -Infinity : numberIn(name, from), to === '' ? Infinity : numberIn(name, to)] as const;
    return { [name]: pair };
  };
  const word = (name: string): Record<string, string> => {
    const text = asked.get(name);
    return text === null || text === '' ? {} : { [name]: text.slice(0, textMax) };
  };
  const count = (name: string): Record<string, number> =>
    (asked.get(name) ?? '') === '' ? {} : { [name]: countIn(asked, name) };
  return {
    ...range('step'),
    ...range('reward'),
    ...range('version'),
    ...word('environment'),
    ...word('outcome'),
    ...word('end'),
    ...word('text'),
    ...count('exampleId'),
    ...count('group'),
  };
}

function orderIn(asked: URLSearchParams): RolloutOrder {
  const given = asked.get('order') ?? 'newest';
  const found = rolloutOrders.find((order) => order === given);
  if (!found) throw new BadRequest(`order: expected one of ${rolloutOrders.join(', ')}, got ${JSON.stringify(given)}.`);
  return found;
}

function groupIn(asked: URLSearchParams): { readonly step: number; readonly group: number } {
  return { step: countIn(asked, 'step'), group: countIn(asked, 'group') };
}

function countIn(asked: URLSearchParams, name: string, otherwise?: number): number {
  const text = asked.get(name);
  if ((text === null || text === '') && otherwise !== undefined) return otherwise;
  if (text !== null && /^\d{1,15}$/.test(text)) return Number(text);
  throw new BadRequest(`${name}: expected a whole number, got ${JSON.stringify(text)}.`);
}

function numberIn(name: string, text: string): number {
  const number = Number(text);
  if (text.trim() !== '' && Number.isFinite(number)) return number;
  throw new BadRequest(`${name}: expected a number, or two as in 0..0.5, got ${JSON.stringify(text)}.`);
}
