import { useState } from 'preact/hooks';
import type { JSX } from 'preact';
import type { ListedRun } from '../answers.ts';
import { Evaluated } from './evals-view.tsx';
import { clock, figure } from './figures.ts';
import { addressOf, comparisonOf, useListedRuns } from './hooks.ts';
import { Scrolls } from './scrolls.tsx';
import type { Source } from './source.ts';

export function RunList({ source }: { readonly source: Source }): JSX.Element {
  const { answer, error } = useListedRuns(source);
  const [begins, setBegins] = useState('');
  const [ticked, setTicked] = useState<readonly string[]>([]);
  const shown = (answer ?? []).filter(({ run }) => run.startsWith(begins));
  const compared = ticked.length > 0 ? ticked : [`${begins}*`];
  const count = ticked.length > 0 ? ticked.length : shown.length;
  return (
    <>
      {error !== null && (
        <p class="trouble" role="alert">
          {error}
        </p>
      )}
      {answer?.length === 0 && <p>There are no runs here.</p>}
      {answer !== null && answer.length > 1 && (
        <div class="bar">
          <label>
            names that begin with{' '}
            <input type="text" value={begins} onInput={({ currentTarget }) => setBegins(currentTarget.value.trim())} />
          </label>
          {count > 1 && <a href={comparisonOf(compared)}>compare {count} runs</a>}
        </div>
      )}
      {answer !== null && answer.length > 0 && <Runs runs={shown} ticked={ticked} tick={setTicked} />}
      <Evaluated source={source} path="/api" news={0} none={null} />
    </>
  );
}

function Runs({
  runs,
  ticked,
  tick,
}: {
  readonly runs: readonly ListedRun[];
  readonly ticked: readonly string[];
  readonly tick: (runs: readonly string[]) => void;
}): JSX.Element {
  return (
    <Scrolls label="runs">
      <table>
        <thead>
          <tr>
            <th scope="col">
              <span class="hidden">compared</span>
            </th>
            <th scope="col">run</th>
            <th scope="col">state</th>
            <th scope="col">step</th>
            <th scope="col">reward</th>
            <th scope="col">last commit</th>
            <th scope="col">note</th>
          </tr>
        </thead>
        <tbody>
          {runs.map((one) => (
            <tr key={one.run}>
              <td>
                <input
                  type="checkbox"
                  aria-label={`compare ${one.run}`}
                  checked={ticked.includes(one.run)}
                  onChange={({ currentTarget }) =>
                    tick(currentTarget.checked ? [...ticked, one.run] : ticked.filter((name) => name !== one.run))
                  }
                />
              </td>
              <th scope="row">
                <a href={addressOf(one.run)}>{one.run}</a>
              </th>
              <td>{one.state}</td>
              <td class="number">
                {one.step ?? '–'}
                {one.maxSteps === null ? '' : ` of ${one.maxSteps}`}
              </td>
              <td class="number">{figure(one.reward)}</td>
              <td>{clock(one.committedAt)}</td>
              <td>{one.note}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scrolls>
  );
}
