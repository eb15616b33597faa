import { useState } from 'preact/hooks';
import type { JSX } from 'preact';
import type { ListedSearch, SearchAnswer, SearchesAnswer } from '../answers.ts';
import type { ViewProps } from './app.tsx';
import { Scrolls } from './scrolls.tsx';
import { counted, figure } from './figures.ts';
import { addressOf, useAnswer } from './hooks.ts';

/** Searches for better prompts: results, candidates as a tree, and how their prompts differ. */
export function SearchesView({ source, run, news, asked }: ViewProps): JSX.Element {
  const path = `/api/runs/${encodeURIComponent(run)}`;
  const { answer, error } = useAnswer<SearchesAnswer>(source, `${path}/searches`, news);
  const chosen = asked.get('search') ?? answer?.searches.at(-1)?.id ?? null;
  const search = useAnswer<SearchAnswer>(
    source,
    chosen === null ? null : `${path}/search?id=${encodeURIComponent(chosen)}`,
    news,
  );
  if (error !== null)
    return (
      <p class="trouble" role="alert">
        {error}
      </p>
    );
  if (answer === null) return <p role="status">reading …</p>;
  const damaged = answer.damaged.map((why) => (
    <p class="trouble" key={why}>
      A search cannot be read: {why}
    </p>
  ));
  if (answer.searches.length === 0)
    return (
      <section>
        <h2>Prompt searches</h2>
        {damaged}
        {damaged.length === 0 && (
          <p>
            None yet. A run looks for better prompts where its file has <code>[gepa]</code>.
          </p>
        )}
      </section>
    );
  return (
    <>
      <SearchTable run={run} searches={answer.searches} chosen={chosen} damaged={damaged} />
      {search.error !== null && <p class="trouble">{search.error}</p>}
      {search.answer !== null && <Candidates key={search.answer.id} search={search.answer} />}
    </>
  );
}

