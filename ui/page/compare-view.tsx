import { useEffect, useState } from 'preact/hooks';
import type { JSX } from 'preact';
import { runsMeant } from '../../core/runs-meant.ts';
import type { ViewProps } from './app.tsx';
import { Comparison } from './comparison.tsx';
import { counted } from './figures.ts';
import { addressOf, comparisonOf, useListedRuns, wordsIn } from './hooks.ts';
import type { Source } from './source.ts';

/** A run beside others of its folder. */
export function CompareView({ source, run, asked, isReport }: ViewProps): JSX.Element {
  const list = useListedRuns(source, { isReport });
  if (isReport) return <p>A report is of one run. `ratchet ui FOLDER` compares those of a folder.</p>;
  const beside = [...new Set(asked.getAll('with').flatMap(wordsIn))].filter((name) => name !== run);
  const choices = (list.answer ?? []).filter((one) => one.run !== run && one.step !== null).map((one) => one.run);
  const choose = (next: readonly string[]): void => {
    location.hash = addressOf(run, 'compare', { with: next.join(',') });
  };
  return (
    <>
      <div class="bar">
        <h2>Compare</h2>
        {beside.length > 0 && <a href={comparisonOf([run, ...beside])}>on a page of their own</a>}
      </div>
      {choices.length === 0 && (
        <p>
          There is no other run here. Opened with the folder that holds several (`ratchet ui FOLDER`), they are listed.
        </p>
      )}
      <div class="choice" role="group" aria-label="runs to compare with">
        {choices.map((name) => (
          <label key={name}>
            <input
              type="checkbox"
              checked={beside.includes(name)}
              onChange={({ currentTarget }) =>
                choose(currentTarget.checked ? [...beside, name] : beside.filter((other) => other !== name))
              }
            />{' '}
            {name}
          </label>
        ))}
      </div>
      <Comparison source={source} runs={[run, ...beside]} listed={list.answer ?? []} />
    </>
  );
}

/** Any runs of a folder, by their names in the address: `#/compare?run=a&run=lr-*`. */
export function ComparePage({
  source,
  asked,
}: {
  readonly source: Source;
  readonly asked: URLSearchParams;
}): JSX.Element {
  const { answer, error } = useListedRuns(source);
  const words = asked.getAll('run').flatMap(wordsIn);
  const { runs, absent } = runsMeant(
    words,
    (answer ?? []).map(({ run }) => run),
  );
  const [typed, setTyped] = useState(words.join(' '));
  useEffect(() => setTyped(words.join(' ')), [words.join(' ')]);
  useEffect(() => {
    document.title = `${words.slice(0, 3).join(', ')} · compared · Ratchet`;
  }, [words.join()]);
  return (
    <>
      <header class="top">
        <h1>
          <a href="#/">runs</a> / compared
        </h1>
      </header>
      <main id="content">
        <form
          class="bar"
          onSubmit={(event) => {
            event.preventDefault();
            location.hash = comparisonOf(wordsIn(typed));
          }}
        >
          <label class="grows">
            runs <input type="text" value={typed} onInput={({ currentTarget }) => setTyped(currentTarget.value)} />
          </label>
          <button>compare</button>
          <small>{counted(runs.length, 'run')}. A name, or its beginning and *, as in lr-*</small>
        </form>
        {error !== null && (
          <p class="trouble" role="alert">
            {error}
          </p>
        )}
        {answer !== null && absent.length > 0 && (
          <p class="note" role="status">
            Not here, or not begun: {absent.join(', ')}
          </p>
        )}
        {answer !== null && <Comparison source={source} runs={runs} listed={answer} />}
      </main>
    </>
  );
}
