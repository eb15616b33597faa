/** A note on a run that has ended reaches its webhook all the same. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { test } from 'node:test';
import type { RunSpec } from '../../config/run-spec.ts';
import { postAfterEnd } from '../../cli/follow/post-after-end.ts';
import { writeNote } from '../../runs/metrics/notices.ts';
import { advance, commitFirst, makeRun, openRoles } from '../activities/runs.ts';

test('a note is posted once the run has ended, once, and not while another process does', async (t) => {
  const taken: string[] = [];
  let status = 200;
  const server = createServer((request, response) => {
    let body = '';
    request.on('data', (piece) => (body += String(piece)));
    request.on('end', () => {
      if (status === 200) taken.push((JSON.parse(body) as { readonly text: string }).text);
      response.writeHead(status).end();
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  const webhook = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
  const run = await makeRun(t, { max_steps: '1', 'notify.webhook': webhook });
  const roles = openRoles();
  const first = await commitFirst(run, roles);
  const said: string[] = [];
  const post = () =>
    postAfterEnd(run.run, { say: (line) => said.push(line), allow: async () => undefined, environment: {} });
  await writeNote(run.run, 'while it runs');
  await post();
  assert.deepEqual(taken, []);
  await advance(run, roles, first);
  await writeNote(run.run, 'afterwards');
  await postAfterEnd(run.run, { say: (line) => said.push(line), allow: async () => undefined });
  assert.match(said.join('\n'), /webhook: The webhook .* is not asked: this user named no such thing in this folder/);
  status = 503;
  await post();
  assert.match(said.at(-1)!, /has not taken it/);
  status = 200;
  await post();
  await post();
  assert.deepEqual(taken, ['while it runs', 'afterwards']);
  // Its webhook is as the run's folder says: nothing is sent to it unless this user allows that.
  await writeNote(run.run, 'of somebody else’s run');
  const allow = (spec: RunSpec): Promise<never> => Promise.reject(new Error(spec.notify?.webhook ?? ''));
  await assert.rejects(postAfterEnd(run.run, { say: (line) => said.push(line), allow, environment: {} }), {
    message: webhook,
  });
  assert.equal(taken.length, 2);
});
