import { useEffect, useState } from 'preact/hooks';
import type { ListedRun } from '../answers.ts';
import type { Source } from './source.ts';

/** A requested answer; the previous one stays until the next arrives. */
interface Asked<Answer> {
  readonly answer: Answer | null;
  readonly error: string | null;
  readonly isAsking: boolean;
}

/** Requests a path whenever it or `again` changes; null requests nothing. */
export function useAnswer<Answer>(source: Source, path: string | null, again: unknown = null): Asked<Answer> {
  const [asked, setAsked] = useState<Asked<Answer> & { readonly path: string | null }>({
    answer: null,
    error: null,
    isAsking: path !== null,
    path,
  });
  useEffect(() => {
    if (path === null) return undefined;
    let isWanted = true;
    setAsked((before) => ({ ...before, isAsking: true }));
    source.get<Answer>(path).then(
      (answer) => isWanted && setAsked({ answer, error: null, isAsking: false, path }),
      (error: unknown) => {
        const message = error instanceof Error ? error.message : String(error);
        if (isWanted) setAsked({ answer: null, error: message, isAsking: false, path });
      },
    );
    return () => {
      isWanted = false;
    };
  }, [source, path, again]);
  return path === null ? { answer: null, error: null, isAsking: false } : asked;
}

/** Interval between readings of the list of runs: listing reads every run's folder. */
const listedAgainMs = 4_000;

/** The runs of the folder, read again and again. A report has none. */
export function useListedRuns(source: Source, { isReport = false } = {}): Asked<readonly ListedRun[]> {
  return useAnswer(source, isReport ? null : '/api/runs', useTick(listedAgainMs));
}

/** A number that changes at an interval while the page is visible. */
export function useTick(everyMs: number): number {
  const [tick, setTick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => {
      if (document.visibilityState === 'visible') setTick((before) => before + 1);
    }, everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return tick;
}

/** The part of the address behind `#`: which view, of which run, and what it shows. */
interface Route {
  readonly run: string | null;
  readonly view: string;
  readonly asked: URLSearchParams;
}

function routeOf(hash: string): Route {
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split('?', 2);
  const [run = '', view = ''] = path.split('/');
  const asked = new URLSearchParams(query);
  // A page of a run has no `run` in its address: one that is named so has its page, too.
  if (path === comparison && asked.has('run')) return { run: null, view: comparison, asked };
  return { run: run === '' ? null : decoded(run), view, asked };
}

export const comparison = 'compare';

/** Words as they are typed or linked: with spaces or commas between them. */
export function wordsIn(text: string): string[] {
  return text.split(/[\s,]+/).filter((word) => word !== '');
}

/** Address of the page that compares runs: by their names, or the beginning of names and `*`. */
export function comparisonOf(runs: readonly string[]): string {
  return `#/${comparison}?${new URLSearchParams(runs.map((run) => ['run', run]))}`;
}

export function addressOf(run: string, view = '', asked: Readonly<Record<string, string>> = {}): string {
  const query = new URLSearchParams(Object.entries(asked).filter(([, value]) => value !== '')).toString();
  return `#/${encodeURIComponent(run)}${view === '' ? '' : `/${view}`}${query === '' ? '' : `?${query}`}`;
}

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const look = (): void => setHash(location.hash);
    addEventListener('hashchange', look);
    look(); // it may have changed since it was read
    return () => removeEventListener('hashchange', look);
  }, []);
  return routeOf(hash);
}

/** Dark, or light, as the system is. */
export function useIsDark(): boolean {
  const [isDark, setDark] = useState(() => matchMedia('(prefers-color-scheme: dark)').matches);
  useEffect(() => {
    const scheme = matchMedia('(prefers-color-scheme: dark)');
    const look = (): void => setDark(scheme.matches);
    scheme.addEventListener('change', look);
    return () => scheme.removeEventListener('change', look);
  }, []);
  return isDark;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
