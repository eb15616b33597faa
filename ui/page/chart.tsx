import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { JSX } from 'preact';
import uPlot from 'uplot';
import type { Marker, MarkerKind, SeriesAnswer } from '../answers.ts';
import { figure } from './figures.ts';
import { useIsDark } from './hooks.ts';
import type { Line } from './line.ts';

interface ChartProps {
  readonly title: string;
  readonly unit: string;
  readonly lines: readonly Line[];
  readonly series: SeriesAnswer;
  readonly markers: readonly Marker[];
  readonly by: 'step' | 'time';
  /** Name of a point; default `step 12`. */
  readonly nameOf?: (step: number) => string;
  readonly isLarge?: boolean;
  /** Metric of the line that is drawn before the others; null: all alike. */
  readonly focused?: string | null;
  /** Most lines whose values are named above the chart. Of more lines only the focused one is: a table beside it has all. */
  readonly namedMost?: number;
}

const stepName = (step: number): string => `step ${step}`;
const heights = { normal: 150, large: 260 };
const lineColors = Array.from({ length: 12 }, (_, i) => `--line-${i + 1}`);
/** The colors from here on are dashed as well: twelve colors alone are hard to distinguish. */
const dashedFrom = 6;
const [bandOpacity, unfocused] = ['26', 0.12];
const markerColors: Readonly<Record<MarkerKind, string>> = {
  fault: '--fault',
  settings: '--settings',
  rewind: '--rewind',
  notice: '--notice',
  weights: '--weights',
};
/** New weights come with every step: they are short lines at the foot. */
const tickHeight = 6;

type Points = [x: number[], ...y: (number | null)[][]];

/** A small chart of some metrics. A text above it says what the line shows, for people who do not see it. */
export function Chart({
  title,
  unit,
  lines,
  series,
  markers,
  by,
  nameOf = stepName,
  isLarge = false,
  focused = null,
  namedMost = lineColors.length,
}: ChartProps): JSX.Element | null {
  const height = isLarge ? heights.large : heights.normal;
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const isDark = useIsDark();
  const [at, setAt] = useState<number | null>(null);
  const shown = lines.filter(({ metric }) => series.path.values[metric]?.some((value) => value !== null));
  const points = useMemo(() => pointsOf(series, shown, by), [series, by, shown.map(({ metric }) => metric).join()]);
  const drawn = useRef(markers);
  drawn.current = markers;
  const bands = shown.flatMap(({ band }) => band ?? []);
  const kind = `${shown.map(({ metric }) => metric).join()} ${by} ${isDark} ${points.length}`;
  useEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    const options = optionsOf(
      element,
      { shown, by, height, left: points.length - 1 - shown.length - 2 * bands.length },
      () => drawn.current,
      setAt,
    );
    plot.current = new uPlot(options, points, element);
    const watched = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }));
    watched.observe(element);
    return () => {
      watched.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [kind]);
  useEffect(() => plot.current?.setData(points), [points, markers]);
  const inFront = shown.findIndex(({ metric }) => metric === focused);
  useEffect(() => plot.current?.setSeries(inFront < 0 ? null : inFront + 1, { focus: true }), [inFront, kind]);
  if (shown.length === 0) return null;
  const steps = series.path.step;
  const index = at ?? steps.length - 1;
  return (
    <figure class="chart">
      <figcaption>
        <span class="title">
          <b>{title}</b> {unit !== '' && <small>{unit}</small>}
        </span>
        <span class="values">
          {shown.map(({ metric, label }, i) =>
            shown.length > namedMost && metric !== focused ? null : (
              <span key={metric}>
                <i class={`dot line-${colorNumber(i)}`} aria-hidden="true" />
                {shown.length > 1 && `${label} `}
                {figure(valueAt(series, metric, index))}
              </span>
            ),
          )}
          <small>{steps[index] === undefined ? '' : nameOf(steps[index])}</small>
        </span>
      </figcaption>
      <div ref={place} role="img" aria-label={inWords({ title, unit, lines: shown, series, nameOf, namedMost })} />
    </figure>
  );
}

/** Number of the color, 1 … 12, of the line at this place among those of a chart. */
export function colorNumber(i: number): number {
  return (i % lineColors.length) + 1;
}

function valueAt({ path }: SeriesAnswer, metric: string, index: number): number | null {
  const values = path.values[metric] ?? [];
  // Evaluations have no value at most steps: the newest value before the step is shown.
  for (let i = index; i >= 0; i--) if (values[i] !== null && values[i] !== undefined) return values[i]!;
  return null;
}

