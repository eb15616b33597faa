/**
 * Real workers of our own Temporal server, whose process that hands on metrics has keys: somebody with no more than a client of Temporal
 * starts a run with servers of their own, and gets nothing.
 */
import assert from 'node:assert/strict';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { test } from 'node:test';
import { openRunStore } from '../../store/index.ts';
import { webhookFailure, writeNote } from '../../runs/metrics/notices.ts';
import { readSinkStates } from '../../runs/metrics/run-sinks.ts';
import { listener } from '../engine/grant-stage.ts';
import { eventually } from '../workers/fixtures/processes.ts';
import { openSmallProject, smallRun } from './small-run.ts';

const keys = { MLFLOW_TRACKING_TOKEN: 'canary-mlflow', NOTIFY_SECRET: 'canary-notify' };

test('a run of somebody else gets no key, no settings and no notice; one of this user has them all', async (t) => {
  const answer = '{"experiment":{"experiment_id":"1"},"experiment_id":"1","runs":[],"run":{"info":{"run_id":"r"}}}';
  const taker = () => listener(t, (_, reply) => void reply.end(answer));
  const [own, thief] = [await taker(), await taker()];
  const run = smallRun.replace('max_steps = 12', 'max_steps = 1').replace('steps = 60', 'steps = 1');
  const sinks = `[mlflow]\ntracking_uri = "${own.url}"\n[notify]\nwebhook = "${own.url}/hook"\nsecret_var = "NOTIFY_SECRET"\n`;
  const project = await openSmallProject({ 'plain.toml': run, 'own.toml': run + sinks }, {}, true, keys);
  t.after(() => project.close());
  const store = `${pathToFileURL(path.join(project.folder, 'outputs')).href}/`;
  const start = (name: string, config: string, overrides?: Record<string, string>) =>
    project.client.workflow.execute('trainRun', {
      args: [{ config, run: name, ...(overrides && { overrides }) }],
      workflowId: name,
      taskQueue: 'ratchet',
    });

  const hook = { 'notify.webhook': `${thief.url}/hook`, 'notify.secret_var': 'NOTIFY_SECRET' };
  await start('theirs', 'plain.toml', { 'mlflow.tracking_uri': thief.url, ...hook });
  await writeNote({ name: 'theirs', store }, 'a note');
  const theirs = openRunStore(store, 'theirs');
  await eventually('its status tells why nothing is sent', async () => {
    const failing = [(await readSinkStates(theirs))['mlflow']?.failing, await webhookFailure(theirs)];
    return failing.every((why) => why?.includes('is not asked') === true);
  });
  assert.deepEqual(thief.heard, []);

  await start('ours', 'own.toml');
  await writeNote({ name: 'ours', store }, 'a note');
  const has = (header: string, value: RegExp) => own.heard.some((headers) => value.test(String(headers[header])));
  await eventually('both get what is theirs', () => has('authorization', /^Bearer canary-mlflow$/) && has('webhook-signature', /^v1,/)); // prettier-ignore
  assert.deepEqual(thief.heard, []);
});
