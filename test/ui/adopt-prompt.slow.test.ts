/**
 * A prompt that a real run found beside its training is adopted from the page in a browser, and the run continues with
 * it.
 */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import type { WorkflowHandle } from '@temporalio/client';
import type { RunStatus } from '../../workflows/control/messages.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import {
  filesOfWorld,
  linkRatchet,
  openReflectionServer,
  type ReflectionServer,
  runFile,
} from '../e2e/prompt-world.ts';
import { openSmallProject, type SmallProject } from '../e2e/small-run.ts';
import { eventually, until } from '../eventually.ts';
import { openBrowser, openPage, picture, seriousFindings, withoutChromium } from './browser.ts';
import { servedPage } from './served-page.ts';

let project: SmallProject;
let reflection: ReflectionServer;
let handle: WorkflowHandle<typeof trainRun>;
before(async () => {
  if (withoutChromium) return;
  reflection = await openReflectionServer();
  const gepa = `reflection_model = "knows"\nurl = "${reflection.url}"\nat_steps = [1]\nadopt = "ask"`;
  project = await openSmallProject({ 'asked.toml': runFile(gepa, 4000), ...filesOfWorld() });
  await linkRatchet(project.folder);
  handle = await project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: 'asked',
    taskQueue: 'ratchet',
    args: ['asked.toml'],
  });
  await until('step 1', () => project.commit('asked', 1), { withinMs: 9 * 60_000 }); // after 350 steps of warm-up
  await handle.executeUpdate('pause', { args: ['for the search'] });
});
after(async () => {
  await handle?.terminate();
  await project?.close();
  reflection?.close();
});

test(
  'a prompt that was found is adopted on the page, and later groups are played with it',
  { skip: withoutChromium },
  async (t) => {
    const { url, child } = await servedPage(project, '--steer');
    t.after(() => child.kill());
    const browser = await openBrowser();
    t.after(() => browser.close());
    const { page, complaints } = await openPage(browser, url, { width: 1280, colorScheme: 'light' });
    page.setDefaultTimeout(240_000);
    const look = async (name: string): Promise<void> => {
      await picture(page, name);
      assert.deepEqual(await seriousFindings(page), [], name);
    };
    await page.getByRole('link', { name: 'asked', exact: true }).click();
    const adopt = page.getByRole('button', { name: 'adopt the prompt for say' });
    await adopt.waitFor();
    assert.equal((await project.commit('asked', 1))!.state.prompts, undefined, 'nothing is adopted unasked');

    await page.getByRole('link', { name: 'Prompts', exact: true }).click();
    await page.locator('.tree button').first().waitFor();
    await page.getByText('COPY').first().waitFor();
    await look('adopt-found');

    await page.getByRole('link', { name: 'Run', exact: true }).click();
    await adopt.click();
    await page.getByText('the run plays say with the prompt that was found').waitFor();
    await page.locator('#steer').scrollIntoViewIfNeeded();
    await look('adopt-sure');
    await page.getByRole('button', { name: 'do it' }).click();
    await adopt.waitFor({ state: 'detached' });
    await look('adopt-done');

    await page.getByRole('button', { name: 'resume', exact: true }).click();
    const later = await eventually(
      'a step that knows it',
      async () => project.commit('asked', (await handle.query<RunStatus>('status')).step),
      (commit) => commit?.state.prompts?.['say'] !== undefined,
    );
    const file = path.join(project.folder, 'outputs', 'asked', later!.state.prompts!['say']!.ref.key);
    assert.equal(await readFile(file, 'utf8'), 'COPY');
    await page
      .locator('.happened li', { hasText: 'is in use for groups that are leased from now on, as asked' })
      .waitFor();
    await page.locator('#happened').scrollIntoViewIfNeeded();
    await look('adopt-happened');
    assert.deepEqual(complaints, []);
  },
);
