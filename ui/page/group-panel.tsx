import { useEffect, useRef, useState } from 'preact/hooks';
import type { JSX } from 'preact';
import type { ExampleAnswer, GroupAnswer, RolloutAnswer } from '../answers.ts';
import { Chat } from './chat.tsx';
import { counted, figure } from './figures.ts';
import { useAnswer } from './hooks.ts';
import { Scrolls } from './scrolls.tsx';
import type { Source } from './source.ts';
import { Verdict } from './verdict.tsx';
import { Tokens } from './tokens-figure.tsx';

interface Place {
  readonly step: number;
  readonly group: number;
}

interface GroupProps {
  readonly source: Source;
  readonly run: string;
  readonly place: Place;
  readonly index: number;
  readonly temporalUrl: string | null;
  readonly choose: (at: Place & { readonly index: number }) => void;
  readonly close: () => void;
}

type Look = 'chat' | 'beside' | 'tokens' | 'example';
const looks: readonly { readonly look: Look; readonly title: string }[] = [
  { look: 'chat', title: 'conversation' },
  { look: 'beside', title: 'side by side' },
  { look: 'tokens', title: 'tokens' },
  { look: 'example', title: 'over training' },
];

/** A group: its rollouts with rewards and advantages, and one of them in full. */
export function GroupPanel({ source, run, place, index, temporalUrl, choose, close }: GroupProps): JSX.Element {
  const [look, setLook] = useState<Look>('chat');
  const path = `/api/runs/${encodeURIComponent(run)}/group?step=${place.step}&group=${place.group}`;
  const { answer: group, error } = useAnswer<GroupAnswer>(source, path);
  const title = useRef<HTMLHeadingElement>(null);
  useEffect(() => title.current?.focus({ preventScroll: false }), [place.step, place.group]);
  const rollout = group?.rollouts.find((one) => one.index === index) ?? group?.rollouts[0];
  return (
    <section
      class="group"
      aria-labelledby="group-title"
      onKeyDown={({ key }) => {
        if (key === 'Escape') close();
      }}
    >
      <div class="bar">
        <h2 id="group-title" ref={title} tabIndex={-1}>
          Group {place.group} of step {place.step}
        </h2>
        <button type="button" onClick={close}>
          close
        </button>
      </div>
      {error !== null && (
        <p class="trouble" role="alert">
          {error}
        </p>
      )}
      {group && rollout && (
        <>
          <p class="note">
            {group.environment}, example {group.exampleId}, epoch {group.epoch}, from v{group.version}. {group.why}.
            {temporalUrl !== null && (
              <>
                {' '}
                <a href={temporalUrl} rel="noreferrer" target="_blank">
                  its events in Temporal
                </a>
              </>
            )}
          </p>
          {group.withoutAdvantages !== null && <p class="note">No advantages are shown: {group.withoutAdvantages}.</p>}
          <Siblings group={group} chosen={rollout.index} choose={(at) => choose({ ...place, index: at })} />
          <div class="looks" role="group" aria-label="what is shown">
            {looks.map((one) => (
              <button type="button" key={one.look} aria-pressed={look === one.look} onClick={() => setLook(one.look)}>
                {one.title}
              </button>
            ))}
          </div>
          {look === 'chat' && <InFull rollout={rollout} answer={group.answer} />}
          {look === 'beside' && <Beside group={group} />}
          {look === 'tokens' && <Tokens source={source} run={run} place={place} index={rollout.index} />}
          {look === 'example' && <OverTraining source={source} run={run} group={group} choose={choose} />}
          <p class="note">It lies in {group.object}</p>
        </>
      )}
    </section>
  );
}

