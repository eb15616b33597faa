import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { appendFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { loadavg, tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Browser, Page } from 'playwright-core';
import { layout } from '../runs/layout.ts';
import { blockOf, encodeBlock } from '../runs/rollout-index/block.ts';
import { encodeTexts } from '../runs/rollout-index/texts.ts';
import { advance, commitFirst, openRoles, runIn } from '../test/activities/runs.ts';
import { chromiumHere, openBrowser, openPage, seriousFindings } from '../test/ui/browser.ts';
import { type Bench, CannotMeasure, type Figures, measurement } from './measurement.ts';
import { startPage } from './page-server.ts';
import { viewersCost } from './page-viewers.ts';
import { median, round } from './statistics.ts';

/**
 * The page of a run of very many steps and rollouts, in a browser on this machine. The run is made by this script: commits and metrics of all
 * steps, and the index of its rollouts.
 *
 * - `paint_s`, goal < 1: from the address until Chromium's first paint with content (PerformancePaintTiming), of a page without runs; the median of several.
 * - `open_s`, goal < 2: from the address until the curves are drawn, of a server that has just been started.
 * - `filter_ms`, goal < 300: from a filter until the list that it gives is there, the median of several; `filter_max_ms` the longest.
 * - `frames_per_s`, goal 60: while the list is scrolled.
 * - `live_s`, goal < 1: from a commit's metrics in the store until its figure is on the page.
 * - `browser_mb`, goal < 300, and `process_mb`, goal < 500: memory of the page's own process in the browser, and of the server at its most.
 * - `page_kb`, goal < 300: the page without data, unpacked.
 * - `viewers_cpu_ratio` and those beside it: page-viewers.ts.
 * - `violations`, goal 0: what axe-core finds serious, and what the page writes to its console.
 */
export const page = measurement('page', 'how quick the page of a very large run is', measure)
  .option('--steps <n>', 'steps of the run', Number, 10_000)
  .option('--rollouts <n>', 'rollouts of each step', Number, 100)
  .option('--viewers <n>', 'who look at a run that trains; 0: their cost is not measured', Number, 100)
  .option('--pairs <n>', 'turns of that run with and without them', Number, 6)
  .option('--turn <steps>', 'steps of each turn', Number, 8)
  .addHelpText(
    'after',
    '\nGoals: paint_s < 1, open_s < 2, filter_ms < 300, live_s < 1, browser_mb < 300, process_mb < 500, page_kb < 300, viewers_cpu_ratio ≤ 1.05.',
  );

interface Size {
  readonly steps: number;
  readonly rollouts: number;
  readonly viewers: number;
  readonly pairs: number;
  readonly turn: number;
}

const name = 'large';
const paints = 5;

async function measure(bench: Bench, size: Size): Promise<Figures> {
  if (chromiumHere === undefined) throw new CannotMeasure('There is no Chromium here: apt-get install chromium.');
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-page-'));
  bench.doing(`making a run of ${size.steps} steps`);
  await makeLargeRun(folder, size);
  const { child, url } = await startPage(path.join(folder, name));
  const browser = await openBrowser();
  try {
    bench.doing('the first paint of a page without data');
    const paint_s = await firstPaint(browser, folder);
    bench.doing('in the browser');
    const figures = await look(browser, url, path.join(folder, name, layout.metrics()), size);
    const process_mb = kilobytes(`/proc/${child.pid}/status`, 'VmHWM') / 1024;
    const viewed = size.viewers === 0 ? {} : await viewersCost(bench, { ...size, stepsOfTurn: size.turn });
    return {
      steps: size.steps,
      rollouts: size.steps * size.rollouts,
      paint_s: round(paint_s, 2),
      ...figures,
      ...viewed,
      process_mb: round(process_mb, 0),
      load: round(loadavg()[0]!, 1),
    };
  } finally {
    await browser.close();
    child.kill();
    await rm(folder, { recursive: true, force: true });
  }
}

async function look(browser: Browser, url: string, metrics: string, size: Size): Promise<Figures> {
  const blank = await browser.newPage();
  await blank.goto('about:blank'); // the browser itself is there
  const begunAt = performance.now();
  const { page: shown, complaints } = await openPage(browser, url, { width: 1280, colorScheme: 'light' });
  await shown.locator('.chart canvas').first().waitFor();
  const open_s = (performance.now() - begunAt) / 1000;
  const live_s = await untilShown(shown, metrics, size);
  const violations = await seriousFindings(shown);
  await shown.evaluate(`location.hash = '#/${name}/rollouts'`);
  await shown.locator('.results button').first().waitFor();
  violations.push(...(await seriousFindings(shown)));
  const times: number[] = [];
  for (const filter of filters(size)) times.push(await timeOfFilter(shown, filter));
  const frames_per_s = await scrolled(shown);
  const page_kb = await sizeOf(shown);
  const browser_mb = await memoryOfPage(browser);
  return {
    open_s: round(open_s, 2),
    filter_ms: round(median(times), 0),
    filter_max_ms: round(Math.max(...times), 0),
    frames_per_s: round(frames_per_s, 0),
    live_s: round(live_s, 2),
    browser_mb: round(browser_mb, 0),
    page_kb: round(page_kb, 0),
    violations: violations.length + complaints.length,
    ...(violations.length + complaints.length > 0 ? { found: [...violations, ...complaints] } : {}),
  };
}

/** Time for the page of an empty folder, each time in a fresh browser context. */
async function firstPaint(browser: Browser, folder: string): Promise<number> {
  const empty = path.join(folder, 'empty');
  await mkdir(empty);
  const { child, url } = await startPage(empty);
  try {
    const times: number[] = [];
    for (let i = 0; i < paints; i++) {
      const { page: shown, context } = await openPage(browser, url, { width: 1280, colorScheme: 'light' });
      await shown.getByText('There are no runs here.').waitFor();
      // It is written down once the frame is on the screen.
      const paint = `new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))
        .then(() => performance.getEntriesByName('first-contentful-paint')[0].startTime)`;
      times.push((await shown.evaluate<number>(paint)) / 1000);
      await context.close();
    }
    return median(times);
  } finally {
    child.kill();
  }
}

function filters({ steps }: Size): string[] {
  const middle = Math.floor(steps / 2);
  return [
    'outcome=truncated',
    'reward=0.9..1',
    'environment=words-2&order=reward',
    `step=${middle}..${middle + 10}`,
    'end=filtered%3Atoo_easy&order=-reward',
    'reward=0..0.1&order=tokens',
    'text=needle',
    `version=${middle}`,
  ];
}

/** In the page: from the address until the list's line says what was found. */
async function timeOfFilter(shown: Page, filter: string): Promise<number> {
  return shown.evaluate<number>(`new Promise((resolve) => {
    const line = document.querySelector('.finder [role=status]');
    const before = line.textContent;
    const begunAt = performance.now();
    const watched = new MutationObserver(() => {
      if (line.textContent === before) return;
      watched.disconnect();
      requestAnimationFrame(() => resolve(performance.now() - begunAt));
    });
    watched.observe(line, { characterData: true, childList: true, subtree: true });
    location.hash = '#/${name}/rollouts?${filter}';
  })`);
}

async function scrolled(shown: Page): Promise<number> {
  await shown.evaluate(`location.hash = '#/${name}/rollouts'`);
  await delay(500);
  return shown.evaluate<number>(`new Promise((resolve) => {
    let frames = 0;
    const begunAt = performance.now();
    const step = () => {
      frames += 1;
      scrollBy(0, 20);
      const passed = performance.now() - begunAt;
      if (passed > 2000) resolve((frames * 1000) / passed);
      else requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  })`);
}

async function untilShown(shown: Page, metrics: string, { steps }: Size): Promise<number> {
  const row = { step: steps, lineage: 'main', time: new Date().toISOString(), 'train/learning_rate': 0.5 };
  const before = await shown.locator('.chart', { hasText: 'learning rate' }).locator('.values').innerText();
  await appendFile(metrics, `${JSON.stringify(row)}\n`);
  const begunAt = performance.now();
  // Not by waitForFunction, which makes code of a text: the policy of the page forbids that.
  await shown.evaluate(`new Promise((resolve) => {
    const chart = [...document.querySelectorAll('.chart')].find((one) => one.textContent.includes('learning rate'));
    const look = () =>
      chart.querySelector('.values').innerText === ${JSON.stringify(before)} ? setTimeout(look, 10) : resolve();
    look();
  })`);
  return (performance.now() - begunAt) / 1000;
}

async function sizeOf(shown: Page): Promise<number> {
  const bytes = await shown.evaluate<number>(
    `Promise.all(['/', '/page.js', '/page.css'].map((path) => fetch(path).then((got) => got.arrayBuffer())))
      .then((all) => all.reduce((sum, one) => sum + one.byteLength, 0))`,
  );
  return bytes / 1000;
}

/** Private memory of the largest process that renders pages. */
async function memoryOfPage(browser: Browser): Promise<number> {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send('SystemInfo.getProcessInfo');
  const pages = processInfo.filter(({ type }) => type === 'renderer');
  return Math.max(...pages.map(({ id }) => kilobytes(`/proc/${id}/smaps_rollup`, 'Pss') / 1024));
}

function kilobytes(file: string, field: string): number {
  return Number(new RegExp(`^${field}:\\s+(\\d+) kB`, 'm').exec(readFileSync(file, 'utf8'))?.[1] ?? Number.NaN);
}

/** The second commit of a real run, over and over, each with its number. */
async function makeLargeRun(folder: string, { steps, rollouts }: Size): Promise<void> {
  const run = await runIn(folder, { max_steps: String(2 * steps) }, name);
  await run.store.put(layout.run(), Buffer.from(JSON.stringify({ schemaVersion: 1, name, spec: run.spec })));
  const roles = openRoles();
  await advance(run, roles, await commitFirst(run, roles));
  const model = JSON.parse(Buffer.from((await run.store.read(layout.commit('main', 1)))!).toString('utf8')) as {
    readonly state: object;
  };
  const place = (key: string): string => path.join(run.folder, key);
  const begin = Date.parse('2026-01-01T00:00:00Z');
  let parent = createHash('sha256')
    .update((await run.store.read(layout.commit('main', 1)))!)
    .digest('hex');
  const rows: string[] = [];
  for (let step = 1; step <= steps; step++) {
    const committedAt = new Date(begin + step * 30_000).toISOString();
    if (step > 1) {
      const text = JSON.stringify({ ...model, step, parent, committedAt, state: { ...model.state, step } });
      await writeFile(place(layout.commit('main', step)), text);
      parent = createHash('sha256').update(text).digest('hex');
    }
    rows.push(JSON.stringify({ step, lineage: 'main', time: committedAt, ...metricsOf(step, steps) }));
  }
  await writeFile(place(layout.metrics()), `${rows.join('\n')}\n`);
  await mkdir(place(layout.rolloutIndex('main')), { recursive: true });
  for (let first = 0; first <= steps; first += first === 0 ? 1 : 64)
    await writeBlock(place, first, first === 0 ? 0 : Math.min(steps, first + 63), rollouts);
}

/** Metrics of a typical run with one environment, with some noise. */
function metricsOf(step: number, steps: number): Record<string, number> {
  const noise = (seed: number): number => Math.abs(Math.sin(step * 12.9898 + seed * 78.233)) % 1;
  const named = {
    'train/reward': 0.2 + (0.6 * step) / steps + 0.1 * noise(1),
    'train/loss': noise(2) - 0.5,
    entropy: 2 - step / steps + 0.1 * noise(3),
    'train/kl_divergence': (0.1 * step) / steps,
    mismatch_kl: 0.001 * noise(4),
    'train/learning_rate': 1e-3,
    'time/step': 30,
    'off_policy/mean': noise(5),
    'off_policy/max': 2,
    grad_norm: noise(6),
    'train/agg/all/num_output_tokens/mean': 200 + 100 * noise(7),
    'train/agg/all/num_output_tokens/max': 400,
    'train/agg/all/is_truncated/mean': 0.1 * noise(8),
    'train/agg/all/solved_all': 0.3 * noise(9),
    'train/agg/all/solved_none': 0.3 * noise(10),
    'train/agg/all/solved_some': 0.4,
    ...(step % 97 === 0 ? { 'recovery/count': 1, 'lost/rollouts': 3, 'lost/seconds': 4 } : {}),
  };
  const others = Array.from({ length: 60 }, (_, i) => [`other/metric_${i}`, noise(i + 20)] as const);
  return { ...named, ...Object.fromEntries(others) };
}

async function writeBlock(
  place: (key: string) => string,
  first: number,
  last: number,
  rollouts: number,
): Promise<void> {
  const rows = [];
  const texts = [];
  for (let step = first; step <= last && step > 0; step++) {
    for (let i = 0; i < rollouts; i++) {
      const [group, number] = [step * 100 + Math.floor(i / 8), (step * 7919 + i * 104_729) % 1_000];
      rows.push({
        step,
        group,
        index: i % 8,
        environment: `words-${i % 4}`,
        exampleId: number,
        outcome: number % 20 === 0 ? 'truncated' : number % 50 === 1 ? 'infra_failure' : 'ok',
        end: number % 7 === 0 ? 'filtered:too_easy' : 'trained',
        reward: number % 50 === 1 ? null : number / 1_000,
        version: step - 1,
        versionEnd: step - 1,
        tokens: 100 + number,
        turns: 1,
        object: `rollouts/step_${step}/groups_1-2/chunk_1_of_1.scored.jsonl.gz`,
        line: i % 8,
      });
      const word = number === 777 ? 'needle' : `word${number}`;
      texts.push({
        asked: `Turn round: ${word} ${step}`,
        said: `It is ${word} ${number * step} turned round, I think.`,
      });
    }
  }
  const { bytes, segments } = await encodeTexts(texts);
  await writeFile(place(layout.indexBlock('main', first, last, 'columns')), encodeBlock(blockOf(rows, segments)));
  await writeFile(place(layout.indexBlock('main', first, last, 'text')), bytes);
}
