import { useRef, useState } from 'preact/hooks';
import type { JSX, RefObject } from 'preact';
import type { ChatAsked } from '../answers.ts';
import type { Source } from './source.ts';

type Messages = ChatAsked['messages'];

/** A conversation with a version of the run. All of it is text: none becomes markup. */
export function TalkPanel({
  source,
  run,
  step,
}: {
  readonly source: Source;
  readonly run: string;
  readonly step: number;
}): JSX.Element {
  const [version, setVersion] = useState('');
  const [text, setText] = useState('');
  const [messages, setMessages] = useState<Messages>([]);
  const [trouble, setTrouble] = useState<string | null>(null);
  const [answering, setAnswering] = useState<AbortController | null>(null);
  const field = useRef<HTMLInputElement>(null);
  const say = (): void => {
    const asked: Messages = [...messages, { role: 'user', content: text }];
    const stop = new AbortController();
    setMessages(asked);
    setText('');
    setTrouble(null);
    setAnswering(stop);
    const told = (content: string): void => setMessages([...asked, { role: 'assistant', content }]);
    source
      .chat(run, { step: version, messages: asked }, told, stop.signal)
      .catch((error: unknown) => {
        if (!stop.signal.aborted) setTrouble(error instanceof Error ? error.message : String(error));
      })
      .finally(() => {
        setAnswering(null);
        field.current?.focus();
      });
  };
  return (
    <section aria-labelledby="talk">
      <div class="bar">
        <h2 id="talk">Talk to it</h2>
        <label>
          version{' '}
          <input
            type="number"
            min={0}
            max={step}
            class="short"
            placeholder={String(step)}
            value={version}
            onInput={({ currentTarget }) => setVersion(currentTarget.value)}
          />
        </label>
        <button type="button" disabled={answering !== null || messages.length === 0} onClick={() => setMessages([])}>
          begin anew
        </button>
      </div>
      <div class="chat" aria-live="polite" aria-busy={answering !== null}>
        {messages.map(({ role, content }, i) => (
          <div key={i} class={`message ${role === 'assistant' ? 'policy' : role}`}>
            <span class="role">{role === 'assistant' ? 'the policy' : 'you'}</span>
            <pre class="said">{content}</pre>
          </div>
        ))}
      </div>
      {trouble !== null && (
        <p class="trouble" role="alert">
          {trouble}
        </p>
      )}
      <MessageField text={text} setText={setText} say={say} field={field} stop={answering} />
    </section>
  );
}

function MessageField({
  text,
  setText,
  say,
  field,
  stop,
}: {
  readonly text: string;
  readonly setText: (text: string) => void;
  readonly say: () => void;
  readonly field: RefObject<HTMLInputElement | null>;
  /** Ends the answer under way; null without one. */
  readonly stop: AbortController | null;
}): JSX.Element {
  return (
    <form
      class="talk"
      onSubmit={(event) => {
        event.preventDefault();
        if (stop === null && text.trim() !== '') say();
      }}
    >
      <input
        ref={field}
        type="text"
        aria-label="what you say"
        placeholder="say something to the policy"
        value={text}
        onInput={({ currentTarget }) => setText(currentTarget.value)}
      />{' '}
      {stop === null ? (
        <button type="submit" disabled={text.trim() === ''}>
          say
        </button>
      ) : (
        <button type="button" onClick={() => stop.abort()}>
          enough
        </button>
      )}
    </form>
  );
}
