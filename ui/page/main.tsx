import { render } from 'preact';
import type { PageSettings } from '../answers.ts';
import { App } from './app.tsx';
import { reportSource } from './report-source.ts';
import { serverSource } from './source.ts';

const settings = JSON.parse(document.getElementById('settings')?.textContent ?? '{}') as PageSettings;
const place = document.getElementById('page')!;
place.textContent = '';
render(<App settings={settings} source={settings.isReport ? reportSource() : serverSource()} />, place);
