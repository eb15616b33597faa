import { render } from 'preact';
import type { PageSettings } from '../answers.ts';
import { App } from './app.tsx';
import { comparisonOf } from './hooks.ts';
import { OwnToken } from './own-token.ts';
import { reportSource } from './report-source.ts';
import { serverSource } from './source.ts';

const place = document.getElementById('page')!;
const inFile = document.getElementById('settings')?.textContent;

async function open(): Promise<void> {
  if (inFile) return show(JSON.parse(inFile) as PageSettings, reportSource());
  const source = serverSource(await OwnToken.take());
  const settings = await source.get<PageSettings>('/api/settings');
  if (settings.compare.length > 0 && location.hash === '')
    history.replaceState(null, '', comparisonOf(settings.compare));
  show(settings, source);
}

function show(settings: PageSettings, source: ReturnType<typeof reportSource>): void {
  place.textContent = '';
  render(<App settings={settings} source={source} />, place);
}

open().catch((error: unknown) => {
  place.textContent = '';
  const message = error instanceof Error ? error.message : String(error);
  render(
    <main>
      <p role="alert">{message}</p>
    </main>,
    place,
  );
});
