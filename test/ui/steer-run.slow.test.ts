/** A real run of the embedded engine, steered from its page in a browser: what is pressed there happens to the run. */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { QueryNotRegisteredError, type WorkflowHandle } from '@temporalio/client';
import { layout } from '../../runs/layout.ts';
import type { RunStatus } from '../../workflows/control/messages.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { openSmallProject, smallRun, type SmallProject } from '../e2e/small-run.ts';
import { until } from '../eventually.ts';
import { openBrowser, openPage, picture, seriousFindings, withoutChromium } from './browser.ts';
import { servedPage } from './served-page.ts';

/** Its checkpoints stay: one of them is forked and talked to, however far the run is by then. */
const config = smallRun
  .replace('max_steps = 12', 'max_steps = 4000')
  .replace('interval = 4', 'interval = 3')
  .replace('keep_last = 2', 'keep_last = 200');
/** A slow machine answers slowly. */
const patience = { timeout: 120_000 };

let project: SmallProject;
let handle: WorkflowHandle<typeof trainRun>;
before(async () => {
  if (withoutChromium) return;
  project = await openSmallProject({ 'steered.toml': config });
  handle = await project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: 'steered',
    taskQueue: 'ratchet',
    args: [{ config: 'steered.toml', overrides: {} }],
  });
  await until('step 4', () => project.commit('steered', 4));
});
after(async () => {
  await handle?.terminate();
  await project?.close();
});

/** null while the run is restarted after a rewind: its workflow does not answer then. */
async function status(): Promise<RunStatus | null> {
  try {
    return await handle.query<RunStatus>('status');
  } catch (error) {
    if (error instanceof QueryNotRegisteredError) return null;
    throw error;
  }
}

test('what is pressed on the page of a running run happens to the run', { skip: withoutChromium }, async (t) => {
  const { url, child } = await servedPage(project, '--steer');
  t.after(() => child.kill());
  const browser = await openBrowser();
  t.after(() => browser.close());
  const { page, complaints } = await openPage(browser, url, { width: 1280, colorScheme: 'light' });
  page.setDefaultTimeout(patience.timeout);
  const said = page.getByRole('status');
  const send = async (label: string, text: string): Promise<void> => {
    await page.getByLabel(label, { exact: true }).fill(text);
    await page.getByRole('button', { name: label.split(' ', 1)[0]!, exact: true }).click();
  };
  const look = async (name: string): Promise<void> => {
    await page.locator('#steer').scrollIntoViewIfNeeded();
    await picture(page, `real-${name}`);
    assert.deepEqual(await seriousFindings(page), [], name);
  };
  await page.getByRole('link', { name: 'steered' }).click();

  await page.getByRole('button', { name: 'pause', exact: true }).click();
  await said.filter({ hasText: 'running → paused: asked to, from the page' }).waitFor();
  await until('it is paused', async () => (await status())?.phase === 'paused');
  await page.getByRole('button', { name: 'resume', exact: true }).waitFor();
  await look('paused');

  await send('set', 'learning_rate=5e-4');
  await said.filter({ hasText: 'learning_rate 0.001 → 0.0005' }).waitFor();
  assert.equal((await status())?.learningRate, 5e-4);
  await send('set', 'batch_size=8');
  await said.filter({ hasText: 'ratchet-rl fork steered --step' }).waitFor();
  await look('refused');

  await send('fork at step', '3 steered-again');
  await page.getByRole('button', { name: 'do it' }).click();
  await said.filter({ hasText: 'steered-again' }).waitFor();
  const fork = path.join(project.folder, 'outputs', 'steered-again');
  assert(existsSync(path.join(fork, layout.run())), `a run of its own: ${(await readdir(fork)).join(', ')}`);
  await look('forked');

  await page.getByLabel('version', { exact: true }).fill('3');
  await page.getByLabel('what you say').fill('abc');
  await page.getByRole('button', { name: 'say', exact: true }).click();
  await page.locator('.message.policy').waitFor();
  await page.getByRole('button', { name: 'say', exact: true }).waitFor(); // it has ended
  await look('talked');

  await page.getByRole('button', { name: 'resume', exact: true }).click();
  await said.filter({ hasText: '→ running' }).waitFor();
  await until('it goes on', async () => (await status())?.phase === 'training');
  await send('rewind to step', '3');
  await page.getByRole('button', { name: 'do it' }).click();
  await until('it makes steps in another lineage', async () => {
    const now = await status();
    return now !== null && now.lineage !== 'main' && now.step > 3;
  });
  await page.locator('dd', { hasText: 'l2' }).first().waitFor();
  await page.getByText('a rewind left behind').waitFor();
  await look('rewound');

  await page.goto(`${new URL(url).origin}/#/`);
  await page.getByRole('link', { name: 'steered-again' }).click();
  await page.getByText('step 3 of 4000').waitFor();
  await page.getByText('It has made no step of its own yet').waitFor();
  await picture(page, 'real-fork');
  // A refused request is a bad request.
  assert.deepEqual(
    [...complaints],
    ['Failed to load resource: the server responded with a status of 400 (Bad Request)'],
  );
});
