import { type Change, changed } from '../../core/change-between.ts';
import { GrownAnswers } from './grown-answers.ts';
import type { ChatAsked, RunOverview, Steering } from '../answers.ts';

/** Where the page's answers come from: a server, or the file that it is itself. */
export interface Source {
  get<Answer>(path: string): Promise<Answer>;
  /** Asks a run to do something; what it says it did. */
  steer(run: string, steering: Steering): Promise<string>;
  /** Says something to a version of a run; tells all of its answer again and again as it grows. */
  chat(run: string, asked: ChatAsked, told: (text: string) => void, signal: AbortSignal): Promise<void>;
  /** Tells where a run stands now, and again whenever that changes, until the returned function is called. */
  follow(run: string, told: (news: News) => void): () => void;
}

export interface News {
  readonly overview?: RunOverview;
  /** Another number: there is something new in the run's folder. */
  readonly offset?: number;
  /** Why nothing can be told at the moment. */
  readonly trouble?: string;
}

const againMs = 2_000;

export function serverSource(): Source {
  const answers = new GrownAnswers();
  return {
    async get<Answer>(path: string): Promise<Answer> {
      const { headers, take } = answers.ask(path);
      const response = await fetch(path, { headers: { accept: 'application/json', ...headers } });
      const text = await response.text();
      if (response.ok) return take(response.headers, JSON.parse(text)) as Answer;
      throw new Error(messageIn(text) ?? text.trim());
    },
    async steer(run, steering) {
      const response = await fetch(`/api/runs/${encodeURIComponent(run)}/steer`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
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
        headers: { 'content-type': 'application/json' },
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
      let events: EventSource;
      let timer: ReturnType<typeof setTimeout> | undefined;
      let news: News = {};
      const tell = (now: News): void => told((news = now));
      const open = (): void => {
        events = new EventSource(`/api/runs/${encodeURIComponent(run)}/live`);
        events.addEventListener('run', ({ data }: MessageEvent<string>) => tell(JSON.parse(data) as News));
        events.addEventListener('change', ({ data }: MessageEvent<string>) =>
          tell(changed(news, JSON.parse(data) as Change) as News),
        );
        events.addEventListener('trouble', ({ data }: MessageEvent<string>) =>
          told({ trouble: (JSON.parse(data) as { message: string }).message }),
        );
        events.addEventListener('error', () => {
          told({ trouble: 'The run has not begun yet, or its page is not served any more; asking again.' });
          // A connection that was lost is made again by the browser; one that was refused is not.
          if (events.readyState === EventSource.CLOSED) timer = setTimeout(open, againMs);
        });
      };
      open();
      return () => {
        clearTimeout(timer);
        events.close();
      };
    },
  };
}

function messageIn(text: string): string | null {
  try {
    return (JSON.parse(text) as { message?: string }).message ?? null;
  } catch {
    return null;
  }
}
