import { useEffect, useRef, useState } from 'preact/hooks';
import type { JSX } from 'preact';
import type { RolloutLine, RolloutsAnswer } from '../answers.ts';
import type { ViewProps } from './app.tsx';
import { counted, figure } from './figures.ts';
import { GroupPanel } from './group-panel.tsx';
import { addressOf, useAnswer } from './hooks.ts';
import { Verdict } from './verdict.tsx';

const pageSize = 100;
/** Delay after the last key before a filter is applied. */
const settleMs = 150;

/** Default filter: groups that the policy was trained on. */
const defaultEnd = 'trained';
/** Filter for groups of any fate. */
const anyEnd = 'any';

const fields = ['step', 'environment', 'outcome', 'end', 'reward', 'version', 'text', 'order'] as const;
type Field = (typeof fields)[number];
type Filter = Readonly<Record<Field, string>>;

const orders = [
  { value: 'newest', title: 'newest first' },
  { value: 'reward', title: 'best first' },
  { value: '-reward', title: 'worst first' },
  { value: 'tokens', title: 'longest first' },
] as const;

/** Rollouts that match a filter, and the chosen one's group. The address holds the whole state. */
export function RolloutsView({ source, run, overview, news, asked, isReport }: ViewProps): JSX.Element {
  const filter = Object.fromEntries(fields.map((name) => [name, asked.get(name) ?? ''])) as Filter;
  const chosen = { step: asked.get('at') ?? '', group: asked.get('group') ?? '', index: asked.get('index') ?? '' };
  const [limit, setLimit] = useState(pageSize);
  const again = `${news} ${overview.index.step}`;
  const pathOf = (end: string): string => {
    const words = Object.entries({ ...filter, end }).filter(([, value]) => value !== '');
    const query = new URLSearchParams([...words, ['limit', String(limit)]]).toString();
    return `/api/runs/${encodeURIComponent(run)}/rollouts?${query}`;
  };
  const byDefault = useAnswer<RolloutsAnswer>(source, filter.end === '' ? pathOf(defaultEnd) : null, again);
  // A run that has trained on nothing yet shows groups of any fate.
  const isDefault = filter.end === '' && (byDefault.answer?.matches !== 0 || byDefault.answer.searched !== undefined);
  const wider = useAnswer<RolloutsAnswer>(
    source,
    isDefault ? null : pathOf(filter.end === anyEnd ? '' : filter.end),
    again,
  );
  const { answer, error, isAsking } = isDefault ? byDefault : wider;
  const shownFilter = isDefault
    ? { ...filter, end: defaultEnd }
    : { ...filter, end: filter.end === '' ? anyEnd : filter.end };
  const go = (more: Readonly<Record<string, string>>): void => {
    location.hash = addressOf(run, 'rollouts', { ...Object.fromEntries(asked), ...more });
  };
  const choose = (line: RolloutLine): void =>
    go({ at: String(line.step), group: String(line.group), index: String(line.index) });
  const { index } = overview;
  return (
    <div class={`rollouts${chosen.group === '' ? '' : ' with-group'}`}>
      <section class="finder" aria-label="find rollouts">
        <FilterForm filter={shownFilter} counts={answer?.counts ?? null} change={go} />
        {index.error !== null && <p class="trouble">The index cannot be brought up to date: {index.error}</p>}
        {index.step !== null && index.step < overview.step && (
          <p class="note">
            Found are those up to step {index.step}; {overview.step - index.step} more are being indexed.
          </p>
        )}
        {error !== null && (
          <p class="trouble" role="alert">
            {error}
          </p>
        )}
        <p class="note" role="status">
          {answer === null ? (isAsking ? 'looking …' : '') : inWords(answer)}
          {isReport && ' · a report has some of the rollouts'}
        </p>
        {answer !== null && <ResultList answer={answer} chosen={chosen} choose={choose} />}
        {answer !== null && answer.rollouts.length >= limit && (
          <button type="button" onClick={() => setLimit(limit + pageSize)}>
            {pageSize} more
          </button>
        )}
      </section>
      {chosen.group !== '' && (
        <GroupPanel
          source={source}
          run={run}
          place={{ step: Number(chosen.step), group: Number(chosen.group) }}
          index={Number(chosen.index)}
          temporalUrl={overview.temporalUrl}
          choose={(at) => go({ at: String(at.step), group: String(at.group), index: String(at.index) })}
          close={() => go({ at: '', group: '', index: '' })}
        />
      )}
    </div>
  );
}

function inWords({ matches, of, searched }: RolloutsAnswer): string {
  if (!searched) return `${matches.toLocaleString('en')} of ${counted(of, 'rollout')} match`;
  const rest = searched.next === null ? '' : ` of ${searched.of.toLocaleString('en')}; “more” looks further`;
  return `${matches.toLocaleString('en')} found in ${counted(searched.rows, 'rollout')} that were looked through${rest}`;
}