function inWords({
  title,
  unit,
  lines,
  series: { path },
  nameOf,
  namedMost,
}: Pick<ChartProps, 'title' | 'unit' | 'lines' | 'series'> &
  Required<Pick<ChartProps, 'nameOf' | 'namedMost'>>): string {
  const name = (one: { readonly step: number } | undefined): string => (one === undefined ? '–' : nameOf(one.step));
  const head = `${title}${unit === '' ? '' : `, ${unit}`}.`;
  if (lines.length > namedMost) return `${head} ${lines.length} lines, whose last values the table of runs has.`;
  const of = lines.map(({ metric, label }) => {
    const values = (path.values[metric] ?? []).map((value, i) => ({ value, step: path.step[i]! }));
    const there = values.filter(({ value }) => value !== null);
    const [first, last] = [there[0], there.at(-1)];
    const most = there.reduce((best, one) => (one.value! > best.value! ? one : best), there[0]!);
    return `${label}: ${figure(first?.value)} at ${name(first)}, ${figure(last?.value)} at ${name(last)}, at most ${figure(most?.value)} at ${name(most)}`;
  });
  return `${head} ${of.join('. ')}.`;
}

/** The lines, then the edges of their bands, then the steps that rewinds left behind, on one axis. */
function pointsOf(series: SeriesAnswer, lines: readonly Line[], by: 'step' | 'time'): Points {
  const { path, left } = series;
  const axis = (part: SeriesAnswer['path']): readonly number[] =>
    by === 'step' ? part.step : part.time.map((at) => at / 1000);
  const edges = lines.flatMap(({ band }) => (band === undefined ? [] : [band.low, band.high]));
  const own = [...lines.map(({ metric }) => metric), ...edges].map((metric) => path.values[metric] ?? []);
  const first = lines[0]?.metric ?? '';
  if (left.length === 0) return [[...axis(path)], ...own.map((values) => [...values])];
  const all = [...new Set([...axis(path), ...left.flatMap(axis)])]
    .filter((x) => Number.isFinite(x))
    .sort((a, b) => a - b);
  const spread = (part: SeriesAnswer['path'], values: readonly (number | null)[]): (number | null)[] => {
    const found = new Map(axis(part).map((x, i) => [x, values[i] ?? null]));
    return all.map((x) => found.get(x) ?? null);
  };
  return [
    all,
    ...own.map((values) => spread(path, values)),
    ...left.map((part) => spread(part, part.values[first] ?? [])),
  ];
}

function colorOf(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function optionsOf(
  element: HTMLElement,
  {
    shown,
    by,
    height,
    left,
  }: {
    readonly shown: readonly Line[];
    readonly by: 'step' | 'time';
    readonly height: number;
    readonly left: number;
  },
  markers: () => readonly Marker[],
  told: (index: number | null) => void,
): uPlot.Options {
  const [faint, grid] = [colorOf('--faint'), colorOf('--grid')];
  const axis = {
    stroke: faint,
    grid: { stroke: grid, width: 1 },
    ticks: { stroke: grid, width: 1 },
    font: '11px system-ui',
  };
  const banded = shown.flatMap(({ band }, i) =>
    band === undefined ? [] : [colorOf(lineColors[i % lineColors.length]!)],
  );
  const edge = { stroke: 'transparent', width: 0, spanGaps: true, points: { show: false } };
  return {
    width: element.clientWidth,
    height,
    legend: { show: false },
    cursor: { sync: { key: 'ratchet' }, y: false, points: { size: 6 } },
    scales: { x: { time: by === 'time' }, y: { range: rangeOf } },
    axes: [
      { ...axis, size: 24 },
      { ...axis, size: 54, values: (_, ticks) => ticks.map((tick) => figure(tick)) },
    ],
    series: [
      {},
      ...shown.map((line, i) => ({
        label: line.label,
        stroke: colorOf(lineColors[i % lineColors.length]!),
        width: 1.6,
        ...(i % lineColors.length >= dashedFrom ? { dash: [6, 3] } : {}),
        spanGaps: true,
        points: { size: 4 },
      })),
      ...banded.flatMap(() => [edge, edge]),
      ...Array.from({ length: left }, () => ({ stroke: faint, width: 1, dash: [3, 3], spanGaps: true })),
    ],
    bands: banded.map((color, i) => {
      const low = shown.length + 1 + 2 * i;
      return { series: [low + 1, low], fill: color + bandOpacity };
    }),
    focus: { alpha: unfocused },
    hooks: {
      draw: [(plot) => drawMarkers(plot, markers(), by)],
      setCursor: [({ cursor }) => told(cursor.idx ?? null)],
    },
  };
}

/** A constant line is drawn near the bottom of its own range. */
function rangeOf(_: uPlot, least: number | null, most: number | null): [number, number] {
  if (least === null || most === null) return [0, 1];
  if (least === most) return [Math.min(0, least), most > 0 ? most * 1.2 : most + 1];
  const room = (most - least) * 0.08;
  return [least - room, most + room];
}

function drawMarkers(plot: uPlot, markers: readonly Marker[], by: 'step' | 'time'): void {
  const { ctx, bbox } = plot;
  ctx.save();
  for (const { kind, step, time } of markers) {
    const value = by === 'step' ? step : Date.parse(time) / 1000;
    if (!Number.isFinite(value)) continue;
    const x = Math.round(plot.valToPos(value, 'x', true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = colorOf(markerColors[kind]);
    ctx.globalAlpha = 0.7;
    ctx.lineWidth = devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(x, kind === 'weights' ? bbox.top + bbox.height - tickHeight * devicePixelRatio : bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}
