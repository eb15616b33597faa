/** workers/cloud-notice.mjs asks a cloud as that cloud says, and answers by its exit code. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { test, type TestContext } from 'node:test';
import { repositoryFolder } from '../e2e/small-run.ts';

type Answers = (request: IncomingMessage) => string | number;

async function noticeOf(t: TestContext, cloud: string, answers: Answers): Promise<[number, string]> {
  const server = createServer((request, response) => {
    const answer = answers(request);
    response.writeHead(typeof answer === 'number' ? answer : 200).end(typeof answer === 'number' ? '' : answer);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  const { port } = server.address() as AddressInfo;
  const env = { ...process.env, RATCHET_METADATA_URL: `http://127.0.0.1:${port}` };
  return new Promise((resolve) => {
    execFile(process.execPath, ['workers/cloud-notice.mjs', cloud], { cwd: repositoryFolder, env }, (error, out, err) =>
      resolve([typeof error?.code === 'number' ? error.code : 0, `${out}${err}`]),
    );
  });
}

test('AWS: a notice of interruption is found with a token of version 2 of the service, and nothing is a 404', async (t) => {
  const answers =
    (action: string | number): Answers =>
    ({ method, url, headers }) => {
      if (url === '/latest/api/token')
        return method === 'PUT' && headers['x-aws-ec2-metadata-token-ttl-seconds'] ? 'token' : 400;
      if (headers['x-aws-ec2-metadata-token'] !== 'token') return 401;
      return url === '/latest/meta-data/spot/instance-action' ? action : 404;
    };
  const action = '{"action": "terminate", "time": "2026-11-30T12:00:00Z"}';
  assert.deepEqual(await noticeOf(t, 'aws', answers(action)), [0, `AWS takes this spot instance away: ${action}\n`]);
  assert.deepEqual(await noticeOf(t, 'aws', answers(404)), [1, '']);
  const [code, said] = await noticeOf(t, 'aws', () => 401);
  assert.deepEqual([code, /was not understood: .* answered 401/.test(said)], [3, true]);
});

test('Google Cloud: preemption and maintenance are found', async (t) => {
  const answers =
    (preempted: string, event: string): Answers =>
    ({ url, headers }) => {
      if (headers['metadata-flavor'] !== 'Google') return 403;
      return url?.endsWith('/preempted') ? preempted : event;
    };
  assert.deepEqual(await noticeOf(t, 'gcp', answers('FALSE\n', 'NONE')), [1, '']);
  assert.equal((await noticeOf(t, 'gcp', answers('TRUE\n', 'NONE')))[0], 0);
  assert.equal((await noticeOf(t, 'gcp', answers('FALSE', 'TERMINATE_ON_HOST_MAINTENANCE')))[0], 0);
});

test('Azure: events that end the machine are found, a freeze is none', async (t) => {
  const answers =
    (...types: string[]): Answers =>
    ({ headers }) =>
      headers['metadata'] === 'true' ? JSON.stringify({ Events: types.map((EventType) => ({ EventType })) }) : 400;
  assert.deepEqual(await noticeOf(t, 'azure', answers()), [1, '']);
  assert.deepEqual(await noticeOf(t, 'azure', answers('Freeze')), [1, '']);
  assert.deepEqual(await noticeOf(t, 'azure', answers('Freeze', 'Preempt')), [
    0,
    'Azure announces Preempt of this machine\n',
  ]);
});

test('a cloud that it does not know is refused', async (t) => {
  assert.deepEqual(await noticeOf(t, 'moon', () => 404), [2, 'expected one of aws, gcp, azure, got moon.\n']);
});