function FilterForm({
  filter,
  counts,
  change,
}: {
  readonly filter: Filter;
  readonly counts: RolloutsAnswer['counts'] | null;
  readonly change: (more: Readonly<Record<string, string>>) => void;
}): JSX.Element {
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  const later = (name: Field, value: string): void => {
    if (timer.current) clearTimeout(timer.current);
    timer.current = setTimeout(() => change({ [name]: value }), settleMs);
  };
  useEffect(() => () => (timer.current ? clearTimeout(timer.current) : undefined), []);
  const text = (name: Field, title: string, hint: string): JSX.Element => (
    <label>
      {title}
      <input
        type="text"
        name={name}
        value={filter[name]}
        placeholder={hint}
        onInput={({ currentTarget }) => later(name, currentTarget.value)}
      />
    </label>
  );
  const choice = (name: 'environment' | 'outcome' | 'end', title: string): JSX.Element => {
    const found = Object.entries(counts?.[name] ?? {});
    const any = name === 'end' ? anyEnd : '';
    const missing = filter[name] !== any && !found.some(([value]) => value === filter[name]);
    return (
      <label>
        {title}
        <select value={filter[name]} onChange={({ currentTarget }) => change({ [name]: currentTarget.value })}>
          <option value={any}>any</option>
          {missing && <option value={filter[name]}>{filter[name]}</option>}
          {found.map(([value, count]) => (
            <option key={value} value={value}>
              {value.replaceAll('_', ' ')} ({count.toLocaleString('en')})
            </option>
          ))}
        </select>
      </label>
    );
  };
  return (
    <form class="filter" onSubmit={(event) => event.preventDefault()}>
      {text('text', 'text', 'asked or said')}
      {text('step', 'step', '10, or 10..20')}
      {text('reward', 'reward', '0..0.5')}
      {text('version', 'version', '10, or 10..20')}
      {choice('environment', 'environment')}
      {choice('outcome', 'outcome')}
      {choice('end', 'its group')}
      <label>
        order
        <select value={filter.order} onChange={({ currentTarget }) => change({ order: currentTarget.value })}>
          {orders.map(({ value, title }) => (
            <option key={value} value={value === 'newest' ? '' : value}>
              {title}
            </option>
          ))}
        </select>
      </label>
    </form>
  );
}

function ResultList({
  answer,
  chosen,
  choose,
}: {
  readonly answer: RolloutsAnswer;
  readonly chosen: { readonly step: string; readonly group: string; readonly index: string };
  readonly choose: (line: RolloutLine) => void;
}): JSX.Element {
  const isChosen = (one: RolloutLine): boolean =>
    String(one.step) === chosen.step && String(one.group) === chosen.group && String(one.index) === chosen.index;
  const list = useRef<HTMLUListElement>(null);
  const move = (event: KeyboardEvent): void => {
    const by = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (by === undefined) return;
    const buttons = [...(list.current?.querySelectorAll('button') ?? [])];
    const next = buttons[buttons.indexOf(document.activeElement as HTMLButtonElement) + by];
    if (!next) return;
    event.preventDefault();
    next.focus();
  };
  return (
    <ul class="results" ref={list} onKeyDown={move}>
      {answer.rollouts.map((one) => (
        <li key={`${one.lineage} ${one.step} ${one.group} ${one.index}`}>
          <button type="button" aria-current={isChosen(one) ? 'true' : undefined} onClick={() => choose(one)}>
            <span class="line">
              <b class="reward">
                {one.reward === null ? one.outcome.replaceAll('_', ' ') : figure(one.reward)}{' '}
                <Verdict reward={one.reward} />
              </b>
              <small>
                step {one.step} · group {one.group}.{one.index} · v{one.version}
                {one.versionEnd > one.version && `–${one.versionEnd}`} · {counted(one.tokens, 'token')}
                {one.turns > 1 && ` in ${one.turns} turns`}
                {one.outcome === 'truncated' && ' · cut'}
                {one.end !== 'trained' && ` · ${one.end.replace(':', ': ').replaceAll('_', ' ')}`}
              </small>
            </span>
            <span class="asked">{shortened(one.asked)}</span>
            <span class="said-short">
              <span>{shortened(one.said)}</span>
              {one.expected !== undefined && <small>expected: {shortened(one.expected)}</small>}
            </span>
          </button>
        </li>
      ))}
    </ul>
  );
}

const shownChars = 240;

function shortened(text: string): string {
  const line = text.trim().replaceAll(/\s+/g, ' ');
  return line.length > shownChars ? `${line.slice(0, shownChars)}…` : line;
}
