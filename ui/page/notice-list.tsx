import type { JSX } from 'preact';
import type { NoticeLine } from '../answers.ts';
import { clock } from './figures.ts';

/** People's notes on the run, and its own notices, newest first. */
export function NoticeList({
  notices,
  of,
}: {
  readonly notices: readonly NoticeLine[];
  readonly of: number;
}): JSX.Element | null {
  if (notices.length === 0) return null;
  return (
    <section class="notices" aria-labelledby="notices">
      <h2 id="notices">Notices</h2>
      <ol aria-live="polite">
        {notices.toReversed().map(({ id, kind, step, time, text }) => (
          <li key={id} class={kind === 'note' ? 'of-people' : 'of-the-run'}>
            <small>
              <b>{kind.replace('-', ' ')}</b> · step {step} · {clock(time)}
            </small>
            <p>{text}</p>
          </li>
        ))}
      </ol>
      {of > notices.length && (
        <p class="note">
          The newest {notices.length} of {of}; the others are below, at what happened.
        </p>
      )}
    </section>
  );
}