function SearchTable({
  run,
  searches,
  chosen,
  damaged,
}: {
  readonly run: string;
  readonly searches: readonly ListedSearch[];
  readonly chosen: string | null;
  readonly damaged: JSX.Element[];
}): JSX.Element {
  return (
    <section aria-labelledby="searches">
      <h2 id="searches">Prompt searches</h2>
      {damaged}
      <Scrolls label="prompt searches">
        <table>
          <thead>
            <tr>
              {['from version', 'environment', 'start', 'best', 'candidates', 'calls', 'on the newest version'].map(
                (title) => (
                  <th key={title} scope="col">
                    {title}
                  </th>
                ),
              )}
            </tr>
          </thead>
          <tbody>
            {searches.map((one) => (
              <tr key={one.id}>
                <th scope="row">
                  <a
                    href={addressOf(run, 'prompts', { search: one.id })}
                    aria-current={one.id === chosen ? 'true' : undefined}
                  >
                    v{one.step}
                    {one.lineage === 'main' ? '' : ` of ${one.lineage}`}
                  </a>
                </th>
                <td>{one.environment}</td>
                <td class="number">{figure(one.startScore)}</td>
                <td class="number">{figure(one.bestScore)}</td>
                <td class="number">{one.count}</td>
                <td class="number">
                  {one.calls ?? '–'}
                  {one.maxCalls === null ? '' : ` of ${one.maxCalls}`}
                </td>
                <td>{trialOf(one)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scrolls>
    </section>
  );
}

function trialOf({ trial, stopReason }: ListedSearch): string {
  if (trial === null) return stopReason === null ? 'goes on' : `not tried; ended by ${stopReason}`;
  return `${figure(trial.before)} → ${figure(trial.after)} on ${trial.version}, ${counted(trial.examples, 'example')}`;
}

type Candidate = SearchAnswer['candidates'][number];

function Candidates({ search }: { readonly search: SearchAnswer }): JSX.Element {
  const { candidates, best, calls, maxCalls, comparison } = search;
  const [at, setAt] = useState(best);
  const chosen = candidates[at] ?? candidates[best]!;
  return (
    <section class="search" aria-labelledby="candidates">
      <h2 id="candidates">
        Candidates for {search.environment} from v{search.step}
      </h2>
      <p class="note">
        Reflected on by {search.reflectionModel || 'a model that is not named'}. A ring: best at one example at least,
        the Pareto front.
        {comparison !== null &&
          ` On ${comparison.examples} further examples: the start ${figure(comparison.before)}, the best ${figure(comparison.after)}.`}
      </p>
      {calls !== null && maxCalls !== null && (
        <p class="budget">
          <progress max={maxCalls} value={Math.min(calls, maxCalls)} aria-label="budget used" /> {calls} of {maxCalls}{' '}
          calls
        </p>
      )}
      <div class="search-parts">
        <ol class="tree">
          {treeOf(candidates).map(({ index, depth }) => (
            <Row
              key={index}
              candidate={candidates[index]!}
              index={index}
              depth={depth}
              share={shareOf(candidates, index)}
              examples={search.examples}
              isChosen={index === at}
              choose={() => setAt(index)}
            />
          ))}
        </ol>
        <Prompt candidate={chosen} index={at} />
      </div>
    </section>
  );
}

interface RowProps {
  readonly candidate: Candidate;
  readonly index: number;
  readonly depth: number;
  /** Position between the lowest score and the highest, 0 to 1. */
  readonly share: number;
  readonly examples: number;
  readonly isChosen: boolean;
  readonly choose: () => void;
}

function Row({ candidate, index, depth, share, examples, isChosen, choose }: RowProps): JSX.Element {
  const { parents, score, scored, bestAt, isBest } = candidate;
  const merged = parents.length > 1 ? ` · merged with ${parents.slice(1).join(', ')}` : '';
  return (
    <li>
      <button type="button" aria-pressed={isChosen} onClick={choose}>
        <svg width={depth * 14 + 18} height="18" viewBox={`0 0 ${depth * 14 + 18} 18`} aria-hidden="true">
          {depth > 0 && <path class="branch" d={`M ${depth * 14 - 5} 0 V 9 H ${depth * 14 + 3}`} />}
          <circle
            class={bestAt > 0 ? 'node on-front' : 'node'}
            cx={depth * 14 + 9}
            cy="9"
            r="6"
            fill-opacity={0.12 + 0.88 * share}
          />
        </svg>
        <span>
          <b>{index}</b> {figure(score)}
          <small>
            {scored < examples && ` on ${scored} of ${examples}`}
            {bestAt > 0 && ` · best at ${bestAt}`}
            {merged}
            {isBest && ' · the best'}
          </small>
        </span>
      </button>
    </li>
  );
}

function Prompt({ candidate, index }: { readonly candidate: Candidate; readonly index: number }): JSX.Element {
  const { prompt, fromParent, fromStart, parents } = candidate;
  const [shown, setShown] = useState<'parent' | 'start' | 'text'>('parent');
  const kinds = [
    ...(fromParent === '' ? [] : [['parent', `from ${parents[0]}`] as const]),
    ...(fromStart === '' ? [] : [['start', 'from the start'] as const]),
    ['text', 'prompt'] as const,
  ];
  const kind = kinds.some(([name]) => name === shown) ? shown : kinds[0]![0];
  const text = kind === 'text' ? prompt : kind === 'parent' ? fromParent : fromStart;
  return (
    <div class="prompt">
      <div class="bar">
        <h3>Candidate {index}</h3>
        {kinds.map(([name, title]) => (
          <button key={name} type="button" aria-pressed={kind === name} onClick={() => setShown(name)}>
            {title}
          </button>
        ))}
      </div>
      <pre tabIndex={0} aria-label={`candidate ${index}`}>
        {kind === 'text' ? text : text.split('\n').map((line, i) => <Line key={i} line={line} />)}
      </pre>
    </div>
  );
}

function Line({ line }: { readonly line: string }): JSX.Element {
  const tag = /^(?:---|\+\+\+|@@)/.test(line) ? 'head' : line.startsWith('+') ? 'added' : line.startsWith('-') ? 'removed' : 'same'; // prettier-ignore
  return <span class={tag}>{line === '' ? ' ' : line}</span>;
}

/** Candidates below their first parent. A parent that is missing, or comes later, is ignored. */
function treeOf(candidates: readonly Candidate[]): { readonly index: number; readonly depth: number }[] {
  const parentOf = (index: number): number | null => {
    const parent = candidates[index]!.parents[0];
    return parent !== undefined && parent >= 0 && parent < index ? parent : null;
  };
  const children = new Map<number | null, number[]>();
  for (const index of candidates.keys())
    children.set(parentOf(index), [...(children.get(parentOf(index)) ?? []), index]);
  const walk = (index: number, depth: number): { index: number; depth: number }[] => [
    { index, depth },
    ...(children.get(index) ?? []).flatMap((child) => walk(child, depth + 1)),
  ];
  return (children.get(null) ?? []).flatMap((root) => walk(root, 0));
}

function shareOf(candidates: readonly Candidate[], index: number): number {
  const scores = candidates.flatMap(({ score }) => score ?? []);
  const [least, most] = [Math.min(...scores), Math.max(...scores)];
  const score = candidates[index]!.score;
  return score === null ? 0 : most === least ? 1 : (score - least) / (most - least);
}
