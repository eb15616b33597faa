import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { complete, type FakeAnswer, type FakeModelServer, fakeModelServer, reply } from './fake-model-server.ts';
import { policyOf, v1, ask, open, servers, coded } from './pooled-servers.ts';

describe('versions on several servers', () => {
  test('every server is brought to a version; one that fails is quarantined and keeps no other from it', async (t) => {
    const all = await servers(t, 3);
    all[1]!.answers['/update_weights'] = (_, response) => reply(response, 500, 'disk is full');
    const inference = open(t, all);
    await inference.bringTo(policyOf('v2'));
    assert.deepEqual(
      all.map(({ held }) => held.has('v2')),
      [true, false, true],
    );
    for (let i = 0; i < 6; i++) await inference.sample(ask(i, 0, { policy: policyOf('v2') }));
    assert.equal(all[1]!.calls.filter(({ route }) => route === '/v1/completions').length, 0);
  });

  test('many rollouts that meet a server without their version have it loaded once', async (t) => {
    const server = await fakeModelServer(t);
    server.answers['/update_weights'] = ({ body }, response) => {
      server.held.add(body.name!);
      setTimeout(() => reply(response, 200, {}), 50);
    };
    const inference = open(t, [server]);
    await Promise.all(Array.from({ length: 20 }, (_, i) => inference.sample(ask(i))));
    assert.equal(server.calls.filter(({ route }) => route === '/update_weights').length, 1);
  });

  test('of several servers the one that is furthest off answers for the canary', async (t) => {
    const all = await servers(t, 2);
    all[1]!.answers['/v1/completions'] = ({ body }, response) =>
      complete({ route: '', headers: {}, body: { ...body, allowed_token_ids: [99] } }, response);
    const inference = open(t, all);
    const canary = { policy: v1, tokenIds: [1, 2, 3], positions: [1, 2] };
    assert.deepEqual(await inference.score!({ ...canary, expected: [-2, -3] }), [-99, -99]);
  });

  test('a server that cannot be given weights is refused for training, and told apart from one that lacks a version', async (t) => {
    const server = await fakeModelServer(t);
    server.answers['/update_weights'] = (_, response) => reply(response, 404, { detail: 'Not Found' });
    const inference = open(t, [server]);
    await assert.rejects(inference.bringTo(v1), coded('Unsupported', server.url, 'cannot be given weights'));
    await assert.rejects(inference.sample(ask(1)), coded('Unsupported', server.url));
  });
});

describe('versions that are kept', () => {
  /** Holds, and holds on, in the server's words. */
  const keeping =
    (server: FakeModelServer): FakeAnswer =>
    ({ body }, response) =>
      server.held.has(body.name!) ? reply(response, 200, {}) : reply(response, 409, { error: { message: 'not held' } });

  test('a version is kept at every server that can; one that does not hold it is brought to it first', async (t) => {
    const all = await servers(t, 2);
    for (const server of all) server.answers['/hold_version'] = keeping(server);
    all[1]!.held.clear();
    const inference = open(t, all);
    assert.equal(await inference.hold!(v1, 'an evaluation', 60), 'held');
    assert.ok(all[1]!.held.has('v1'));
    const asked = all[1]!.calls.filter(({ route }) => route === '/hold_version').map(({ body }) => body);
    assert.deepEqual(asked.at(-1), { name: 'v1', holder: 'an evaluation', seconds: 60 });
    await inference.release!(v1, 'an evaluation');
  });

  test('a server without such a thing holds one version, and is not brought to another for it', async (t) => {
    const [single] = (await servers(t, 1)) as [FakeModelServer];
    single.answers['/hold_version'] = (_, response) => reply(response, 404, { detail: 'Not Found' });
    const inference = open(t, [single]);
    assert.equal(await inference.hold!(policyOf('v2'), 'an evaluation', 60), 'single');
    assert.equal(single.calls.filter(({ route }) => route === '/update_weights').length, 0);
  });

  test('where there is no room for it that is said; where nobody answers, that', async (t) => {
    const [full] = (await servers(t, 1)) as [FakeModelServer];
    full.answers['/hold_version'] = (_, response) => reply(response, 429, { error: { message: 'no room' } });
    assert.equal(await open(t, [full]).hold!(v1, 'an evaluation', 60), 'full');
    await full.stop();
    await assert.rejects(open(t, [full]).hold!(v1, 'an evaluation', 60), coded('InferenceUnavailable', full.url));
  });
});
