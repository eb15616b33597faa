import { useEffect, useState } from 'preact/hooks';
import type { JSX } from 'preact';
import type { PageSettings, RunOverview } from '../answers.ts';
import { ComparePage, CompareView } from './compare-view.tsx';
import { EvalsView } from './evals-view.tsx';
import { clock } from './figures.ts';
import { FleetView } from './fleet-view.tsx';
import { HistoryView } from './history-view.tsx';
import { addressOf, comparison, useRoute } from './hooks.ts';
import { PlayingView } from './playing-view.tsx';
import { RolloutsView } from './rollouts-view.tsx';
import { RunList } from './run-list.tsx';
import { RunView } from './run-view.tsx';
import { SearchesView } from './searches-view.tsx';
import type { Source } from './source.ts';

/** Properties common to all views of a run. */
export interface ViewProps {
  readonly source: Source;
  readonly run: string;
  readonly overview: RunOverview;
  /** A number that changes whenever the run's folder has news. */
  readonly news: number;
  readonly asked: URLSearchParams;
  readonly isReport: boolean;
  readonly canSteer: boolean;
}

const views: readonly {
  readonly name: string;
  readonly title: string;
  readonly View: (props: ViewProps) => JSX.Element;
  /** A report has nothing of it. */
  readonly isLive?: true;
}[] = [
  { name: '', title: 'Run', View: RunView },
  { name: 'playing', title: 'In play', View: PlayingView, isLive: true },
  { name: 'rollouts', title: 'Rollouts', View: RolloutsView },
  { name: 'ledger', title: 'Ledger', View: HistoryView },
  { name: 'evals', title: 'Evals', View: EvalsView },
  { name: 'prompts', title: 'Prompts', View: SearchesView },
  { name: 'compare', title: 'Compare', View: CompareView },
];

export function App({ settings, source }: { readonly settings: PageSettings; readonly source: Source }): JSX.Element {
  const route = useRoute();
  const run = settings.run ?? route.run;
  if (run === null && route.view === comparison) return <ComparePage source={source} asked={route.asked} />;
  if (run === null) return <FolderPage source={source} view={route.view} />;
  return <RunPage key={run} source={source} run={run} settings={settings} />;
}

function RunPage({
  source,
  run,
  settings,
}: {
  readonly source: Source;
  readonly run: string;
  readonly settings: PageSettings;
}): JSX.Element {
  const { view: name, asked } = useRoute();
  const [told, setTold] = useState<{ overview: RunOverview | null; offset: number; trouble: string | null }>({
    overview: null,
    offset: 0,
    trouble: null,
  });
  useEffect(
    () =>
      source.follow(run, ({ overview, offset, trouble }) =>
        setTold((before) => ({
          overview: overview ?? before.overview,
          offset: offset ?? before.offset,
          trouble: trouble ?? null,
        })),
      ),
    [source, run],
  );
  const { overview, offset, trouble } = told;
  const offered = views.filter(({ isLive }) => !(isLive && settings.isReport));
  const shown = offered.find((view) => view.name === name) ?? offered[0]!;
  useEffect(() => {
    document.title = overview ? `${run} · ${overview.step}/${overview.maxSteps} · Ratchet` : `${run} · Ratchet`;
  }, [run, overview?.step, overview?.maxSteps]);
  return (
    <>
      <header class="top">
        <SkipLink />
        <h1>
          {settings.run === null && <a href="#/">runs</a>}
          {settings.run === null && ' / '}
          {run}
        </h1>
        <nav aria-label="views">
          {offered.map(({ name, title }) => (
            <a href={addressOf(run, name)} aria-current={shown.name === name ? 'page' : undefined}>
              {title}
            </a>
          ))}
        </nav>
        {settings.isReport && <p class="made">a report of {clock(settings.madeAt)}</p>}
      </header>
      <main id="content" tabIndex={-1}>
        {trouble !== null && (
          <p class="trouble" role="alert">
            {trouble}
          </p>
        )}
        {overview ? (
          <shown.View
            source={source}
            run={run}
            overview={overview}
            news={offset}
            asked={asked}
            isReport={settings.isReport}
            canSteer={settings.canSteer}
          />
        ) : (
          trouble === null && <p role="status">reading …</p>
        )}
      </main>
    </>
  );
}

/** The first stop of the keyboard. An address `#content` would be that of a run, so the link is not followed. */
function SkipLink(): JSX.Element {
  const skip = (event: Event): void => {
    event.preventDefault();
    document.querySelector<HTMLElement>('#content')?.focus();
  };
  return (
    <a class="skip" href="#content" onClick={skip}>
      to the content
    </a>
  );
}

/** What the runs of a folder have in common: their list, and the fleet that they share. */
const folderViews = [
  { name: '', title: 'Runs', View: RunList },
  { name: 'fleet', title: 'Fleet', View: FleetView },
] as const;

function FolderPage({ source, view }: { readonly source: Source; readonly view: string }): JSX.Element {
  const shown = folderViews.find(({ name }) => name === view) ?? folderViews[0];
  useEffect(() => {
    document.title = `${shown.title} · Ratchet`;
  }, [shown]);
  return (
    <>
      <header class="top">
        <SkipLink />
        <h1>{shown.title}</h1>
        <nav aria-label="views">
          {folderViews.map(({ name, title }) => (
            <a href={addressOf('', name)} aria-current={shown.name === name ? 'page' : undefined}>
              {title}
            </a>
          ))}
        </nav>
      </header>
      <main id="content" tabIndex={-1}>
        <shown.View source={source} />
      </main>
    </>
  );
}
