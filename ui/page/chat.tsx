import type { JSX } from 'preact';
import type { RolloutAnswer, TurnAnswer } from '../answers.ts';
import { counted } from './figures.ts';

/** A recorded conversation. All of it is text: none becomes markup. */
export function Chat({
  rollout,
  withoutPrompt = false,
}: {
  readonly rollout: RolloutAnswer;
  readonly withoutPrompt?: boolean;
}): JSX.Element {
  return (
    <div class="chat">
      {rollout.turns.length === 0 && <p>No turn was finished.</p>}
      {rollout.turns.map((turn, i) => (
        <TurnOf key={i} turn={turn} withoutHeard={withoutPrompt && i === 0} />
      ))}
      {rollout.error !== null && (
        <div class="message failure">
          <span class="role">what went wrong</span>
          <pre class="said">{rollout.error}</pre>
        </div>
      )}
    </div>
  );
}

const roles: Readonly<Record<string, string>> = {
  system: 'system',
  user: 'user',
  assistant: 'assistant',
  tool: 'tool',
};

function TurnOf({ turn, withoutHeard }: { readonly turn: TurnAnswer; readonly withoutHeard: boolean }): JSX.Element {
  const { thought, said } = divided(turn);
  return (
    <>
      {!withoutHeard && turn.prompt !== null && <Message role="prompt" text={turn.prompt} />}
      {!withoutHeard &&
        turn.heard.map(({ role, content, name }, i) =>
          role === 'tool' || role === 'system' ? (
            <details key={i} class={`message ${role}`}>
              <summary>
                <span class="role">{roles[role] ?? role}</span> {name ?? ''} {counted(content.length, 'character')}
              </summary>
              <pre class="said">{content}</pre>
            </details>
          ) : (
            <Message key={i} role={roles[role] ?? role} text={content} />
          ),
        )}
      <div class="message policy">
        <span class="role">
          policy v{turn.version}
          {turn.agent !== undefined && ` as ${turn.agent}`}
          {turn.versionEnd > turn.version && ` to v${turn.versionEnd}`} · {counted(turn.tokens, 'token')}
          {turn.finishReason === 'length' && ' · cut'}
        </span>
        {thought !== null && (
          <details class="thought">
            <summary>reasoning, {counted(thought.length, 'character')}</summary>
            <pre class="said">{thought}</pre>
          </details>
        )}
        <pre class="said">{said === '' ? '(nothing)' : said}</pre>
        {turn.toolCalls.map((call, i) => (
          <details key={i} class="call">
            <summary>calls {call.name}</summary>
            <pre class="said">{call.arguments}</pre>
          </details>
        ))}
      </div>
    </>
  );
}

function Message({ role, text }: { readonly role: string; readonly text: string }): JSX.Element {
  return (
    <div class={`message ${role}`}>
      <span class="role">{role}</span>
      <pre class="said">{text}</pre>
    </div>
  );
}

/** Splits reasoning from the answer: the server's own field, or text in think tags. */
function divided({ text, reasoning }: TurnAnswer): { readonly thought: string | null; readonly said: string } {
  if (reasoning !== null) return { thought: reasoning, said: text };
  const end = text.indexOf('</think>');
  if (end < 0) return text.startsWith('<think>') ? { thought: text.slice(7), said: '' } : { thought: null, said: text };
  return { thought: text.slice(0, end).replace(/^\s*<think>/, ''), said: text.slice(end + 8).trimStart() };
}
