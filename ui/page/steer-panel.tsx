import { useState } from 'preact/hooks';
import type { JSX } from 'preact';
import type { RunOverview, Steering } from '../answers.ts';
import type { Source } from './source.ts';

/** Controls for a running run. Actions that are hard to take back need a confirmation. */
export function SteerPanel({
  source,
  run,
  overview,
}: {
  readonly source: Source;
  readonly run: string;
  readonly overview: RunOverview;
}): JSX.Element {
  const { live } = overview;
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
        {live !== null && (
          <>
            {overview.state === 'paused'
              ? button('resume', { what: 'resume', value: '' })
              : button('pause', { what: 'pause', value: '' })}
            {button('stop after this step', { what: 'stop', value: '' }, true)}
            {live.offeredPrompts.map((name) =>
              button(`adopt the prompt for ${name}`, { what: 'adopt-prompt', value: name }, true),
            )}
            <Line
              title="set"
              hint="learning_rate=1e-4"
              isAsking={isAsking}
              send={(value) => ask({ what: 'set', value })}
            />
            <Line
              title="rewind to step"
              hint="a committed step"
              isAsking={isAsking}
              send={(value) => setSure({ what: 'rewind', value })}
            />
          </>
        )}
        <Line
          title="fork at step"
          hint="STEP NAME-OF-THE-NEW-RUN"
          isAsking={isAsking}
          send={(value) => setSure({ what: 'fork', value })}
        />
      </div>
      {sure !== null && <Sure asked={sure} act={() => ask(sure)} leave={() => setSure(null)} />}
      <p class={`answer ${answer?.isRefusal ? 'trouble' : 'note'}`} role="status">
        {isAsking ? 'asking the run …' : (answer?.text ?? '')}
      </p>
    </section>
  );
}

/** Names the consequence before an action that is hard to take back. */
function Sure({
  asked,
  act,
  leave,
}: {
  readonly asked: Steering;
  readonly act: () => void;
  readonly leave: () => void;
}): JSX.Element {
  return (
    <p class="trouble" role="alert">
      {warningOf(asked)}{' '}
      <button type="button" onClick={act}>
        do it
      </button>{' '}
      <button type="button" onClick={leave}>
        leave it
      </button>
    </p>
  );
}

function warningOf({ what, value }: Steering): string {
  switch (what) {
    case 'rewind':
      return `The run goes on from step ${value} in a new lineage; what comes after it stays in the store.`;
    case 'fork':
      return `A new run begins at ${value.replace(/^(\S+)\s+/, 'step $1, with the name ')}; this one goes on.`;
    case 'adopt-prompt':
      return `From its next groups on, the run plays ${value} with the prompt that was found.`;
    default:
      return 'The run ends after the step under way; `ratchet train` continues it.';
  }
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
