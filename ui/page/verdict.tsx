import type { JSX } from 'preact';

/** Right or wrong by its reward, as `solved` is counted in metrics; a reward between 0 and 1 has no mark. */
export function Verdict({ reward }: { readonly reward: number | null }): JSX.Element | null {
  if (reward === null || (reward > 0 && reward < 1)) return null;
  const isRight = reward >= 1;
  return (
    <span class={isRight ? 'right' : 'wrong'} role="img" aria-label={isRight ? 'right' : 'wrong'}>
      {isRight ? '✓' : '✗'}
    </span>
  );
}
