import { useState } from 'preact/hooks';
import type { JSX } from 'preact';
import type { RunOverview, Steering } from '../answers.ts';
import type { Source } from './source.ts';

/** What one can ask of a run that is running. What cannot be taken back lightly is asked for twice. */
export function SteerPanel({
  source,
  run,
  overview,
}: {
  readonly source: Source;
  readonly run: string;
  readonly overview: RunOverview;
}): JSX.Element {
  const [answer, setAnswer] = useState<{ readonly text: string; readonly isRefusal: boolean } | null>(null);
  const [isAsking, setAsking] = useState(false);
  const [sure, setSure] = useState<Steering | null>(null);
  const ask = (steering: Steering): void => {
    setSure(null);
    setAsking(true);
    source
      .steer(run, steering)
      .then(
        (text) => setAnswer({ text, isRefusal: false }),
        (error: unknown) =>
          setAnswer({ text: error instanceof Error ? error.message : String(error), isRefusal: true }),
      )
      .finally(() => setAsking(false));
  };
  const button = (title: string, steering: Steering, isAskedTwice = false): JSX.Element => (
    <button type="button" disabled={isAsking} onClick={() => (isAskedTwice ? setSure(steering) : ask(steering))}>
      {title}
    </button>
  );
  return (
    <section aria-labelledby="steer">
      <h2 id="steer">Steer</h2>
      <div class="steer">
        {overview.state === 'paused'
          ? button('resume', { what: 'resume', value: '' })
          : button('pause', { what: 'pause', value: '' })}
        {button('stop after this step', { what: 'stop', value: '' }, true)}
        <Line title="set" hint="learning_rate=1e-4" isAsking={isAsking} send={(value) => ask({ what: 'set', value })} />
        <Line
          title="rewind to step"
          hint="a committed step"
          isAsking={isAsking}
          send={(value) => setSure({ what: 'rewind', value })}
        />
      </div>
      {sure !== null && (
        <p class="trouble" role="alert">
          {sure.what === 'rewind'
            ? `The run goes on from step ${sure.value} in a new lineage; what comes after it stays in the store. `
            : 'The run ends after the step under way; `ratchet train` continues it. '}
          <button type="button" onClick={() => ask(sure)}>
            do it
          </button>{' '}
          <button type="button" onClick={() => setSure(null)}>
            leave it
          </button>
        </p>
      )}
      <p class={answer?.isRefusal ? 'trouble' : 'note'} role="status">
        {isAsking ? 'asking the run …' : (answer?.text ?? '')}
      </p>
    </section>
  );
}

function Line({
  title,
  hint,
  isAsking,
  send,
}: {
  readonly title: string;
  readonly hint: string;
  readonly isAsking: boolean;
  readonly send: (text: string) => void;
}): JSX.Element {
  const [text, setText] = useState('');
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        send(text);
      }}
    >
      <label>
        {title}{' '}
        <input
          type="text"
          value={text}
          placeholder={hint}
          onInput={({ currentTarget }) => setText(currentTarget.value)}
        />
      </label>{' '}
      <button type="submit" disabled={isAsking || text.trim() === ''}>
        {title.split(' ', 1)[0]}
      </button>
    </form>
  );
}
