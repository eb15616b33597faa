import { useState } from 'preact/hooks';
import type { JSX } from 'preact';
import type { EvaluationAnswer, EvaluationsAnswer } from '../answers.ts';
import type { ViewProps } from './app.tsx';
import { counted, figure } from './figures.ts';
import { useAnswer } from './hooks.ts';
import { Scrolls } from './scrolls.tsx';

type Listed = EvaluationsAnswer['evaluations'][number];

export function EvalsView({ source, run, news }: ViewProps): JSX.Element {
  const path = `/api/runs/${encodeURIComponent(run)}`;
  const none = 'This run has no evaluation. `[eval]` in the run file asks for some.';
  return <Evaluated source={source} path={path} news={news} none={none} />;
}

/** All evaluations of a run or a folder, with their intervals, and two of them compared example by example. */
export function Evaluated({
  source,
  path,
  news,
  none,
}: Pick<ViewProps, 'source' | 'news'> & {
  /** Prefix of their requests. */
  readonly path: string;
  /** Text shown when there are none; null shows nothing. */
  readonly none: string | null;
}): JSX.Element | null {
  const { answer, error } = useAnswer<EvaluationsAnswer>(source, `${path}/evals`, news);
  const [chosen, setChosen] = useState<readonly string[]>([]);
  if (error !== null)
    return (
      <p class="trouble" role="alert">
        {error}
      </p>
    );
  if (!answer) return none === null ? null : <p role="status">reading …</p>;
  const { evaluations, incomplete } = answer;
  if (none === null && evaluations.length + incomplete.length === 0) return null;
  const choose = (id: string, isChosen: boolean): void =>
    setChosen(isChosen ? [...chosen.slice(-1), id] : chosen.filter((one) => one !== id));
  const environments = [...new Set(evaluations.map(({ environment }) => environment))];
  return (
    <>
      <h2>Evaluations</h2>
      {evaluations.length === 0 && none !== null && <p>{none}</p>}
      {environments.map((environment) => (
        <section key={environment} aria-label={environment}>
          <h3>{environment}</h3>
          <EvalTable
            evaluations={evaluations.filter((one) => one.environment === environment)}
            chosen={chosen}
            choose={choose}
          />
        </section>
      ))}
      {incomplete.map((text) => (
        <p class="note" key={text}>
          {text}
        </p>
      ))}
      {chosen.length > 0 && (
        <Examples source={source} path={path} chosen={evaluations.filter(({ id }) => chosen.includes(id))} />
      )}
    </>
  );
}

function EvalTable({
  evaluations,
  chosen,
  choose,
}: {
  readonly evaluations: readonly Listed[];
  readonly chosen: readonly string[];
  readonly choose: (id: string, isChosen: boolean) => void;
}): JSX.Element {
  const ends = evaluations.flatMap(({ interval }) => interval ?? []);
  const [least, most] = [Math.min(0, ...ends), Math.max(1e-9, ...ends)];
  const x = (value: number): number => ((value - least) / (most - least)) * 200;
  return (
    <Scrolls label="results">
      <table>
        <thead>
          <tr>
            <th scope="col">look at</th>
            <th scope="col">version</th>
            <th scope="col">mean</th>
            <th scope="col">95 %</th>
            <th scope="col">rows</th>
            <th scope="col">failed</th>
            <th scope="col">cut</th>
          </tr>
        </thead>
        <tbody>
          {evaluations.map((one) => (
            <tr key={one.id}>
              <td>
                <input
                  type="checkbox"
                  aria-label={`look at ${one.name}`}
                  checked={chosen.includes(one.id)}
                  onChange={({ currentTarget }) => choose(one.id, currentTarget.checked)}
                />
              </td>
              <th scope="row">
                {one.name.replace('step_', 'v')} {one.lineage !== 'main' && <small>{one.lineage}</small>}
              </th>
              <td class="number">{figure(one.mean)}</td>
              <td>
                {one.interval && (
                  <span class="interval">
                    <svg viewBox="0 0 200 12" preserveAspectRatio="none" height="12" aria-hidden="true">
                      <rect
                        x={x(one.interval[0])}
                        y="3"
                        width={Math.max(2, x(one.interval[1]) - x(one.interval[0]))}
                        height="6"
                        class="band"
                      />
                      <rect x={x(one.mean ?? 0) - 1} y="0" width="2" height="12" class="middle" />
                    </svg>{' '}
                    <small>
                      {figure(one.interval[0])} to {figure(one.interval[1])}
                    </small>
                  </span>
                )}
              </td>
              <td class="number">{one.rows}</td>
              <td class="number">{one.failed}</td>
              <td class="number">{one.truncated}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scrolls>
  );
}

function Examples({
  source,
  path,
  chosen,
}: {
  readonly source: ViewProps['source'];
  readonly path: string;
  readonly chosen: readonly Listed[];
}): JSX.Element {
  const [a, b] = chosen;
  const pathOf = (one: Listed | undefined): string | null =>
    one === undefined ? null : `${path}/eval?id=${encodeURIComponent(one.id)}`;
  const first = useAnswer<EvaluationAnswer>(source, pathOf(a));
  const second = useAnswer<EvaluationAnswer>(source, pathOf(b));
  const error = first.error ?? second.error;
  if (error !== null) return <p class="trouble">{error}</p>;
  const others = new Map((b ? (second.answer?.rows ?? []) : []).map((row) => [row.exampleId, row]));
  const rows = first.answer?.rows ?? [];
  return (
    <section aria-labelledby="examples">
      <h2 id="examples">By example</h2>
      <p class="note">
        {chosen.map(({ environment, name }) => `${environment} ${name}`).join(' beside ')}.{' '}
        {b === undefined && 'Choose another one to see both side by side. '}
        {(first.answer?.leftOut ?? 0) > 0 && `${counted(first.answer!.leftOut, 'row')} more are in its file.`}
      </p>
      <div class="examples">
        {rows.map((row, i) => {
          const other = others.get(row.exampleId);
          return (
            <article key={i}>
              <h3>
                example {row.exampleId}: {row.reward === null ? 'no reward' : figure(row.reward)}
                {other && ` beside ${other.reward === null ? 'no reward' : figure(other.reward)}`}
              </h3>
              <pre class="said">{row.asked}</pre>
              <div class="pair">
                <pre class="said">{row.error ?? row.said}</pre>
                {other && <pre class="said">{other.error ?? other.said}</pre>}
              </div>
              {row.answer !== null && <p class="note">right: {row.answer}</p>}
            </article>
          );
        })}
      </div>
    </section>
  );
}
