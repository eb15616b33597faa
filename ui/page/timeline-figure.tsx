import { useState } from 'preact/hooks';
import type { JSX } from 'preact';
import type { Marker, Span, TimelineAnswer } from '../answers.ts';
import { whatItDoes } from './activity-words.ts';
import { clock, counted, duration } from './figures.ts';
import { useAnswer } from './hooks.ts';
import type { Source } from './source.ts';

const windows = [
  { minutes: '', title: 'all of it' },
  { minutes: '60', title: 'the last hour' },
  { minutes: '10', title: 'the last 10 minutes' },
  { minutes: '1', title: 'the last minute' },
] as const;

const rowHeight = 14;
const rowsMax = 4;
/** More lines than these would hide the spans between them. */
const weightsMax = 60;
/** Shares below this are shown as `0 %`. */
const usedMin = 0.005;

/**
 * The workers' activities over time: a lane for each activity with the share of time beside it; retries are hatched,
 * failures red.
 */
export function TimelineFigure({
  source,
  run,
  news,
  weights,
}: {
  readonly source: Source;
  readonly run: string;
  readonly news: number;
  /** Times at which servers took new weights. */
  readonly weights: readonly Marker[];
}): JSX.Element {
  const [minutes, setMinutes] = useState('');
  const [told, setTold] = useState<string | null>(null);
  const [isAll, setAll] = useState(false);
  const path = `/api/runs/${encodeURIComponent(run)}/timeline${minutes === '' ? '' : `?minutes=${minutes}`}`;
  const { answer, error } = useAnswer<TimelineAnswer>(source, path, news);
  const busy = (answer?.lanes ?? []).filter(
    ({ used, spans }) => used >= usedMin || spans.some(({ end }) => end === 'failed'),
  );
  const hidden = (answer?.lanes.length ?? 0) - busy.length;
  return (
    <section aria-labelledby="timeline">
      <div class="bar">
        <h2 id="timeline">Workers</h2>
        <label>
          show{' '}
          <select value={minutes} onChange={({ currentTarget }) => setMinutes(currentTarget.value)}>
            {windows.map((one) => (
              <option key={one.minutes} value={one.minutes}>
                {one.title}
              </option>
            ))}
          </select>
        </label>
      </div>
      {error !== null && <p class="note">{error}</p>}
      {answer?.lanes.length === 0 && <p>The logs of the run’s workers tell of nothing yet.</p>}
      {answer !== null && answer.lanes.length > 0 && (
        <>
          <svg width="0" height="0" aria-hidden="true" class="patterns">
            <pattern id="again" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
              <rect width="3" height="6" class="hatch" />
            </pattern>
          </svg>
          <Lanes answer={answer} lanes={isAll ? answer.lanes : busy} weights={weights} tell={setTold} />
          <p class="told" aria-live="polite">
            {told ?? `${clock(answer.from)} to ${clock(answer.to)}, ${duration((answer.to - answer.from) / 1000)}`}
          </p>
          {hidden > 0 && (
            <p class="note">
              {isAll ? '' : `${counted(hidden, 'activity', 'activities')} took less than half a percent of the time. `}
              <button type="button" class="link" onClick={() => setAll(!isAll)}>
                {isAll ? 'hide what took no time' : 'show all'}
              </button>
            </p>
          )}
          {answer.leftOut > 0 && <p class="note">{answer.leftOut} of the shortest are left out.</p>}
        </>
      )}
    </section>
  );
}

function Lanes({
  answer,
  lanes,
  weights,
  tell,
}: {
  readonly answer: TimelineAnswer;
  readonly lanes: TimelineAnswer['lanes'];
  readonly weights: readonly Marker[];
  readonly tell: (text: string | null) => void;
}): JSX.Element {
  return (
    <table class="timeline" onMouseLeave={() => tell(null)}>
      <caption class="hidden">
        What workers did from {clock(answer.from)} to {clock(answer.to)}
      </caption>
      <thead class="hidden">
        <tr>
          <th scope="col">worker and activity</th>
          <th scope="col">busy</th>
          <th scope="col">when</th>
        </tr>
      </thead>
      <tbody>
        {lanes.map((lane) => (
          <tr key={`${lane.worker} ${lane.activity}`}>
            <th scope="row">
              <small>{lane.worker}</small> <span title={lane.activity}>{whatItDoes(lane.activity)}</span>
            </th>
            <td class="number">{Math.round(lane.used * 100)} %</td>
            <td class="lane">
              <Lane lane={lane} from={answer.from} to={answer.to} weights={weights} tell={tell} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Lane({
  lane,
  from,
  to,
  weights,
  tell,
}: {
  readonly lane: TimelineAnswer['lanes'][number];
  readonly from: number;
  readonly to: number;
  readonly weights: readonly Marker[];
  readonly tell: (text: string) => void;
}): JSX.Element {
  const rows = rowsOf(lane.spans);
  const height = Math.min(rowsMax, Math.max(1, ...rows.map((row) => row + 1))) * rowHeight;
  const scale = (at: number): number => ((Math.max(from, at) - from) / Math.max(1, to - from)) * 1000;
  const taken = weights.filter(({ time }) => Date.parse(time) >= from && Date.parse(time) <= to);
  const inside = taken.length > weightsMax ? [] : taken;
  const failed = lane.spans.filter(({ end }) => end === 'failed').length;
  const label = `${lane.worker} ${whatItDoes(lane.activity)}: ${lane.spans.length} times, busy ${Math.round(lane.used * 100)} % of the time, ${failed} failed`;
  return (
    <svg viewBox={`0 0 1000 ${height}`} preserveAspectRatio="none" height={height} role="img" aria-label={label}>
      {inside.map(({ time, text }) => (
        <path
          key={time}
          d={`M ${scale(Date.parse(time))} 0 V ${height}`}
          class="weights-line"
          onMouseEnter={() => tell(`${clock(time)} ${text}`)}
        />
      ))}
      {lane.spans.map((span, i) => {
        const x = scale(span.from);
        const box = {
          x,
          y: (rows[i]! % rowsMax) * rowHeight + 1,
          width: Math.max(1, scale(span.to ?? to) - x),
          height: rowHeight - 2,
        };
        return (
          <g key={i} onMouseEnter={() => tell(inWords(span))}>
            <rect {...box} class={`span ${span.end}`} />
            {span.attempt > 1 && <rect {...box} fill="url(#again)" />}
          </g>
        );
      })}
    </svg>
  );
}

function inWords({ text, from, to, end, error }: Span): string {
  const length = to === null ? 'under way' : duration((to - from) / 1000);
  return `${clock(from)} ${text}: ${length}${end === 'done' || end === 'unknown' ? '' : `, ${end}`}${error === undefined ? '' : `: ${error.split('\n', 1)[0]}`}`;
}

/** Spans that overlap get rows of their own. */
function rowsOf(spans: readonly Span[]): number[] {
  const ends: number[] = [];
  return spans.map(({ from, to }) => {
    const free = ends.findIndex((end) => end <= from);
    const row = free < 0 ? ends.length : free;
    ends[row] = to ?? Infinity;
    return row;
  });
}
