import { useEffect, useRef, useState } from 'preact/hooks';
import type { ComponentChildren, JSX } from 'preact';

/** Wraps a table that may be wider than the screen, which then scrolls within a labelled region. */
export function Scrolls({
  label,
  children,
}: {
  readonly label: string;
  readonly children: ComponentChildren;
}): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const [isWider, setWider] = useState(false);
  useEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    const look = (): void => setWider(element.scrollWidth > element.clientWidth + 1);
    const watched = new ResizeObserver(look);
    watched.observe(element);
    for (const child of element.children) watched.observe(child);
    look();
    return () => watched.disconnect();
  }, []);
  return (
    <>
      {isWider && <p class="note">This table is wider than the screen: scroll it sideways →</p>}
      <div class="scrolls" ref={place} role="region" aria-label={label} tabIndex={isWider ? 0 : undefined}>
        {children}
      </div>
    </>
  );
}
