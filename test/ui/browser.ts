import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import os from 'node:os';
import path from 'node:path';
import { type Browser, type BrowserContext, chromium, type Page } from 'playwright-core';
import { emptyHome } from '../../setup/clean-room.mjs';

const defaultPlaces = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'];

/** The system's own Chromium, or the one that CHROMIUM names. */
export const chromiumHere = [process.env['CHROMIUM'] ?? '', ...defaultPlaces].find(
  (file) => file !== '' && existsSync(file),
);
export const withoutChromium =
  chromiumHere === undefined ? 'no Chromium here (apt-get install chromium, or set CHROMIUM)' : false;

/** In a home of its own, as it writes there. */
export async function openBrowser(): Promise<Browser> {
  const room = mkdtempSync(path.join(os.tmpdir(), 'ratchet-browser-'));
  const env = { ...process.env, ...emptyHome(room) };
  const browser = await chromium.launch({ executablePath: chromiumHere!, args: ['--no-sandbox', '--disable-gpu'], env }); // prettier-ignore
  browser.once('disconnected', () => rmSync(room, { recursive: true, force: true }));
  return browser;
}

export interface Opened {
  readonly page: Page;
  readonly context: BrowserContext;
  /** Errors that the page threw, or wrote to its console. */
  readonly complaints: string[];
}

export async function openPage(
  browser: Browser,
  url: string,
  { width, colorScheme }: { readonly width: number; readonly colorScheme: 'light' | 'dark' },
): Promise<Opened> {
  // axe looks at the page from inside of it: that alone needs what the policy of the page forbids.
  const context = await browser.newContext({ viewport: { width, height: width < 600 ? 844 : 900 }, colorScheme });
  const page = await context.newPage();
  const complaints: string[] = [];
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(String(error)));
  await page.goto(url);
  return { page, context, complaints };
}

const axeSource = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

interface Finding {
  readonly id: string;
  readonly impact: string | null;
  readonly nodes: readonly { readonly html: string; readonly failureSummary?: string }[];
}

/** Findings of axe-core that are serious or worse, one line each. */
export async function seriousFindings(page: Page): Promise<string[]> {
  // Run by the debugger, which the page's security policy does not restrict.
  const session = await page.context().newCDPSession(page);
  await session.send('Runtime.evaluate', { expression: `${axeSource};0` });
  const { result } = await session.send('Runtime.evaluate', {
    expression: 'axe.run().then(({ violations }) => JSON.stringify(violations))',
    awaitPromise: true,
  });
  await session.detach();
  return (JSON.parse(String(result.value)) as Finding[])
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary = '' }) => `${id}: ${html} ${failureSummary}`));
}

/** A picture for people, where RATCHET_PICTURES names a folder for them. */
export async function picture(page: Page, name: string): Promise<void> {
  const folder = process.env['RATCHET_PICTURES'];
  if (folder) await page.screenshot({ path: path.join(folder, `${name}.png`), fullPage: false });
}
