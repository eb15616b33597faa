import { type Change, changed } from '../../core/change-between.ts';
import { eventsIn } from './event-stream.ts';
import { GrownAnswers } from './grown-answers.ts';
import type { OwnToken } from './own-token.ts';
import type { ChatAsked, RunOverview, Steering } from '../answers.ts';

/** Source of the page's answers: a server, or the report's own file. */
export interface Source {
  get<Answer>(path: string): Promise<Answer>;
  /** Sends a steering request; returns the run's description of its effect. */
  steer(run: string, steering: Steering): Promise<string>;
  /** Sends a message to a version of a run; `told` gets the whole answer so far, again and again as it grows. */
  chat(run: string, asked: ChatAsked, told: (text: string) => void, signal: AbortSignal): Promise<void>;
  /** Reports the run's position now, and whenever it changes, until the returned function is called. */
  follow(run: string, told: (news: News) => void): () => void;
}

interface News {
  readonly overview?: RunOverview;
  /** A changed number means news in the run's folder. */
  readonly offset?: number;
  /** Why there is no news at the moment. */
  readonly trouble?: string;
}

/** Pauses before reconnecting: after a stream that was cut off, and after a refusal. */
const [resumeMs, againMs] = [1_000, 2_000];

/** Requests data from this page's server, with the token in each request. */
export function serverSource(token: Pick<OwnToken, 'headers'>): Source {
  const answers = new GrownAnswers();
  return {
    async get<Answer>(path: string): Promise<Answer> {
      const { headers, take } = answers.ask(path);
      const response = await fetch(path, { headers: { ...token.headers, accept: 'application/json', ...headers } });
      const text = await response.text();
      if (response.ok) return take(response.headers, JSON.parse(text)) as Answer;
      throw new Error(messageIn(text) ?? text.trim());
    },
    async steer(run, steering) {
      const response = await fetch(`/api/runs/${encodeURIComponent(run)}/steer`, {
        method: 'POST',
        headers: { ...token.headers, 'content-type': 'application/json' },
        body: JSON.stringify(steering),
      });
      const text = await response.text();
      const message = messageIn(text) ?? text.trim();
      if (!response.ok) throw new Error(message);
      return message;
    },
    async chat(run, asked, told, signal) {
      const response = await fetch(`/api/runs/${encodeURIComponent(run)}/chat`, {
        method: 'POST',
        headers: { ...token.headers, 'content-type': 'application/json' },
        body: JSON.stringify(asked),
        signal,
      });
      if (!response.ok || !response.body) {
        const text = await response.text();
        throw new Error(messageIn(text) ?? text.trim());
      }
      const pieces = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let said = '';
      for (;;) {
        const { done, value } = await pieces.read();
        if (done) return told(said);
        said += value;
        told(said);
      }
    },
    follow(run, told) {
      const left = new AbortController();
      void followOn(run, told, left.signal);
      return () => left.abort();
    },
  };

  /** Reconnects again and again until the page is left. */
  async function followOn(run: string, told: (news: News) => void, signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const wasHeard = await hear(run, told, signal).catch(() => false);
      if (signal.aborted) return;
      told({ trouble: 'The run has not begun yet, or its page is not served any more; asking again.' });
      await new Promise((resolve) => setTimeout(resolve, wasHeard ? resumeMs : againMs));
    }
  }

  /** Resolves when the connection has ended, with whether there was one. */
  async function hear(run: string, told: (news: News) => void, signal: AbortSignal): Promise<boolean> {
    const { headers } = token;
    const response = await fetch(`/api/runs/${encodeURIComponent(run)}/live`, { headers, signal });
    if (!response.ok || !response.body) return false;
    let news: News = {};
    try {
      for await (const { event, data } of eventsIn(response.body)) {
        if (signal.aborted) break;
        if (event === 'run') told((news = JSON.parse(data) as News));
        if (event === 'change') told((news = changed(news, JSON.parse(data) as Change) as News));
        if (event === 'trouble') told({ trouble: (JSON.parse(data) as { message: string }).message });
      }
    } catch {
      // A connection that was cut off counts as ended.
    }
    return true;
  }
}

function messageIn(text: string): string | null {
  try {
    return (JSON.parse(text) as { message?: string }).message ?? null;
  } catch {
    return null;
  }
}
