/** The page in a browser: every view on a run with faults, wide and narrow, light and dark. */
import assert from 'node:assert/strict';
import { cp, readFile, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { after, before, describe, test, type TestContext } from 'node:test';
import { pathToFileURL } from 'node:url';
import type { Browser, Page } from 'playwright-core';
import { Pool } from '../../core/fleet/pool.ts';
import type { FoundPool } from '../../core/fleet/pool-types.ts';
import { makeReport } from '../../ui/report.ts';
import { servePage } from '../../ui/serve.ts';
import { writeNote, writePause } from '../../runs/metrics/notices.ts';
import { decodeRows } from '../../store/objects.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import { layout } from '../../runs/layout.ts';
import { playing } from './rollouts-in-play.ts';
import { openBrowser, openPage, picture, seriousFindings, withoutChromium } from './browser.ts';
import type { RunEvent, RunStatus } from '../../workflows/control/messages.ts';
import { tokenOf } from './page-token.ts';
import { harmful, recordedRun, rewound, searched, severalAgents, unruly } from './recorded-run.ts';

const looks = [
  { width: 1280, colorScheme: 'light' },
  { width: 1280, colorScheme: 'dark' },
  { width: 390, colorScheme: 'light' },
  { width: 390, colorScheme: 'dark' },
] as const;

const since = '2026-11-26T10:01:00Z';
const runningStatus = {
  phase: 'training',
  step: 6,
  maxSteps: 12,
  pausedBecause: null,
  waitingOn: [{ what: 'scores of group 7', since }],
  warnings: ['a warning'],
  attempt: 1,
  progress: {
    collecting: {
      step: 7,
      round: 1,
      doing: 'generate',
      policyStep: 6,
      rollouts: { done: 3, of: 8 },
      needed: 2,
      kept: 1,
      dropped: { too_easy: 1 },
    },
    inPlay: [],
    training: { step: 7, from: 'v6', rows: 8, since },
  },
  prompts: [
    {
      environment: 'reverse-text',
      inUse: null,
      offered: { ref: { key: 'prompts/x.txt', sha256: 'x', bytes: 1 }, foundAt: 4 },
      branch: {
        step: 5,
        since,
        workflow: 'recorded.gepa.reverse-text.v5',
        trial: { leases: 2, rollouts: 5, waiting: 0, reflections: 0 },
      },
    },
  ],
} satisfies Partial<RunStatus> as unknown as RunStatus;

const refusal: RunEvent = {
  sequence: 1,
  time: since,
  kind: 'refused',
  step: 5,
  text: `a loss that is not finite: ${harmful[0]}`,
  values: {},
};

/** Two pools: one at work, and one whose workflow does not answer. */
function fleetOf(): FoundPool[] {
  const began = Date.parse(since);
  const pool = new Pool('gpus', {}, began);
  for (const trainer of ['node-1-4711-a1b2c3', 'node-2-4712-d4e5f6', 'node-3-4713-778899'])
    pool.trainer({ trainer, labels: trainer.startsWith('node-3') ? { gpu: 'l4' } : { gpu: 'h100' }, heldBy: null, leaves: false }, began); // prettier-ignore
  const asks = { told: 1, priority: 0, labels: { gpu: 'h100' }, startAt: null, turn: 0, state: 'waits', trainer: null, lost: null } as const; // prettier-ignore
  for (const [run, team] of [
    ['recorded', 'research'],
    ['elsewhere', 'product'],
    [`waits ${harmful[0]}`, 'research'],
  ] as const) {
    pool.run({ ...asks, run, team }, began);
    pool.decide(began);
  }
  const workers = [{ worker: '1201@node-4', plays: ['recorded', 'elsewhere'] }, { worker: '1202@node-4', plays: [] }]; // prettier-ignore
  const played = [{ workflow: 'reverse-text.nightly', kind: 'evaluation', since: began, waitsFor: 'a rollout worker that has room' }] as const; // prettier-ignore
  return [
    { ...pool.status(began + 90_000), gone: ['node-3-4713-778899'], workers, played },
    { pool: 'spare', trouble: 'no poller' },
  ];
}

describe('the page in a browser', { skip: withoutChromium }, () => {
  let browser: Browser;
  before(async () => {
    browser = await openBrowser();
  });
  after(() => browser.close());

  async function served(t: TestContext, { isRewound = true } = {}) {
    const run = await recordedRun(t);
    await searched(run);
    await writeNote(run.run, `the judge was moved to another server ${harmful[0]}`);
    await writePause(run.run, 'breaker: 10 groups in a row failed for step 7: 40 × infra_failure');
    if (isRewound) await rewound(run);
    const page = await servePage({ store: run.run.store, run: null, port: 0, ask: () => Promise.resolve(null) });
    t.after(() => page.close());
    return { run, url: page.url };
  }

  test('shows every view without a complaint, and as people with other senses need it', async (t) => {
    const { url } = await served(t);
    for (const look of looks) {
      const { page, context, complaints } = await openPage(browser, url, look);
      const name = `${look.width}-${look.colorScheme}`;
      const check = async (view: string): Promise<void> => {
        await picture(page, `${view}-${name}`);
        assert.deepEqual(await seriousFindings(page), [], `${view} ${name}`);
        const wide = await page.evaluate<number>('document.documentElement.scrollWidth - innerWidth');
        assert(wide <= 0, `${view} ${name} is ${wide} pixels too wide`);
      };
      await page.getByRole('link', { name: 'recorded' }).waitFor();
      await check('runs');
      await page.getByRole('link', { name: 'recorded' }).click();
      await page.locator('.chart canvas').first().waitFor();
      await page.locator('.timeline svg').first().waitFor();
      await check('run');
      await page.locator('#timeline').scrollIntoViewIfNeeded();
      await picture(page, `timeline-${name}`);
      await page.getByRole('link', { name: 'Rollouts', exact: true }).click();
      await page.locator('.results button').first().waitFor();
      await check('rollouts');
      await page.locator('.results button').first().click();
      await page.locator('.chat .message').first().waitFor();
      await check('group');
      for (const [view, wait] of [
        ['side by side', '.beside article'],
        ['tokens', '.token-text span'],
        ['over training', '.group table tbody tr'],
      ] as const) {
        await page.getByRole('button', { name: view, exact: true }).click();
        await page.locator(wait).first().waitFor();
        await check(view.replaceAll(' ', '-'));
        if (view !== 'tokens') continue;
        for (const [by, meaning] of [
          ['entropy', 'as the trainer computed it'],
          ['trainer', 'from the sampler’s'],
        ] as const) {
          await page.getByLabel('coloured by').selectOption(by);
          await page.getByText(meaning).waitFor();
          assert((await page.locator('.token-text span[class^=hot-]').count()) > 0, by);
          await check(`tokens-${by}`);
        }
      }
      for (const [view, wait] of [
        ['Ledger', '.histogram svg'],
        ['Evals', 'h2'],
        ['Prompts', '.tree button'],
        ['Compare', 'h2'],
      ] as const) {
        await page.getByRole('link', { name: view, exact: true }).click();
        await page.locator(wait).first().waitFor();
        await check(view.toLowerCase());
      }
      assert.deepEqual(complaints, [], name);
      await context.close();
    }
  });

  test('shows as text what a model, a tool and a failure said, also in the list, and nothing of it becomes code', async (t) => {
    const { url } = await served(t, { isRewound: false });
    const { page, context, complaints } = await openPage(browser, url, looks[0]);
    await page.getByRole('link', { name: 'recorded' }).click();
    await page.getByText(harmful[0]).first().waitFor();
    await page.getByRole('link', { name: 'Rollouts', exact: true }).click();
    await page.getByLabel('text', { exact: true }).fill('onerror');
    await page.getByText(/found in \d+ rollouts/).waitFor();
    // Signs that turn the direction of writing end with the text that has them.
    const isolated = `getComputedStyle(document.querySelector('.said-short')).unicodeBidi`;
    assert.equal(await page.evaluate<string>(isolated), 'isolate');
    await page.locator('.results button').first().click();
    await page.locator('.chat .policy').first().waitFor();
    for (const index of [0, 1, 2, 3]) {
      await page.locator('.siblings button').nth(index).click();
      await page.locator('.chat details').first().waitFor();
      for (const fold of await page.locator('.chat details').all()) await fold.evaluate((one) => (one.open = true));
      const said = await page.locator('.chat').innerText();
      for (const text of [harmful[index]!, harmful[1], harmful[0], harmful[2]])
        assert(said.includes(text.trim()), `${text} in ${said}`);
      await picture(page, `harm-${index}`);
    }
    await page.getByRole('button', { name: 'tokens', exact: true }).click();
    await page.locator('.token-text span').first().waitFor();
    assert.equal(await page.locator('main img, main script, main svg[onload]').count(), 0);
    assert.match(await page.title(), /Ratchet/);
    assert.deepEqual(complaints, []);
    await context.close();
  });

  test('lists rollouts in play, and shows one turn by turn with what its program did, as text', async (t) => {
    const { run, url } = await served(t, { isRewound: false });
    await playing(run);
    for (const look of looks) {
      const { page, context, complaints } = await openPage(browser, url, look);
      await page.getByRole('link', { name: 'recorded' }).click();
      await page.getByRole('link', { name: 'In play', exact: true }).click();
      await page.getByText('2 rollouts on 1 worker').waitFor();
      await page.getByRole('link', { name: '90/1', exact: true }).click();
      await page.getByText('tokens 120 of 500').waitFor();
      const said = await page.locator('main').innerText();
      for (const text of [harmful[0], harmful[1], harmful[2], 'once', 'namespace ratchet-7', 'sampled', '0.25'])
        assert(said.includes(text), `${text} in ${said}`);
      assert.equal(await page.locator('main img, main script, main svg[onload]').count(), 0);
      const name = `playing-${look.width}-${look.colorScheme}`;
      await picture(page, name);
      assert.deepEqual(await seriousFindings(page), [], name);
      const wide = await page.evaluate<number>('document.documentElement.scrollWidth - innerWidth');
      assert(wide <= 0, `${name} is ${wide} pixels too wide`);
      await page.getByRole('link', { name: 'close', exact: true }).click();
      await page.getByText('Rollout 90/1').waitFor({ state: 'detached' });
      assert.deepEqual(complaints, [], name);
      await context.close();
    }
  });

  test('shows the fleet: what machines do, who waits for what, and what teams have had', async (t) => {
    const run = await recordedRun(t);
    const pools = () => Promise.resolve(fleetOf());
    const server = await servePage({
      store: run.run.store,
      run: null,
      port: 0,
      ask: () => Promise.resolve(null),
      pools,
    });
    t.after(() => server.close());
    for (const look of looks) {
      const { page, context, complaints } = await openPage(browser, server.url, look);
      await page.getByRole('link', { name: 'Fleet' }).click();
      await page.getByRole('heading', { name: 'gpus' }).waitFor();
      const said = (await page.locator('main').textContent())!;
      for (const text of [
        'recorded',
        'all 2 trainers that fit are held',
        'gone',
        'gpu=h100',
        'plays for recorded',
        'waits for work',
        'a rollout worker that has room',
        'no poller',
        harmful[0],
      ])
        assert(said.includes(text), `${text} in ${said}`);
      assert.equal(await page.locator('main img, main script').count(), 0);
      await page.getByRole('link', { name: 'recorded' }).waitFor(); // a run of this folder, and the only one
      assert.equal(await page.locator('main a').count(), 1);
      const name = `fleet-${look.width}-${look.colorScheme}`;
      await picture(page, name);
      assert.deepEqual(await seriousFindings(page), [], name);
      const wide = await page.evaluate<number>('document.documentElement.scrollWidth - innerWidth');
      assert(wide <= 0, `${name} is ${wide} pixels too wide`);
      assert.deepEqual(complaints, [], name);
      await context.close();
    }
  });

  test('shows episodes of several agents, and stays in shape whatever they said', async (t) => {
    const { run } = await severalAgents(t);
    const server = await servePage({ store: run.store, run: 'agents', port: 0, ask: () => Promise.resolve(null) });
    t.after(() => server.close());
    for (const look of looks) {
      const { page, context, complaints } = await openPage(browser, server.url, look);
      const check = async (view: string): Promise<void> => {
        const name = `agents-${view}-${look.width}-${look.colorScheme}`;
        await picture(page, name);
        assert.deepEqual(await seriousFindings(page), [], name);
        for (const of of ['document.documentElement', 'document.querySelector(".group")']) {
          const wide = await page.evaluate<number>(`${of} ? ${of}.scrollWidth - ${of}.clientWidth : 0`);
          assert(wide <= 0, `${name}: ${of} is ${wide} pixels too wide`);
        }
      };
      await page.locator('.chart canvas').first().waitFor();
      await page.getByRole('link', { name: 'Rollouts', exact: true }).click();
      await page.locator('.results button').first().click();
      await page.locator('.siblings button').nth(3).click();
      await page.locator('.message.failure', { hasText: unruly.word }).waitFor();
      await check('failure');
      await page.locator('.siblings button').nth(1).click();
      await page.getByText('as proposer 2, reward -1, advantage -1').waitFor();
      for (const fold of await page.locator('.chat details').all()) await fold.evaluate((one) => (one.open = true));
      assert((await page.locator('.chat').textContent())!.includes(unruly.word));
      await check('conversation');
      await page.getByRole('button', { name: 'side by side', exact: true }).click();
      await page.locator('.beside article').first().waitFor();
      await check('beside');
      await page.getByRole('button', { name: 'tokens', exact: true }).click();
      await page.getByLabel('coloured by').selectOption('advantage');
      await page.getByText('Each agent’s own for every token').waitFor();
      await check('tokens');
      await page.getByRole('button', { name: 'over training', exact: true }).click();
      await page.locator('.group table tbody tr').first().waitFor();
      await check('over-training');
      assert.deepEqual(complaints, [], `${look.width} ${look.colorScheme}`);
      await context.close();
    }
  });

  test('keeps its secret in this tab: not in the address, in a cookie, or at another port', async (t) => {
    const { url } = await served(t);
    const [token, { origin }] = [tokenOf(url), new URL(url)];
    const heard: string[] = [];
    const other = createServer((request, response) => {
      heard.push(`${request.method} ${request.url} ${JSON.stringify(request.headers)}`);
      const ask = `for (const credentials of ['include', 'omit']) fetch('/mine', { credentials });
        document.title = document.cookie + ' ' + JSON.stringify(sessionStorage) + JSON.stringify(localStorage);`;
      response.writeHead(200, { 'content-type': 'text/html' }).end(`<script>${ask}</script>`);
    });
    await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
    t.after(() => other.close());
    const others = `http://127.0.0.1:${(other.address() as AddressInfo).port}/`;
    const { page, context, complaints } = await openPage(browser, url, looks[0]);
    const sent: string[] = [];
    context.on('request', (request) => sent.push(request.url()));
    const isShown = (tab: Page): Promise<void> => tab.getByRole('link', { name: 'recorded' }).waitFor();
    await isShown(page);
    assert.ok(!page.url().includes(token), page.url());
    assert.equal(
      await page.evaluate('history.length'),
      2,
      'about:blank and the page: the address with the token is none of them',
    );
    assert.deepEqual(await context.cookies(), []);
    await page.reload();
    await isShown(page);
    await page.getByRole('link', { name: 'recorded' }).click();
    await page.locator('.chart canvas').first().waitFor();
    // Opens a new tab by a middle click, and another by typing the address.
    const [clicked] = await Promise.all([
      context.waitForEvent('page'),
      page.getByRole('link', { name: 'Rollouts', exact: true }).click({ button: 'middle' }),
    ]);
    await clicked.locator('.results button').first().waitFor();
    const typed = await context.newPage();
    await typed.goto(`${origin}/#/recorded/ledger`);
    await typed.locator('.histogram svg').first().waitFor();
    await typed.reload();
    await typed.locator('.histogram svg').first().waitFor();
    // Another server on this host, in the same tab and from a page in a frame.
    await page.goto(others);
    await page.waitForFunction('document.title !== ""');
    const title = await page.title();
    await page.goBack();
    await page.locator('.chart canvas').first().waitFor();
    assert.ok(heard.length >= 3, heard.join('\n'));
    for (const seen of [...heard, title, ...sent, page.url()]) assert.ok(!seen.includes(token), seen);
    assert.deepEqual(complaints, []);
    await context.close();
    // Without a token the page says so, and shows nothing else.
    const stranger = await browser.newContext();
    const empty = await stranger.newPage();
    await empty.goto(`${origin}/#/recorded`);
    await empty.getByText('Open the whole address that ratchet printed').waitFor();
    assert.ok(!(await empty.content()).includes('canvas'));
    await stranger.close();
  });

  test('continues by itself after its server was gone, and takes the new address in an old tab', async (t) => {
    const run = await recordedRun(t);
    const options = { store: run.run.store, run: 'recorded', ask: () => Promise.resolve(null) };
    const first = await servePage({ ...options, port: 0 });
    const port = Number(new URL(first.url).port);
    const { page, context } = await openPage(browser, first.url, looks[0]);
    await page.locator('.chart canvas').first().waitFor();
    await first.close();
    await page.getByText('its page is not served any more').waitFor();
    const second = await servePage({ ...options, port });
    t.after(() => second.close());
    const tab = await context.newPage();
    await tab.goto(second.url);
    await tab.locator('.chart canvas').first().waitFor();
    await page.getByText('its page is not served any more').waitFor({ state: 'detached' });
    await context.close();
  });

  test('is used with the keyboard alone, and what is chosen stands in the address', async (t) => {
    const { url } = await served(t);
    const { page, context } = await openPage(browser, url, looks[0]);
    await page.getByRole('link', { name: 'recorded' }).waitFor();
    const press = async (...keys: string[]): Promise<void> => {
      for (const key of keys) await page.keyboard.press(key);
    };
    await press('Tab', 'Enter');
    await page.locator('main:focus').waitFor();
    assert.equal(new URL(page.url()).hash, '', 'the link to the content leads to no run');
    await page.getByRole('link', { name: 'recorded' }).focus();
    await press('Enter');
    await page.locator('.chart canvas').first().waitFor();
    await page.getByRole('link', { name: 'Rollouts', exact: true }).focus();
    await press('Enter');
    await page.locator('.results button').first().waitFor();
    await page.getByLabel('order').focus();
    await press('Tab', 'ArrowDown', 'j', 'ArrowUp', 'Enter');
    await page.locator('.chat .message').first().waitFor();
    const chosen = page.url();
    assert.match(chosen, /group=\d+/);
    const second = await page.locator('.results button').nth(1).getAttribute('aria-current');
    assert.equal(second, 'true');
    await page.reload();
    await page.locator('.chat .message').first().waitFor();
    assert.equal(await page.locator('.results button').nth(1).getAttribute('aria-current'), 'true');
    await page.locator('#group-title').focus();
    await press('Escape');
    await page.locator('.group').waitFor({ state: 'detached' });
    await context.close();
  });

  test('says what a running run waits for, and steers it where it was opened for that', async (t) => {
    const run = await recordedRun(t);
    const told: string[] = [];
    const server = await servePage({
      store: run.run.store,
      run: 'recorded',
      port: 0,
      ask: () => Promise.resolve({ status: runningStatus, events: [refusal], temporalUrl: null }),
      steer: (_, { what, value }) => {
        told.push(`${what} ${value}`);
        return Promise.resolve(`did ${what}`);
      },
      chat: (_, { step, messages }, tell) => {
        for (const piece of [`v${step}, ${messages.length}: `, harmful[0]]) tell(piece);
        return Promise.resolve({ name: 'recorded', end: 'stop' });
      },
    });
    t.after(() => server.close());
    for (const look of [looks[0], looks[3]]) {
      const { page, context, complaints } = await openPage(browser, server.url, look);
      await page.getByText('waits for scores of group 7').waitFor();
      await page.getByText('in play: 5 rollouts in 2 leases, to try what was found').waitFor();
      await page.getByText(`a loss that is not finite: ${harmful[0]}`).waitFor();
      await page.getByRole('button', { name: 'pause', exact: true }).click();
      await page.getByText('did pause').waitFor();
      await page.getByLabel('rewind to step').fill('3');
      await page.getByRole('button', { name: 'rewind', exact: true }).click();
      await page.getByText('goes on from step 3').waitFor();
      await picture(page, `steer-${look.width}`);
      assert.deepEqual(await seriousFindings(page), []);
      await page.getByRole('button', { name: 'do it' }).click();
      await page.getByText('did rewind').waitFor();
      await page.getByLabel('fork at step').fill('4 words-again');
      await page.getByRole('button', { name: 'fork', exact: true }).click();
      await page.getByText('A new run begins at step 4, with the name words-again').waitFor();
      await page.getByRole('button', { name: 'do it' }).click();
      await page.getByText('did fork').waitFor();
      await page.getByRole('button', { name: 'adopt the prompt for reverse-text' }).click();
      await page.getByRole('button', { name: 'do it' }).click();
      await page.getByText('did adopt-prompt').waitFor();
      await page.getByLabel('version', { exact: true }).fill('3');
      for (const count of [1, 3]) {
        await page.getByLabel('what you say').fill('abc');
        await page.getByRole('button', { name: 'say', exact: true }).click();
        await page.getByText(`v3, ${count}: ${harmful[0]}`).waitFor();
      }
      await picture(page, `talk-${look.width}`);
      assert.deepEqual(await seriousFindings(page), []);
      assert.deepEqual(complaints, []);
      await context.close();
    }
    const once = ['pause ', 'rewind 3', 'fork 4 words-again', 'adopt-prompt reverse-text'];
    assert.deepEqual(told, [...once, ...once]);
  });

  test('is the same in a report, which is one file and asks nobody', async (t) => {
    const { run } = await served(t);
    const { html, rollouts, of } = await makeReport(run.run, () => Promise.resolve(null));
    assert.equal(rollouts, of);
    const file = path.join(run.folder, 'report.html');
    await writeFile(file, html);
    for (const look of looks) {
      const { page, context, complaints } = await openPage(browser, pathToFileURL(file).href, look);
      await context.setOffline(true);
      const asked: string[] = [];
      const check = async (view: string): Promise<void> => {
        await picture(page, `report-${view}-${look.width}-${look.colorScheme}`);
        assert.deepEqual(await seriousFindings(page), [], `${view} of a report, ${look.width} ${look.colorScheme}`);
      };
      page.on('request', (request) => asked.push(request.url()));
      await page.locator('.chart canvas').first().waitFor();
      await page.locator('.timeline svg').first().waitFor();
      await page.locator('details.cost summary').click();
      await page.getByText('Not counted:').waitFor();
      await check('run');
      for (const [view, wait] of [
        ['Ledger', '.histogram svg'],
        ['Evals', 'h2'],
        ['Prompts', '.tree button'],
        ['Compare', 'main p'],
      ] as const) {
        await page.getByRole('link', { name: view, exact: true }).click();
        await page.locator(wait).first().waitFor();
        await check(view.toLowerCase());
      }
      await page.getByRole('link', { name: 'Rollouts', exact: true }).click();
      await page.getByLabel('its group').selectOption('any');
      await page.getByLabel('order').selectOption('reward');
      await page.getByLabel('step', { exact: true }).fill('..3');
      await page.getByText(/^24 of \d+ rollouts match/).waitFor();
      await page.locator('.results button').first().click();
      await page.locator('.chat .message').first().waitFor();
      await page.getByRole('button', { name: 'tokens', exact: true }).click();
      await page.locator('.token-text span').first().waitFor();
      await check('tokens');
      assert.deepEqual(complaints, []);
      assert.deepEqual(asked, []);
      await context.close();
    }
  });

  test('compares runs by what they had spent', async (t) => {
    const run = await recordedRun(t);
    const folder = path.dirname(run.folder);
    await cp(run.folder, path.join(folder, 'dearer'), { recursive: true });
    const file = path.join(folder, 'dearer', layout.metrics());
    const rows = (await readFile(file, 'utf8')).replaceAll(
      /"cost\/money":([\d.e-]+)/g,
      (_, money) => `"cost/money":${2 * Number(money)}`,
    );
    await writeFile(file, rows);
    const server = await servePage({ store: run.run.store, run: null, port: 0, ask: () => Promise.resolve(null) });
    t.after(() => server.close());
    for (const look of [looks[0], looks[3]]) {
      const { page, context, complaints } = await openPage(browser, server.url, look);
      await page.goto(`${new URL(server.url).origin}/#/recorded/compare?with=dearer`);
      await page.locator('.chart canvas').first().waitFor();
      await page.getByRole('cell', { name: /^0\.0\d+ EUR, 0\.0\d+ EUR$/ }).waitFor();
      const axis = page.getByRole('combobox', { name: /^by/ });
      for (const by of ['cost', 'millions of tokens']) {
        await axis.selectOption(by);
        await page.getByText(`by ${by}`).first().waitFor();
      }
      assert.doesNotMatch((await axis.textContent())!, /GPU/, 'no step of it says how long it took');
      await axis.selectOption('cost');
      await picture(page, `compare-cost-${look.width}`);
      assert.deepEqual(await seriousFindings(page), []);
      assert.deepEqual(complaints, []);
      await context.close();
    }
  });

  test('opens on what one looks at first, with the rest behind more', async (t) => {
    const { run, url } = await served(t, { isRewound: false });
    const broadcasts = Array.from({ length: 40 }, (_, i) => {
      const time = new Date(Date.parse('2026-11-26T10:00:00Z') + i * 1000).toISOString();
      return `${time} broadcastWeights v${i + 1}: done in 0.01 s\n`;
    });
    const audit = '2026-11-26T10:00:00.000Z auditRun : done in 0.00 s\n';
    await run.store.append(layout.log(1, 'orchestrator'), broadcasts.join('') + audit);
    const groups = await Promise.all(
      (await run.store.list(layout.rounds('main', 6)))
        .filter((key) => layout.isScored(key))
        .map(async (key) => decodeRows<ScoredGroup>((await run.store.read(key))!, key)),
    );
    const answer = groups.flat().find(({ example }) => (example?.answer ?? '') !== '')!.example!.answer;
    for (const look of [looks[0], looks[3]]) {
      const { page, context, complaints } = await openPage(browser, url, look);
      await page.getByRole('link', { name: 'recorded' }).click();
      await page.locator('.charts.large .chart canvas').first().waitFor();
      const titles = await page.locator('.chart .title b').allTextContents();
      assert.ok(
        titles.includes('reward') && titles.every((title) => /^(?:reward|evaluations)$/.test(title)),
        titles.join(),
      );
      await page.locator('details.more summary').click();
      await page.locator('details.more .chart canvas').first().waitFor();
      await picture(page, `more-${look.width}`);
      assert.deepEqual(await seriousFindings(page), []);
      assert.equal(await page.getByRole('checkbox', { name: 'new weights' }).isChecked(), false, '40 are a band');
      await page.getByText('send weights to servers').waitFor();
      assert.equal(await page.getByText('audit the ledger').count(), 0, 'it took no time');
      await page.getByRole('button', { name: 'show all' }).click();
      await page.getByText('audit the ledger').waitFor();
      await page.locator('#timeline').scrollIntoViewIfNeeded();
      await picture(page, `workers-${look.width}`);
      await page.getByRole('link', { name: 'Rollouts', exact: true }).click();
      await page.locator('.results button').first().waitFor();
      assert.equal(await page.getByLabel('its group').inputValue(), 'trained');
      assert.equal(await page.locator('.results', { hasText: 'filtered' }).count(), 0);
      await page.getByText(`expected: ${answer}`).first().waitFor();
      assert.ok((await page.getByRole('img', { name: /^(?:right|wrong)$/ }).count()) > 0);
      await page.locator('.results button').first().click();
      await page.locator('.message.expected').waitFor();
      await picture(page, `expected-${look.width}`);
      assert.deepEqual(await seriousFindings(page), []);
      await page.getByLabel('its group').selectOption('any');
      await page.waitForFunction('location.hash.includes("end=any")');
      assert.deepEqual(complaints, []);
      await context.close();
    }
  });

  test('says on a narrow screen that a table goes on sideways', async (t) => {
    const { run, url } = await served(t, { isRewound: false });
    for (const step of [0, 2, 4, 6]) {
      const place = layout.evaluation('main', 'reverse-text', 'recorded', step);
      const rows = Array.from({ length: 12 }, (_, i) => {
        const [asked, said] = ['user', 'assistant'].map((role) => ({ role, content: 'abc' }));
        return JSON.stringify({ example_id: i, prompt: [asked], completion: [said], reward: (i * step) % 3 ? 1 : 0 });
      });
      await run.store.put(`${place}results.jsonl`, Buffer.from(`${rows.join('\n')}\n`));
      await run.store.put(`${place}metadata.json`, Buffer.from(JSON.stringify({ env_id: 'reverse-text', model: 'm' })));
    }
    for (const look of [looks[0], looks[3]]) {
      const { page, context, complaints } = await openPage(browser, url, look);
      await page.goto(`${new URL(url).origin}/#/recorded/evals`);
      const results = page.getByRole('region', { name: 'results' });
      await results.locator('svg').first().waitFor();
      const isWider = await results.evaluate((element) => element.scrollWidth > element.clientWidth + 1);
      await page.getByText('scroll it sideways').waitFor({ state: isWider ? 'visible' : 'detached' });
      // The marks themselves are in sight without it.
      const right = await results
        .locator('svg')
        .evaluateAll((all) => Math.max(...all.map((one) => one.getBoundingClientRect().right)));
      assert.ok(right <= look.width, `${right} of ${look.width}`);
      await picture(page, `evals-${look.width}`);
      assert.deepEqual(await seriousFindings(page), []);
      await page.setViewportSize({ width: 240, height: 844 });
      await page.getByText('scroll it sideways').waitFor();
      assert.deepEqual(complaints, []);
      await context.close();
    }
  });

  test('compares as many runs as there are: means over seeds with a band, and a row for each with what differs', async (t) => {
    const run = await recordedRun(t);
    const folder = path.dirname(run.folder);
    const metrics = await readFile(path.join(run.folder, layout.metrics()), 'utf8');
    for (let i = 1; i <= 27; i++) {
      const own = path.join(folder, `lr-${String(i).padStart(2, '0')}`);
      await cp(run.folder, own, { recursive: true });
      const scaled = metrics.replaceAll(/"train\/reward":([\d.e-]+)/g, (_, reward) => {
        return `"train/reward":${Number(reward) * (1 + i / 27)}`;
      });
      await writeFile(path.join(own, layout.metrics()), scaled);
    }
    const server = await servePage({ store: run.run.store, run: null, port: 0, ask: () => Promise.resolve(null) });
    t.after(() => server.close());
    for (const look of [looks[0], looks[3]]) {
      const { page, context, complaints } = await openPage(browser, server.url, look);
      // Their stored settings are the same: they are copies.
      await page.route('**/api/runs/*/settings', async (route) => {
        const i = Number(/lr-(\d+)/.exec(route.request().url())?.[1] ?? 0);
        const settings = (await (await route.fetch()).json()) as Record<string, string>;
        const rate = String(Math.ceil(i / 3) / 1000);
        await route.fulfill({ json: { ...settings, seed: String(i % 3), learning_rate: rate } });
      });
      await page.getByLabel('names that begin with').fill('lr-');
      await page.getByRole('link', { name: 'compare 27 runs' }).click();
      assert.equal(new URL(page.url()).hash, '#/compare?run=lr-*');
      await page.getByText('27 runs.').waitFor();
      await page.locator('.chart canvas').first().waitFor();
      const rows = page.locator('table.compared tbody tr');
      await page.getByText('reading:').waitFor({ state: 'detached' });
      assert.equal(await rows.count(), 9);
      const heads = await page.locator('table.compared thead th').allTextContents();
      assert.deepEqual(heads.slice(0, 3), ['run', 'learning_rate', 'seed']);
      assert.ok(heads.includes('reward') && heads.includes('evaluation, reverse-text'), heads.join());
      assert.match((await rows.first().textContent())!, /^lr-01 lr-02 lr-03 0\.0011, 2, 0.* ± /);
      await page.getByText('A band is one standard error').waitFor();
      // By a click the greatest is the first; its line is told before the others while one is there.
      await page.getByRole('button', { name: 'learning_rate' }).click();
      assert.match((await rows.first().textContent())!, /^lr-25 lr-26 lr-27 /);
      await rows.first().getByRole('link', { name: 'lr-25' }).focus();
      await page.locator('tr.focused', { hasText: 'lr-25' }).waitFor();
      await picture(page, `compare-27-${look.width}`);
      await page.getByLabel('mean over seeds').uncheck();
      await rows.nth(26).waitFor();
      assert.equal(await page.locator('.chart').first().locator('.dot').count(), 0, 'of 27 lines none is named');
      await rows.first().getByRole('link').focus();
      await page.locator('.chart').first().locator('.dot').waitFor();
      await picture(page, `compare-27-single-${look.width}`);
      assert.deepEqual(await seriousFindings(page), []);
      await page.getByRole('textbox', { name: /^runs/ }).fill('lr-01, lr-02 nobody');
      await page.getByRole('button', { name: 'compare', exact: true }).click();
      await page.getByText('Not here, or not begun: nobody').waitFor();
      await rows.nth(2).waitFor({ state: 'detached' });
      await rows.getByRole('link', { name: 'lr-02' }).click();
      await page.locator('.progress').first().waitFor();
      assert.equal(new URL(page.url()).hash, '#/lr-02');
      assert.deepEqual(complaints, []);
      await context.close();
    }
  });

  test('opens on the runs that it was asked for, and a run named compare keeps its page', async (t) => {
    const run = await recordedRun(t);
    await cp(run.folder, path.join(path.dirname(run.folder), 'compare'), { recursive: true });
    const compare = ['recorded', 'comp*'];
    const server = await servePage({
      store: run.run.store,
      run: null,
      compare,
      port: 0,
      ask: () => Promise.resolve(null),
    });
    t.after(() => server.close());
    const { page, context, complaints } = await openPage(browser, server.url, looks[0]);
    await page.locator('table.compared tbody tr').first().waitFor();
    assert.equal(new URL(page.url()).hash, '#/compare?run=recorded&run=comp*');
    await page.locator('table.compared').getByRole('link', { name: 'compare' }).click();
    await page.getByRole('heading', { name: 'runs / compare' }).waitFor();
    await page.getByRole('link', { name: 'Compare', exact: true }).click();
    await page.getByRole('checkbox', { name: 'recorded' }).check();
    await page.locator('table.compared').getByRole('link', { name: 'recorded' }).waitFor();
    await page.getByRole('link', { name: 'on a page of their own' }).click();
    await page.waitForURL('**/#/compare?run=compare&run=recorded');
    assert.deepEqual(complaints, []);
    await context.close();
  });

  test('goes on by itself while a run goes on', async (t) => {
    const { run, url } = await served(t, { isRewound: false });
    const { page, context, complaints } = await openPage(browser, url, looks[0]);
    await page.getByRole('link', { name: 'recorded' }).click();
    await page.locator('.chart canvas').first().waitFor();
    const row = { step: 7, lineage: 'main', time: '2026-11-26T10:02:00Z', 'train/reward': 0.987 };
    await run.store.append(layout.metrics(), `${JSON.stringify(row)}\n`);
    await page.locator('.chart', { hasText: '0.987' }).first().waitFor({ timeout: 10_000 });
    assert.deepEqual(complaints, []);
    await context.close();
  });
});
