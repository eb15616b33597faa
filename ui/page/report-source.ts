import type { ReportData, RolloutLine, RolloutsAnswer, SeriesAnswer, TimelineAnswer } from '../answers.ts';
import type { Source } from './source.ts';

/** Answers like the server, from the data in the report's file. */
export function reportSource(): Source {
  const data = JSON.parse(document.getElementById('data')?.textContent ?? '{}') as ReportData;
  return {
    async get<Answer>(path: string): Promise<Answer> {
      const { pathname, searchParams } = new URL(path, 'http://report');
      const found = answerOf(data, pathname.split('/')[4] ?? '', searchParams);
      if (found === undefined)
        throw new Error('This is not in the report, which has some of the rollouts. `ratchet ui` shows all of a run.');
      return Promise.resolve(found as Answer);
    },
    steer: () => Promise.reject(new Error('A report only shows.')),
    chat: () => Promise.reject(new Error('A report only shows.')),
    follow(_, told) {
      const trouble = data.missing.length === 0 ? {} : { trouble: `Not in this report: ${data.missing.join(' · ')}` };
      told({ overview: data.overview, offset: 0, ...trouble });
      return () => undefined;
    },
  };
}

function answerOf(data: ReportData, name: string, asked: URLSearchParams): unknown {
  const group = `${asked.get('step')}/${asked.get('group')}`;
  switch (name) {
    case 'series':
      return seriesIn(data.series, asked.getAll('name'));
    case 'markers':
      return data.markers;
    case 'timeline':
      return timelineIn(data.timeline, asked.get('minutes'));
    case 'rollouts':
      return rolloutsIn(data, asked);
    case 'group':
      return data.groups[group];
    case 'tokens':
      return data.tokens[`${group}/${asked.get('index')}`];
    case 'history':
      return data.history;
    case 'histogram':
      return data.histograms[asked.get('environment') ?? ''];
    case 'searches':
      return data.searches;
    case 'search':
      return data.searchesInFull[asked.get('id') ?? ''];
    case 'evals':
      return data.evals;
    case 'eval':
      return data.evalRows[asked.get('id') ?? ''];
    case 'example':
      return {
        attempts: data.rollouts
          .filter(
            ({ environment, exampleId }) =>
              environment === asked.get('environment') && String(exampleId) === asked.get('id'),
          )
          .toReversed(),
      };
    default:
      return undefined;
  }
}

function seriesIn({ path, left, stepsPerPoint }: SeriesAnswer, names: readonly string[]): SeriesAnswer {
  const chosen = (part: SeriesAnswer['path']): SeriesAnswer['path'] => ({
    ...part,
    values: Object.fromEntries(names.map((name) => [name, part.values[name] ?? part.step.map(() => null)])),
  });
  return { path: chosen(path), left: left.map(chosen), stepsPerPoint };
}

function timelineIn(all: TimelineAnswer, minutes: string | null): TimelineAnswer {
  const from = minutes === null ? all.from : Math.max(all.from, all.to - Number(minutes) * 60_000);
  const lanes = all.lanes
    .map((lane) => ({ ...lane, spans: lane.spans.filter(({ to }) => (to ?? all.to) >= from) }))
    .filter(({ spans }) => spans.length > 0);
  return { ...all, from, lanes };
}

function rolloutsIn({ rollouts, of }: ReportData, asked: URLSearchParams): RolloutsAnswer {
  const found = rollouts.filter(matcherOf(asked));
  const count = (name: 'environment' | 'outcome' | 'end'): Record<string, number> => {
    const counts: Record<string, number> = {};
    for (const one of found) counts[one[name]] = (counts[one[name]] ?? 0) + 1;
    return counts;
  };
  const order = asked.get('order') ?? 'newest';
  const least = -Number.MAX_VALUE;
  const valueOf = ({ reward, tokens }: RolloutLine): number =>
    order === 'tokens' ? tokens : reward === null ? least : order === 'reward' ? reward : -reward;
  const sorted = order === 'newest' ? found : found.toSorted((a, b) => valueOf(b) - valueOf(a));
  return {
    rollouts: sorted.slice(0, Number(asked.get('limit') ?? 100)),
    matches: found.length,
    of,
    counts: { environment: count('environment'), outcome: count('outcome'), end: count('end') },
  };
}

function matcherOf(asked: URLSearchParams): (line: RolloutLine) => boolean {
  const range = (name: string): readonly [number, number] => {
    const text = asked.get(name) ?? '';
    if (text === '') return [-Infinity, Infinity];
    const [from = '', to = ''] = text.includes('..') ? text.split('..', 2) : [text, text];
    return [from === '' ? -Infinity : Number(from), to === '' ? Infinity : Number(to)];
  };
  const within = (value: number, [from, to]: readonly [number, number]): boolean => value >= from && value <= to;
  const [step, reward, version] = [range('step'), range('reward'), range('version')];
  const hasReward = (asked.get('reward') ?? '') !== '';
  const is = (name: string, value: string): boolean => (asked.get(name) ?? '') === '' || asked.get(name) === value;
  const word = (asked.get('text') ?? '').toLowerCase();
  return (line) =>
    within(line.step, step) &&
    within(line.version, version) &&
    (!hasReward || (line.reward !== null && within(line.reward, reward))) &&
    is('environment', line.environment) &&
    is('outcome', line.outcome) &&
    is('end', line.end) &&
    `${line.asked}\n${line.said}`.toLowerCase().includes(word);
}