function Siblings({
  group,
  chosen,
  choose,
}: {
  readonly group: GroupAnswer;
  readonly chosen: number;
  readonly choose: (index: number) => void;
}): JSX.Element {
  const most = Math.max(1e-9, ...group.rollouts.map(({ advantage }) => Math.abs(advantage ?? 0)));
  return (
    <ol class="siblings" aria-label="rollouts of the group">
      {group.rollouts.map(({ index, reward, advantage, outcome, flags }) => (
        <li key={index}>
          <button
            type="button"
            aria-current={index === chosen ? 'true' : undefined}
            title={[outcome, ...flags].join(', ')}
            onClick={() => choose(index)}
          >
            <b>
              {reward === null ? outcome.replaceAll('_', ' ') : figure(reward)} <Verdict reward={reward} />
            </b>
            <small>{advantage === null ? 'no advantage' : signed(advantage)}</small>
            <meter
              class={(advantage ?? 0) < 0 ? 'below' : 'above'}
              min={0}
              max={most}
              value={Math.abs(advantage ?? 0)}
              aria-label={`advantage ${advantage === null ? 'none' : signed(advantage)}`}
            />
          </button>
        </li>
      ))}
    </ol>
  );
}

function InFull({ rollout, answer }: { readonly rollout: RolloutAnswer; readonly answer: string | null }): JSX.Element {
  return (
    <>
      <Parts rollout={rollout} />
      <Expected answer={answer} />
      <Chat rollout={rollout} />
    </>
  );
}

function Expected({ answer }: { readonly answer: string | null }): JSX.Element | null {
  if (answer === null || answer === '') return null;
  return (
    <div class="message expected">
      <span class="role">expected</span>
      <pre class="said">{answer}</pre>
    </div>
  );
}

function Parts({ rollout }: { readonly rollout: RolloutAnswer }): JSX.Element {
  const parts = Object.entries(rollout.parts);
  return (
    <p class="parts">
      {parts.map(([name, value]) => (
        <span key={name}>
          {name} <b>{figure(value)}</b>
        </span>
      ))}
      {rollout.flags.map((flag) => (
        <span key={flag} class="flag">
          {flag}
        </span>
      ))}
    </p>
  );
}

function Beside({ group }: { readonly group: GroupAnswer }): JSX.Element {
  return (
    <>
      <Expected answer={group.answer} />
      <div class="beside" role="region" aria-label="all rollouts of the group" tabIndex={0}>
        {group.rollouts.map((rollout) => (
          <article key={rollout.index} aria-label={`rollout ${rollout.index}`}>
            <h3>
              {rollout.reward === null ? rollout.outcome.replaceAll('_', ' ') : figure(rollout.reward)}{' '}
              <Verdict reward={rollout.reward} />{' '}
              <small>{rollout.advantage === null ? 'no advantage' : `advantage ${signed(rollout.advantage)}`}</small>
            </h3>
            <Parts rollout={rollout} />
            <Chat rollout={rollout} withoutPrompt />
          </article>
        ))}
      </div>
    </>
  );
}

function OverTraining({
  source,
  run,
  group,
  choose,
}: {
  readonly source: Source;
  readonly run: string;
  readonly group: GroupAnswer;
  readonly choose: GroupProps['choose'];
}): JSX.Element {
  const query = new URLSearchParams({ environment: group.environment, id: String(group.exampleId) }).toString();
  const { answer, error } = useAnswer<ExampleAnswer>(source, `/api/runs/${encodeURIComponent(run)}/example?${query}`);
  if (error !== null) return <p class="trouble">{error}</p>;
  if (!answer) return <p role="status">reading …</p>;
  return (
    <>
      <p>{counted(answer.attempts.length, 'attempt')} at this example so far:</p>
      <Scrolls label="attempts">
        <table>
          <thead>
            <tr>
              <th scope="col">step</th>
              <th scope="col">rollout</th>
              <th scope="col">version</th>
              <th scope="col">reward</th>
              <th scope="col">tokens</th>
              <th scope="col">its group</th>
            </tr>
          </thead>
          <tbody>
            {answer.attempts.map((one) => (
              <tr key={`${one.lineage} ${one.group} ${one.index}`}>
                <td class="number">{one.step}</td>
                <th scope="row">
                  <button type="button" class="link" onClick={() => choose(one)}>
                    {one.group}.{one.index}
                  </button>
                </th>
                <td class="number">v{one.version}</td>
                <td class="number">{one.reward === null ? one.outcome : figure(one.reward)}</td>
                <td class="number">{one.tokens}</td>
                <td>{one.end.replace(':', ': ').replaceAll('_', ' ')}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scrolls>
    </>
  );
}

function signed(value: number): string {
  return `${value < 0 ? '−' : value > 0 ? '+' : ''}${figure(Math.abs(value))}`;
}
